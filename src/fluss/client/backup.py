"""Backups, which a Flussbett server makes on its own machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from fluss.client.cluster.ask import ask
from fluss.client.cluster.cluster import Cluster
from fluss.doors import randomness
from fluss.model.errors import ErrorCode, InvalidRequestError, error_from_code
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb

POLL_S: Final = 0.1


class BackupStatus(NamedTuple):
    """How far a backup has come, or what it has in the end."""

    table_count: int
    bucket_count: int  # with rows
    bytes_done: int
    bytes_total: int  # 0: not known yet
    elapsed_ms: int


async def make_backup(cluster: Cluster, directory: str, on_status: Callable[[BackupStatus], None]) -> BackupStatus:
    """Let the server make a backup and return when it is on its disk; it goes on if the caller goes away."""
    cluster.check_usable()
    connection = await cluster.coordinator()
    if api_keys.START_BACKUP.key not in connection.versions:
        raise InvalidRequestError(
            f"Backups need a Flussbett server; the one at {connection.address} can't make one.",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    backup_id = randomness.new_uuid().hex
    await ask(cluster, api_keys.START_BACKUP, pb.StartBackupRequest(backup_id=backup_id, directory=directory))
    while True:
        answer = await ask(cluster, api_keys.GET_BACKUP, pb.GetBackupRequest(backup_id=backup_id))
        if answer.HasField("error_code"):
            raise error_from_code(answer.error_code, answer.error_message)
        status = BackupStatus(
            answer.table_count, answer.bucket_count, answer.bytes_done, answer.bytes_total, answer.elapsed_ms
        )
        if answer.is_done:
            return status
        on_status(status)
        await asyncio.sleep(POLL_S)
