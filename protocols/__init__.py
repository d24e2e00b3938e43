"""Floor 0: values. Nothing here opens a socket, awaits, or imports another room."""
