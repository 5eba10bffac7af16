"""The client that a worker was told to use, its connections and tables."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import stat
import sys
from collections.abc import AsyncIterator
from typing import Any

from data import DATABASE  # type: ignore[import-not-found, unused-ignore]

fluss: Any = importlib.import_module(sys.argv[1])
POLL_MS = 100


@contextlib.asynccontextmanager
async def opened(config: dict[str, str]) -> AsyncIterator[Any]:
    """A connection."""
    connection = await fluss.FlussConnection.create(fluss.Config(config))
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def opened_table(config: dict[str, str], table: str) -> AsyncIterator[Any]:
    """A table, on a connection of its own."""
    async with opened(config) as connection:
        yield await connection.get_table(fluss.TablePath(DATABASE, table))


async def create(config: dict[str, str], table: str, schema: Any, **descriptor: Any) -> None:
    async with opened(config) as connection:
        admin = connection.get_admin()
        await admin.create_database(DATABASE, None, True)
        await admin.create_table(fluss.TablePath(DATABASE, table), fluss.TableDescriptor(schema, **descriptor), False)


def subscribe_all(scanner: Any, handle: Any) -> None:
    scanner.subscribe_buckets(dict.fromkeys(range(handle.get_table_info().num_buckets), fluss.EARLIEST_OFFSET))


def set_nodelay() -> None:
    """Set TCP_NODELAY on every connection of this process: pyfluss has no option for it."""
    for name in os.listdir("/dev/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6):
                    copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            continue  # Closed since it was listed, or not connected any more.
