"""Free loopback ports."""

from __future__ import annotations

import contextlib
import random
import socket

LOOPBACK = "127.0.0.1"

# Below the range systems hand out to outgoing connections: a port that is free now cannot be taken by a client socket
# between the check and the moment a server process binds it, nor while that server is down for a restart.
_PORT_MIN = 20_000
_PORT_MAX = 32_000
_ATTEMPTS_MAX = 500


def free_ports(count: int) -> list[int]:
    """`count` different ports that nothing listens on."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for _ in range(_ATTEMPTS_MAX):
            if len(found) == count:
                return found
            port = random.SystemRandom().randint(_PORT_MIN, _PORT_MAX)
            candidate = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            # Held until all are found, so that no port is chosen twice.
            with contextlib.suppress(OSError):
                candidate.bind((LOOPBACK, port))
                found.append(port)
    raise OSError(f"found only {len(found)} of {count} free ports between {_PORT_MIN} and {_PORT_MAX}")


def parse_address(address: str) -> tuple[str, int]:
    """Split `HOST:PORT`."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit():
        raise ValueError(f"not a HOST:PORT address: {address!r}")
    return host, int(port)
