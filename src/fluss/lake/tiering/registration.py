"""The server's knowledge of lake snapshots, kept in step with the lake.

The lake decides: a snapshot that is committed there counts, whether or not its job lived to tell the server.
"""

from __future__ import annotations

from collections.abc import Mapping

from fluss.api.lake import LakeRegistry
from fluss.lake.format import LakeConflictError, LakeTable, TieredSnapshot, table_id_of
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.infos import LakeSnapshot, TableInfo
from fluss.model.paths import TableBucket


def has_snapshot(lake: LakeTable | None, known: LakeSnapshot | None) -> bool:
    """Whether the lake has what the server has registered."""
    return known is None or (lake is not None and lake.sequence_number(known.snapshot_id) is not None)


def unknown_snapshot(info: TableInfo, known: LakeSnapshot, location: str) -> FlussError:
    """The lake does not have what the server has registered."""
    return InvalidRequestError(
        f"{info.table_path} was tiered to a snapshot {known.snapshot_id} that the lake at {location} does not have: "
        f"name the warehouse it was tiered to. If that lake is lost, 'fluss lake drop {info.table_path} --start-over' "
        "has the table tiered anew."
    )


def prepare(registry: LakeRegistry, info: TableInfo, ends: Mapping[TableBucket, int]) -> str:
    """The file that has the offsets of a snapshot to come; raises LakeConflictError for a job that was overtaken."""
    try:
        return registry.prepare(info, ends)
    except FlussError as error:
        if error.error_code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION:
            raise LakeConflictError(str(error)) from error
        raise


def repair(registry: LakeRegistry, info: TableInfo, lake: LakeTable, known: LakeSnapshot | None) -> LakeSnapshot | None:
    """Register the lake's newest snapshot if the job that made it did not; returns what is registered then."""
    head = lake.tiered()
    if head is None or (known is not None and (lake.sequence_number(known.snapshot_id) or 0) >= head.sequence_number):
        return known
    if head.offsets_path is None:
        raise InvalidRequestError(
            f"Snapshot {head.snapshot_id} of {info.table_path} in the lake does not say how far it reaches, like those "
            f"of Apache Fluss before 0.9: use another warehouse, or 'fluss lake drop {info.table_path} --start-over'."
        )
    if table_id_of(head.offsets_path) not in (None, info.table_id):
        raise _of_another(info, lake)
    lake.sync()  # whoever made it may not have lived to do that either
    keep = head.snapshot_id if known is None else known.snapshot_id
    try:
        registry.commit(info, head.snapshot_id, head.offsets_path, {}, earliest_to_keep=keep)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{_of_another(info, lake)} ({error})") from error
    repaired = registry.latest(info.table_path)
    if repaired is not None and repaired.snapshot_id == head.snapshot_id:
        # The servers of a cluster learn from this how far the lake reaches; only now it is known.
        offsets = repaired.table_buckets_offset
        registry.commit(info, head.snapshot_id, head.offsets_path, offsets, earliest_to_keep=keep)
    return repaired


def _of_another(info: TableInfo, lake: LakeTable) -> InvalidRequestError:
    return InvalidRequestError(
        f"The lake at {lake.location} has rows of another table {info.table_path}, maybe of one that was dropped: "
        f"'fluss lake drop {info.table_path}' drops them; or rename it in the lake, or use another warehouse."
    )


def register(
    registry: LakeRegistry,
    info: TableInfo,
    lake: LakeTable,
    snapshot: TieredSnapshot,
    offsets: Mapping[TableBucket, int],
) -> None:
    """Register a snapshot, unless another job has registered it or a later one meanwhile."""
    known = registry.latest(info.table_path)
    if _is_behind(lake, snapshot, known):
        return
    # The one before stays: readers may be at it.
    keep = snapshot.snapshot_id if known is None else known.snapshot_id
    assert snapshot.offsets_path is not None
    try:
        registry.commit(info, snapshot.snapshot_id, snapshot.offsets_path, offsets, earliest_to_keep=keep)
    except FlussError as error:
        if error.error_code != ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION:
            raise
        if not _is_behind(lake, snapshot, registry.latest(info.table_path)):
            raise


def _is_behind(lake: LakeTable, snapshot: TieredSnapshot, known: LakeSnapshot | None) -> bool:
    """Whether the server knows a snapshot or a later one; those that `lake` did not see are later."""
    if known is None:
        return False
    number = lake.sequence_number(known.snapshot_id)
    return number is None or number >= snapshot.sequence_number
