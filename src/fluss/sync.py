"""The API with nothing awaited, for scripts, notebooks and threads."""

from __future__ import annotations

from fluss.api import values as _values
from fluss.api.admin_sync import FlussAdmin
from fluss.api.append_sync import AppendWriter, TableAppend, WriteResultHandle
from fluss.api.connection_sync import FlussConnection
from fluss.api.scanner import LogScanner
from fluss.api.table_sync import FlussTable, TableScan
from fluss.api.values import *  # noqa: F403

__all__ = [
    "AppendWriter",
    "FlussAdmin",
    "FlussConnection",
    "FlussTable",
    "LogScanner",
    "TableAppend",
    "TableScan",
    "WriteResultHandle",
    *_values.__all__,
]
