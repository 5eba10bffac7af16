"""The API with everything that talks to a server awaited; a drop-in for pyfluss: `import fluss.aio as fluss`."""

# Small on purpose: a list of names; the classes are in fluss.api.
from __future__ import annotations

from fluss.api import values as _values
from fluss.api.admin import FlussAdmin
from fluss.api.append import AppendWriter, TableAppend
from fluss.api.batch_scanner_aio import BatchScanner
from fluss.api.changes_aio import Changes
from fluss.api.connection_aio import FlussConnection, connect
from fluss.api.lookup import Lookuper, PrefixLookuper, TableLookup, TablePrefixLookup
from fluss.api.scanner_aio import LogScanner
from fluss.api.staging import StagedWrite, StagedWriter
from fluss.api.table_aio import FlussTable, TableScan
from fluss.api.union_aio import UnionScan
from fluss.api.upsert import TableUpsert, UpsertWriter
from fluss.api.values import *  # noqa: F403
from fluss.api.writer import WriteResultHandle

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


def __getattr__(name: str) -> str:
    if name == "__version__":
        import fluss

        return fluss.__version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
