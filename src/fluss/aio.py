"""The API with everything that talks to a server awaited; a drop-in for pyfluss: `import fluss.aio as fluss`."""

from __future__ import annotations

from fluss.api import values as _values
from fluss.api.admin import FlussAdmin
from fluss.api.append import AppendWriter, TableAppend, WriteResultHandle
from fluss.api.batch_scanner_aio import BatchScanner
from fluss.api.connection_aio import FlussConnection, connect
from fluss.api.scanner_aio import LogScanner
from fluss.api.table_aio import FlussTable, TableScan
from fluss.api.values import *  # noqa: F403

__all__ = [
    "AppendWriter",
    "BatchScanner",
    "FlussAdmin",
    "FlussConnection",
    "FlussTable",
    "LogScanner",
    "TableAppend",
    "TableScan",
    "WriteResultHandle",
    "connect",
    *_values.__all__,
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        import fluss

        return fluss.__version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
