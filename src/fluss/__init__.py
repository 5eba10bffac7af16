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
    from fluss.api.admin import FlussAdmin
    from fluss.api.append import AppendWriter, TableAppend
    from fluss.api.batch_scanner import BatchScanner
    from fluss.api.changes import Changes
    from fluss.api.connection import FlussConnection, connect
    from fluss.api.lookup import Lookuper, PrefixLookuper, TableLookup, TablePrefixLookup
    from fluss.api.scanner import LogScanner
    from fluss.api.staging import StagedWrite, StagedWriter
    from fluss.api.table import FlussTable, TableScan
    from fluss.api.union import UnionScan
    from fluss.api.upsert import TableUpsert, UpsertWriter
    from fluss.api.writer import WriteResultHandle

    __version__: str

# Loaded on first use: they need pyarrow, and a program that only builds a Config should not wait for it.
_LAZY = {
    "AppendWriter": "fluss.api.append",
    "BatchScanner": "fluss.api.batch_scanner",
    "Changes": "fluss.api.changes",
    "FlussAdmin": "fluss.api.admin",
    "FlussConnection": "fluss.api.connection",
    "FlussTable": "fluss.api.table",
    "LogScanner": "fluss.api.scanner",
    "Lookuper": "fluss.api.lookup",
    "PrefixLookuper": "fluss.api.lookup",
    "StagedWrite": "fluss.api.staging",
    "StagedWriter": "fluss.api.staging",
    "TableAppend": "fluss.api.append",
    "TableLookup": "fluss.api.lookup",
    "TablePrefixLookup": "fluss.api.lookup",
    "TableScan": "fluss.api.table",
    "TableUpsert": "fluss.api.upsert",
    "UnionScan": "fluss.api.union",
    "UpsertWriter": "fluss.api.upsert",
    "WriteResultHandle": "fluss.api.writer",
    "connect": "fluss.api.connection",
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
