"""Lake snapshots: what the coordinator knows of them, and what a tiering job reports to it.

All requests may be repeated without harm: a prepared file that nobody commits is removed, and a table that was handed
out twice is due again when its job is silent. To register a snapshot again takes care: Apache Fluss then counts it as
its own predecessor, and removes the offsets file of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fluss.client.cluster.ask import ask, ask_once
from fluss.client.cluster.cluster import Cluster
from fluss.client.cluster.metadata import set_path
from fluss.client.net.connection import STALE_METADATA_CODES, server_error
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError
from fluss.model.infos import LakeSnapshot, TableInfo
from fluss.model.paths import TableBucket, TablePath
from fluss.model.staging import LAKE_ERROR_CHARACTERS_MAX, Assigned, Heartbeat, LakeError
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api

KEEP_ALL: Final = -1


async def get_lake_snapshot(cluster: Cluster, path: TablePath, snapshot_id: int | None = None) -> LakeSnapshot:
    """A registered lake snapshot; the latest without `snapshot_id`."""
    request = pb.GetLakeSnapshotRequest()
    set_path(request.table_path, path)
    if snapshot_id is not None:
        request.snapshot_id = snapshot_id
    answer = await ask(cluster, api_keys.GET_LAKE_SNAPSHOT, request)
    offsets = {
        TableBucket(
            answer.table_id, item.bucket_id, item.partition_id if item.HasField("partition_id") else None
        ): item.log_offset
        for item in answer.bucket_snapshots
        if item.HasField("log_offset")
    }
    return LakeSnapshot(answer.snapshot_id, offsets)


class LakeCore:
    """Coroutines on the I/O loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def find_snapshot(self, path: TablePath, snapshot_id: int | None = None) -> LakeSnapshot | None:
        """As `get_lake_snapshot`, None where there is none."""
        try:
            return await get_lake_snapshot(self._cluster, path, snapshot_id)
        except FlussError as error:
            if error.error_code != ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
                raise
            return None

    async def prepare(self, info: TableInfo, offsets: Mapping[TableBucket, int]) -> str:
        """Let the server write down how far a snapshot reaches; returns the path of that file."""
        request = pb.PrepareLakeTableSnapshotRequest()
        table = request.bucket_offsets.add(table_id=info.table_id)
        set_path(table.table_path, info.table_path)
        for bucket, offset in offsets.items():
            table.bucket_offsets.add(
                partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, log_end_offset=offset
            )
        answer = await ask(self._cluster, api_keys.PREPARE_LAKE_TABLE_SNAPSHOT, request)
        for item in answer.prepare_lake_table_resp:
            _raise_if_failed(item)
            if item.lake_table_offsets_path:
                return item.lake_table_offsets_path
        raise _no_answer(info)

    async def commit(
        self,
        info: TableInfo,
        snapshot_id: int,
        offsets_path: str,
        offsets: Mapping[TableBucket, int],
        earliest_to_keep: int | None,
    ) -> None:
        """Register a snapshot that the lake has; one that is registered stays as it is."""
        if await self.find_snapshot(info.table_path, snapshot_id) is not None:
            return
        request = pb.CommitLakeTableSnapshotRequest()
        metadata = request.lake_table_snapshot_metadata.add(
            table_id=info.table_id,
            snapshot_id=snapshot_id,
            tiered_bucket_offsets_file_path=offsets_path,
            readable_bucket_offsets_file_path=offsets_path,
            earliest_snapshot_id_to_keep=earliest_to_keep,
        )
        # Without these, tablet servers of a cluster do not learn how far the lake reaches.
        table = request.tables_req.add(table_id=info.table_id, snapshot_id=snapshot_id)
        set_path(table.table_path, info.table_path)
        for bucket, offset in offsets.items():
            table.buckets_req.add(partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, log_end_offset=offset)
        try:
            answer = await ask_once(self._cluster, api_keys.COMMIT_LAKE_TABLE_SNAPSHOT, request)
        except FlussError as error:
            if error.error_code not in STALE_METADATA_CODES:
                raise
            # It may have been done. Then the snapshot is among those there are, and has to be kept.
            if earliest_to_keep is None:
                metadata.earliest_snapshot_id_to_keep = snapshot_id
            answer = await ask(self._cluster, api_keys.COMMIT_LAKE_TABLE_SNAPSHOT, request)
        for item in answer.table_resp:
            _raise_if_failed(item)
        if not answer.table_resp:
            raise _no_answer(info)

    async def heartbeat(
        self,
        tiering: Iterable[Assigned],
        finished: Iterable[Assigned],
        failed: Iterable[Assigned],
        request_table: bool,
    ) -> Heartbeat:
        """Tell which tables are being tiered, done or given up, and ask for another."""
        request = pb.LakeTieringHeartbeatRequest(
            tiering_tables=map(_reported, tiering),
            finished_tables=map(_reported, finished),
            failed_tables=map(_reported, failed),
            request_table=request_table,
        )
        answer = await ask(self._cluster, api_keys.LAKE_TIERING_HEARTBEAT, request)
        errors = {
            item.table_id: server_error(item.error.error_code, item.error.error_message)
            for items in (answer.tiering_table_resp, answer.finished_table_resp, answer.failed_table_resp)
            for item in items
            if item.HasField("error")
        }
        assigned = None
        if answer.HasField("tiering_table"):
            table = answer.tiering_table
            path = TablePath(table.table_path.database_name, table.table_path.table_name)
            assigned = Assigned(table.table_id, path, table.tiering_epoch, answer.coordinator_epoch)
        return Heartbeat(assigned, errors)

    async def report(self, table_id: int, error: str | None) -> None:
        """Tell how a round ended, for people to see: why it failed, None if it did not; Apache Fluss is not told."""
        if await self._knows(api_keys.REPORT_LAKE_ROUND):
            await ask(self._cluster, api_keys.REPORT_LAKE_ROUND, _round_report(table_id, error))

    async def last_error(self, table_id: int) -> LakeError | None:
        """Why the last round of a table failed; None if it did not, or if the server does not keep that."""
        if not await self._knows(api_keys.GET_LAKE_ERROR):
            return None
        answer = await ask(self._cluster, api_keys.GET_LAKE_ERROR, pb.GetLakeErrorRequest(table_id=table_id))
        return LakeError(answer.error, answer.time_ms) if answer.HasField("error") else None

    async def can_forget(self) -> bool:
        """Whether the server can forget snapshots while their table lives, which Apache Fluss can't."""
        return await self._knows(api_keys.FORGET_LAKE_SNAPSHOTS)

    async def forget(self, table_id: int) -> None:
        """Have the server forget all snapshots of a table."""
        request = pb.ForgetLakeSnapshotsRequest(table_id=table_id)
        await ask(self._cluster, api_keys.FORGET_LAKE_SNAPSHOTS, request)

    async def _knows(self, api: Api[Any, Any]) -> bool:
        self._cluster.check_usable()
        connection = await self._cluster.coordinator()
        return api.key in connection.versions


def _round_report(table_id: int, error: str | None) -> pb.ReportLakeRoundRequest:
    # Not all texts of Python are UTF-8.
    text = None if error is None else error[:LAKE_ERROR_CHARACTERS_MAX].encode(errors="replace").decode()
    return pb.ReportLakeRoundRequest(table_id=table_id, error=text)


def _reported(table: Assigned) -> pb.PbHeartbeatReqForTable:
    return pb.PbHeartbeatReqForTable(
        table_id=table.table_id, coordinator_epoch=table.coordinator_epoch, tiering_epoch=table.tiering_epoch
    )


def _raise_if_failed(item: pb.PbPrepareLakeTableRespForTable | pb.PbCommitLakeTableSnapshotRespForTable) -> None:
    if item.error_code:
        raise server_error(item.error_code, item.error_message)


def _no_answer(info: TableInfo) -> FlussError:
    return CorruptDataError(
        f"The server's answer says nothing of table {info.table_path}; is it a version that knows lake snapshots?",
        ErrorCode.CORRUPT_MESSAGE,
    )
