"""Whether a server could listen, asked before anything is started: the one failure that users meet most."""

from __future__ import annotations

import errno
import socket

from app.config_problems import UsageError


def require_free_port(host: str, port: int) -> None:
    """Raises UsageError when nothing can listen there: the port is taken, or the address is not this machine's."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except socket.gaierror as error:
        raise UsageError(f"cannot listen on {host}: {error.strerror}. Give an address of this machine") from error
    except OverflowError as error:
        raise UsageError(f"{port} is no port. Give one from 1 to 65535") from error
    except OSError as error:
        raise UsageError(_cannot_listen(host, port, error)) from error


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            advice = "it is in use. Stop what listens there, or give another with --port"
        case errno.EADDRNOTAVAIL:
            advice = "this machine does not have that address. Give one of its own with --host"
        case errno.EACCES:
            advice = "not allowed. Give a port above 1023 with --port"
        case _:
            advice = error.strerror or str(error)
    return f"cannot listen on {host}, port {port}: {advice}"
