"""Floor 1: who gets a request. Synchronous and explainable; HTTP endpoints live in `app`."""
