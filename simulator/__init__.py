"""Floor 3: simulated engines as a product: a pure model of an engine, and HTTP shells that speak each dialect."""
