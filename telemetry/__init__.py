"""Floor 1: metric families, the request tracker, logs."""
