"""Floor 3: services and operators that push outputs into sinks; each file one operator, `build.py` the chain."""
