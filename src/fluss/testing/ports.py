"""Loopback ports for servers that tests start, stop and start again."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
import weakref

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


class ReservedPorts:
    """Free ports that no other program is given until `close`; a server of the test may listen on them.

    So a server finds its port again after a restart, whatever else runs on the machine. It takes a bound socket that
    does not listen, beside which Linux lets others listen that set SO_REUSEADDR, as servers do. Elsewhere the ports
    are free when this is made, and no more.
    """

    def __init__(self, count: int) -> None:
        sockets = [_bound_socket() for _ in range(count)] if sys.platform == "linux" else []
        self.numbers: list[int] = [held.getsockname()[1] for held in sockets] or free_ports(count)
        self.close = weakref.finalize(self, _close_all, sockets)


def _bound_socket() -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((LOOPBACK, 0))
    return held


def _close_all(sockets: list[socket.socket]) -> None:
    for held in sockets:
        held.close()


def parse_address(address: str) -> tuple[str, int]:
    """Split `HOST:PORT`."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit():
        raise ValueError(f"not a HOST:PORT address: {address!r}")
    return host, int(port)
