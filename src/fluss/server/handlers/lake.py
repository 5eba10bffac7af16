"""GetLakeSnapshot. No table has one yet."""

from __future__ import annotations

from typing import Final

from fluss.model.errors import ErrorCode, error_from_code
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.context import ConnectionContext, Handler
from fluss.server.names import table_path


def _snapshot(context: ConnectionContext, request: pb.GetLakeSnapshotRequest) -> pb.GetLakeSnapshotResponse:
    entry = context.storage.catalog.table(table_path(request.table_path))
    raise error_from_code(
        ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
        f"Table {entry.path} has no lake snapshot: nothing of it was written to a lake yet.",
    )


HANDLERS: Final[dict[int, Handler]] = {api_keys.GET_LAKE_SNAPSHOT.key: _snapshot}
