"""Floor 2: the only sockets toward workers."""
