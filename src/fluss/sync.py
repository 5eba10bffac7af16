"""The API with nothing awaited, for scripts, notebooks and threads."""

# Small on purpose: a list of names; the classes are in fluss.api.
from __future__ import annotations

from fluss.api import values as _values
from fluss.api.admin_sync import FlussAdmin
from fluss.api.append_sync import AppendWriter, TableAppend
from fluss.api.batch_scanner import BatchScanner
from fluss.api.changes import Changes
from fluss.api.connection_sync import FlussConnection, connect
from fluss.api.lookup_sync import Lookuper, PrefixLookuper, TableLookup, TablePrefixLookup
from fluss.api.scanner import LogScanner
from fluss.api.staging_sync import StagedWrite, StagedWriter
from fluss.api.table_sync import FlussTable, TableScan
from fluss.api.union import UnionScan
from fluss.api.upsert_sync import TableUpsert, UpsertWriter
from fluss.api.values import *  # noqa: F403
from fluss.api.writer_sync import WriteResultHandle

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
