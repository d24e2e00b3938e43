"""Floor 4: the front door, settings, the command line, and the one place where everything is put together."""
