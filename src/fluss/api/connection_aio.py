"""The connection of the facade `fluss.aio`."""

from __future__ import annotations

from fluss.api.connection_base import AwaitedConnection, FlussConnectionBase
from fluss.api.table_aio import FlussTable


class FlussConnection(AwaitedConnection[FlussTable]):
    __doc__ = FlussConnectionBase.__doc__
    _table_class = FlussTable
