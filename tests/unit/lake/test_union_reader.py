"""Files with deletes, and files that DuckDB does not open itself, in a union read; a plan can be sent elsewhere."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluss.lake.format import EqualityDelete
from fluss.lake.tiering.service import tier
from fluss.lake.tiering.task import LocalExecutor
from fluss.lake.union.plan import UnionPlan, plan_union
from fluss.lake.union.reader import LakeRelation, UnionReader, quoted
from fluss.sync import FlussConnection, FlussTable, Schema, TableDescriptor, TablePath, connect

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("tiny", pa.int8())])


@pytest.fixture(scope="module")
def connection() -> Iterator[FlussConnection]:
    with connect("memory:") as connection:
        yield connection


@pytest.fixture(scope="module")
def table(connection: FlussConnection) -> FlussTable:
    """Rows 0 to 9 in the lake; 3 and 10 fresh, 0 gone since."""
    path = TablePath("fluss", "union")
    properties = {"table.datalake.enabled": "true"}
    connection.get_admin().create_table(
        path, TableDescriptor(Schema(COLUMNS, primary_keys=["id"]), bucket_count=1, properties=properties)
    )
    table = connection.get_table(path)
    with table.new_upsert().create_writer() as writer:
        for number in range(10):
            writer.upsert({"id": number, "tiny": number})
    tier(connection, LocalExecutor(connection), tables=[path])
    with table.new_upsert().create_writer() as writer:
        writer.upsert({"id": 3, "tiny": 33})
        writer.upsert({"id": 10, "tiny": 10})
        writer.delete({"id": 0})
    return table


@pytest.fixture
def plan(connection: FlussConnection, table: FlussTable) -> UnionPlan:
    return plan_union(connection, table)


def rows_both_ways(table: FlussTable, plan: UnionPlan) -> dict[int, int]:
    reader = UnionReader(table)
    found = pa.Table.from_batches(reader.batches(plan), reader.schema)
    with duckdb.connect() as duck:
        rows = LakeRelation(duck, reader, plan).build().fetchall()
    assert sorted(rows) == sorted(zip(found["id"].to_pylist(), found["tiny"].to_pylist(), strict=True))
    assert len(dict(rows)) == len(rows)
    return dict(rows)


FOUND = {1: 1, 2: 2, 3: 33, 4: 4, 5: 5, 6: 6, 7: 7, 8: 8, 9: 9, 10: 10}


def test_a_plan_is_plain_values(table: FlussTable, plan: UnionPlan) -> None:
    [bucket] = plan.buckets
    assert (bucket.start_offset, bucket.end_offset, bucket.tail_rows) == (10, 14, 4)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert rows_both_ways(table, pickle.loads(pickle.dumps(plan))) == FOUND


def test_position_deletes(table: FlussTable, plan: UnionPlan) -> None:
    [bucket] = plan.buckets
    [file] = bucket.files
    folder = Path(file.path).parent
    gone = pa.table({"file_path": [file.path, "another", file.path], "pos": [1, 2, 8]})
    pq.write_table(gone, folder / "gone.parquet")
    narrowed = replace(bucket, files=(replace(file, position_deletes=(str(folder / "gone.parquet"),)),))
    wanted = {key: value for key, value in FOUND.items() if key not in (1, 8)}
    assert rows_both_ways(table, replace(plan, buckets=[narrowed])) == wanted


def test_equality_deletes(table: FlussTable, plan: UnionPlan) -> None:
    [bucket] = plan.buckets
    [file] = bucket.files
    folder = Path(file.path).parent
    assert plan.schema is not None
    item = plan.schema.field("id")
    pq.write_table(pa.table([pa.array([2, 3, 99])], schema=pa.schema([item])), folder / "gone.parquet")
    delete = EqualityDelete(str(folder / "gone.parquet"), (int(item.metadata[b"PARQUET:field_id"]),))
    narrowed = replace(bucket, files=(replace(file, equality_deletes=(delete,)),))
    wanted = {key: value for key, value in FOUND.items() if key != 2}  # 3 was written again since
    assert rows_both_ways(table, replace(plan, buckets=[narrowed])) == wanted


def test_files_through_arrow(table: FlussTable, plan: UnionPlan) -> None:
    """As those are read that are not on this machine."""
    [bucket] = plan.buckets
    with duckdb.connect() as duck:
        relation = LakeRelation(duck, UnionReader(table, [1]), plan)
        rows = relation.rows_of(relation.open_by_arrow(bucket.files))
        assert sorted(rows.fetchall()) == [(number,) for number in range(10)]
        assert [str(kind) for kind in rows.types] == ["TINYINT"]
        assert rows.filter("tiny > 8").fetchall() == [(9,)]


def test_names_are_quoted() -> None:
    name = 'a "b" c'
    with duckdb.connect() as duck:
        assert duck.sql(f"SELECT 1 AS {quoted(name)}").columns == [name]
