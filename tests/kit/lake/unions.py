"""Union reads to check, rounds of tiering that end halfway, and what a table's log says must have been read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import duckdb
import pyarrow as pa

from fluss.api.operations import LakeRegistry
from fluss.lake.options import LakeOptions
from fluss.lake.report import Status
from fluss.lake.tiering.pending_commit import repair
from fluss.lake.tiering.service import tier
from fluss.lake.tiering.task import LocalExecutor, plan_round
from fluss.sync import FlussTable, OffsetSpec, TableBucket
from tests.kit.lake.lake import Lake

WAYS = ("arrow", "duckdb", "batches")
Rows = list[dict[str, Any]]
Offsets = Mapping[TableBucket, int]


def read_union(table: FlussTable, way: str, **arguments: Any) -> pa.Table:
    """All rows, by one of the ways there are, in the table's types."""
    union = table.new_scan().union(**arguments)
    if way == "arrow":
        return union.to_arrow()
    if way == "batches":
        return union.to_arrow_batch_reader().read_all()
    with duckdb.connect() as connection:
        return union.to_duckdb(connection).to_arrow_table().cast(table.arrow_schema)


def tier_fully(lake: Lake, table: FlussTable) -> None:
    """One round in this process, to the lake that the server names."""
    executor = LocalExecutor(lake.connection, 2)
    [report] = tier(lake.connection, executor, tables=[table.table_path])
    assert report.status in (Status.TIERED, Status.NOTHING_NEW), report


def tier_halfway(lake: Lake, table: FlussTable, *, is_committed: bool) -> None:
    """A round that ends before the lake's commit, or between that and its registration, as a killed job does."""
    table = lake.connection.get_table(table.table_path)
    info, registry = table.get_table_info(), LakeRegistry(lake.connection)
    stored = LakeOptions(warehouse=str(lake.warehouse)).open().ensure_table(info)
    known = repair(registry, info, stored, registry.latest(info.table_path))
    plan = plan_round(lake.connection, table, stored, known, 2)
    results = list(LocalExecutor(lake.connection, 2).run_tasks(plan.tasks))
    assert [result.error for result in results if result.error] == []
    added = [file for result in results for file in result.added]
    removed = [file for result in results for file in result.removed]
    if is_committed and not plan.is_empty:
        stored.commit(added, [*plan.removed, *removed], registry.prepare(info, plan.ends))


def latest(table: FlussTable) -> dict[TableBucket, int]:
    """How far each bucket's log reaches."""
    return table.new_scan().bucket_offsets(OffsetSpec.latest())


class History:
    """All that ever happened to a table, from its log."""

    def __init__(self, table: FlussTable) -> None:
        scan = table.new_scan()
        self._changes: dict[TableBucket, Rows] = {
            bucket: [row for batch in scan.read_bucket(bucket, 0, end, changelog=True) for row in batch.to_pylist()]
            for bucket, end in latest(table).items()
        }

    def check_log(self, ids: Iterable[int], begin: Offsets, end: Offsets) -> None:
        """A read had of each bucket what it had from its beginning up to some offset between the two, each row once."""
        read = list(ids)
        assert len(set(read)) == len(read), "a row came twice"
        left = set(read)
        for bucket, changes in self._changes.items():
            offsets = [row["_log_offset"] for row in changes if row["id"] in left]
            assert offsets == list(range(len(offsets))), f"there is a gap in {bucket}"
            assert begin[bucket] <= len(offsets) <= end[bucket]
            left -= {row["id"] for row in changes}
        assert not left, "rows came that nobody wrote"

    def check_rows(self, rows: Mapping[int, int], begin: Offsets, end: Offsets) -> None:
        """A read had of each bucket the rows as of some offset between the two."""
        left = dict(rows)
        for bucket, changes in self._changes.items():
            own = {row["id"]: left.pop(row["id"]) for row in changes if row["id"] in left}
            state: dict[int, int] = {}
            states = []
            for row in changes:  # offsets that changed nothing have none
                if row["_log_offset"] >= end[bucket]:
                    break
                if row["_log_offset"] >= begin[bucket]:
                    states.append(dict(state))
                if row["_change_type"] == "-D":
                    del state[row["id"]]
                elif row["_change_type"] != "-U":
                    state[row["id"]] = row["value"]
            assert own in [*states, state], f"{bucket} was never like this between {begin[bucket]} and {end[bucket]}"
        assert not left, "rows came that nobody wrote"
