"""The connection of the facade `fluss`."""

from __future__ import annotations

from fluss.api.connection_base import AwaitedConnection, FlussConnectionBase
from fluss.api.table import FlussTable


class FlussConnection(AwaitedConnection[FlussTable]):
    __doc__ = FlussConnectionBase.__doc__
    _table_class = FlussTable
