"""StartBackup, GetBackup: copies of the data directory, made by the server on its own machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.answers import code_and_text
from fluss.server.net.context import ConnectionContext

ID_CHARACTERS_MAX: Final = 100
PATH_CHARACTERS_MAX: Final = 4_096


def start_backup(context: ConnectionContext, request: pb.StartBackupRequest) -> pb.StartBackupResponse:
    _check_text(request.backup_id, "backup_id", ID_CHARACTERS_MAX)
    _check_text(request.directory, "directory", PATH_CHARACTERS_MAX)
    context.server.backups.start(request.backup_id, Path(request.directory))
    return pb.StartBackupResponse()


def get_backup(context: ConnectionContext, request: pb.GetBackupRequest) -> pb.GetBackupResponse:
    found = context.server.backups.find(request.backup_id)
    backup = found.backup
    response = pb.GetBackupResponse(
        is_done=found.task.done(),
        table_count=backup.table_count,
        bucket_count=backup.bucket_count,
        bytes_done=backup.bytes_done,
        bytes_total=backup.bytes_total,
        elapsed_ms=found.elapsed_ms,
    )
    if found.error is not None:
        response.error_code, response.error_message = code_and_text(found.error)
    return response


def _check_text(text: object, name: str, characters_max: int) -> None:
    # protobuf leaves bytes where a text is not UTF-8.
    if not isinstance(text, str) or not 0 < len(text) <= characters_max or "\0" in text:
        raise InvalidRequestError(
            f"{name} must be a text of 1 to {characters_max} characters.", ErrorCode.INVALID_CONFIG_EXCEPTION
        )
