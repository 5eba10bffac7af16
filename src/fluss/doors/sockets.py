"""The door to the network: opening and accepting connections, and resolving names.

To be called as `sockets.connect(…)`; a name that is imported or kept is not replaced. Bytes go through the transports
of the event loop, options to sockets made with `duplicate` or `attach` of a transport's socket's number.
"""

# Small on purpose: nothing but what is replaced together.

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def connect(make_protocol: Callable[[], P], host: str, port: int) -> P:
    """Resolve a name, connect by TCP and attach a protocol on the running loop; raises OSError."""
    _, protocol = await asyncio.get_running_loop().create_connection(make_protocol, host, port)
    return protocol


def bind(host: str, port: int) -> socket.socket:
    """A socket with an address of this machine, to listen on; raises OSError or UnicodeError."""
    # As bytes: a text would load the tables of international names.
    name = host.encode() if host.isascii() else host
    family, kind, protocol, _, address = socket.getaddrinfo(
        name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


async def listen(
    make_protocol: Callable[[], asyncio.BaseProtocol], bound: socket.socket, backlog: int
) -> asyncio.Server:
    """Take connections on the running loop, each with a protocol of its own."""
    return await asyncio.get_running_loop().create_server(make_protocol, sock=bound, backlog=backlog)


serve_streams = asyncio.start_server
"""Take connections on the running loop, each with a pair of streams."""


def attach(fd: int, family: int = -1, kind: int = -1, protocol: int = -1) -> socket.socket:
    """A socket object for the number of an open socket; the system is asked for its kind unless it is given."""
    return socket.socket(family, kind, protocol, fd)


def duplicate(fd: int) -> socket.socket:
    """Another socket object, with a number of its own, for an open socket."""
    return attach(os.dup(fd))
