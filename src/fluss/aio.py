"""The API with everything that talks to a server awaited; a drop-in for pyfluss: `import fluss.aio as fluss`."""

# Small on purpose: names, and the way in; the classes are in fluss.api.
from __future__ import annotations

from typing import Any

from fluss.api import values as _values
from fluss.api._aio.admin import FlussAdmin
from fluss.api._aio.connection import FlussConnection
from fluss.api._aio.lookup import Lookuper, PrefixLookuper, TableLookup, TablePrefixLookup
from fluss.api._aio.readers import BatchScanner, Changes, UnionScan
from fluss.api._aio.scan import TableScan
from fluss.api._aio.scanner import LogScanner
from fluss.api._aio.staging import StagedWrite, StagedWriter
from fluss.api._aio.table import FlussTable
from fluss.api._aio.upserts import TableUpsert, UpsertWriter
from fluss.api._aio.writers import AppendWriter, TableAppend, WriteResultHandle
from fluss.api.connect import Connecting, connect_config
from fluss.api.values import *  # noqa: F403
from fluss.model.config import LenientConfig as Config  # noqa: F401

__all__ = [
    "AppendWriter",
    "BatchScanner",
    "Changes",
    "FlussAdmin",
    "FlussConnection",
    "FlussTable",
    "LogScanner",
    "Lookuper",
    "PrefixLookuper",
    "StagedWrite",
    "StagedWriter",
    "TableAppend",
    "TableLookup",
    "TablePrefixLookup",
    "TableScan",
    "TableUpsert",
    "UnionScan",
    "UpsertWriter",
    "WriteResultHandle",
    "connect",
    *_values.__all__,
]


def connect(address: str | None = None, **options: Any) -> Connecting[FlussConnection]:
    """Connect to a server or cluster.

    Args:
        address: `host:port`, `file:///directory` or `memory:`; None: 127.0.0.1:9123.
        **options: Settings, named like the attributes of Config.

    Returns:
        A connection to be awaited, or used in `async with`, which closes it at the end.

    Raises:
        ConnectError: No server answers there within `connect-timeout-ms`.
        AuthenticationError: The server wants another login.
        InvalidRequestError: There is no such option, or its value is not right.

    Examples:
        >>> async with fluss.connect("memory:", request_timeout_ms=10_000) as connection:
        ...     print(await connection.get_admin().database_exists("fluss"))
        True
    """
    return Connecting(FlussConnection.create(connect_config(address, options)))


def __getattr__(name: str) -> str:
    if name == "__version__":
        import fluss

        return fluss.__version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
