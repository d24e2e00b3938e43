"""Floor 1: how to speak to each engine. Bytes in, bytes out; no sockets, no clocks."""
