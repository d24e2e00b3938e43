"""Where workers come from: a source adds them to the registry and takes them out."""
