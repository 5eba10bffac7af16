"""Real-time tables for Python.

This module is the API with admin calls, `get_table` and `flush` awaited and scans blocking. `fluss.aio` awaits scans
too, `fluss.sync` awaits nothing; the names are the same in all three.

Everything that goes wrong is a FlussError with `message`, `error_code` and `is_retriable`:

FlussError
    ConnectError            no server there, connection lost, wrong port
    AuthenticationError     wrong user or password, or not logged in
    NotFoundError           database, table, partition, schema or snapshot does not exist
    AlreadyExistsError      database, table or partition exists
    InvalidRequestError     a name, descriptor, option or argument is not acceptable
    SchemaMismatchError     a row or column does not fit the table's schema
    TimeoutError            a deadline passed (also a builtin TimeoutError)
    CorruptDataError        bytes on disk or from the wire fail their checks
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluss.api import values as _values
from fluss.api.values import *  # noqa: F403

if TYPE_CHECKING:
    from fluss.api._aio.admin import FlussAdmin
    from fluss.api._aio.lookup import Lookuper, PrefixLookuper, TableLookup, TablePrefixLookup
    from fluss.api._aio.staging import StagedWrite, StagedWriter
    from fluss.api._aio.upserts import TableUpsert, UpsertWriter
    from fluss.api._aio.writers import AppendWriter, TableAppend, WriteResultHandle
    from fluss.api._sync.readers import BatchScanner, Changes, UnionScan
    from fluss.api._sync.scanner import LogScanner
    from fluss.api.mixed import FlussConnection, FlussTable, TableScan, connect

    __version__: str

# Loaded on first use: they need pyarrow, and a program that only builds a Config should not wait for it.
_LAZY = {
    "AppendWriter": "fluss.api._aio.writers",
    "BatchScanner": "fluss.api._sync.readers",
    "Changes": "fluss.api._sync.readers",
    "FlussAdmin": "fluss.api._aio.admin",
    "FlussConnection": "fluss.api.mixed",
    "FlussTable": "fluss.api.mixed",
    "LogScanner": "fluss.api._sync.scanner",
    "Lookuper": "fluss.api._aio.lookup",
    "PrefixLookuper": "fluss.api._aio.lookup",
    "StagedWrite": "fluss.api._aio.staging",
    "StagedWriter": "fluss.api._aio.staging",
    "TableAppend": "fluss.api._aio.writers",
    "TableLookup": "fluss.api._aio.lookup",
    "TablePrefixLookup": "fluss.api._aio.lookup",
    "TableScan": "fluss.api.mixed",
    "TableUpsert": "fluss.api._aio.upserts",
    "UnionScan": "fluss.api._sync.readers",
    "UpsertWriter": "fluss.api._aio.upserts",
    "WriteResultHandle": "fluss.api._aio.writers",
    "connect": "fluss.api.mixed",
}

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


def __getattr__(name: str) -> Any:
    import importlib

    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    elif name in ("aio", "sync"):
        value = importlib.import_module(f"fluss.{name}")
    elif name == "__version__":
        from importlib.metadata import version

        value = version("flussbett")
    else:
        raise AttributeError(f"module 'fluss' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
