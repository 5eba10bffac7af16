"""Tasks and commits of a stream as Spark calls them, without its machinery: attempts, repetitions, empty tasks."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import types as st

from fluss.model.errors import InvalidRequestError
from fluss.spark.source import FlussDataSource
from fluss.spark.write.writer import BATCH_ID, QUERY_ID, FlussStreamWriter, RowsStaged, RowsStored
from fluss.sync import DataTypes, Schema, TableDescriptor, TablePath
from tests.spark.conftest import Backend

pytestmark = pytest.mark.spark

T = DataTypes
EVENTS = Schema.builder().column("id", T.bigint()).build()
CHANGES = {"exactly.once": "true", "write.mode": "changelog"}
ROWS = st.StructType().add("id", st.LongType())


@pytest.fixture
def task() -> Iterator[TaskContext]:
    """The context of a task, which Spark makes in its workers."""
    context = TaskContext._getOrCreate()
    _be(context, "query", 0, 0)
    yield context
    TaskContext._setTaskContext(None)  # type: ignore[arg-type]


def _be(context: TaskContext, query_id: str, batch_id: int, number: int) -> None:
    context._localProperties = {QUERY_ID: query_id, BATCH_ID: str(batch_id)}
    context._partitionId = number


def _writer(backend: Backend, path: TablePath, **options: str) -> FlussStreamWriter:
    source = FlussDataSource({"bootstrap.servers": backend.address, "table": str(path), **options})
    return pickle.loads(pickle.dumps(source.streamWriter(ROWS, False)))  # type: ignore[no-any-return]


def _write(writer: FlussStreamWriter, *ids: int) -> Any:
    batches = [pa.record_batch({"id": pa.array([], pa.int64())}), pa.record_batch({"id": pa.array(ids, pa.int64())})]
    return pickle.loads(pickle.dumps(writer.write(iter(batches))))


def _ids(backend: Backend, path: TablePath) -> list[int]:
    return sorted(backend.rows(path).column("id").to_pylist())


def test_of_several_attempts_the_named_one_counts(ours: Backend, task: TaskContext) -> None:
    path = ours.create("events", EVENTS, 2)
    writer = _writer(ours, path, **{"exactly.once": "true"})
    _write(writer, 1, 2, 3)
    second = _write(writer, 1, 2, 3)
    _write(writer, 1, 2, 3)
    _be(task, "query", 0, 1)
    other = _write(writer, 4)
    assert _ids(ours, path) == []
    writer.commit([second, other], 0)
    assert _ids(ours, path) == [1, 2, 3, 4]


def test_a_repeated_micro_batch_is_not_stored_again(ours: Backend, task: TaskContext) -> None:
    path = ours.create("events", EVENTS)
    writer = _writer(ours, path, **{"exactly.once": "true"})
    first = _write(writer, 1, 2)
    writer.commit([first], 0)
    # A driver that was killed after the commit runs the micro-batch again, cut differently or not.
    again = _write(writer, 1, 2)
    _writer(ours, path, **{"exactly.once": "true"}).commit([again], 0)
    writer.commit([first], 0)
    assert _ids(ours, path) == [1, 2]
    # Another query is another matter.
    _be(task, "another query", 0, 0)
    writer.commit([_write(writer, 1, 2)], 0)
    assert _ids(ours, path) == [1, 1, 2, 2]


def test_what_was_aborted_can_be_written_again(ours: Backend, task: TaskContext) -> None:
    path = ours.create("events", EVENTS)
    writer = _writer(ours, path, **{"exactly.once": "true"})
    aborted = _write(writer, 1)
    writer.abort([None, aborted], 0)
    with pytest.raises(InvalidRequestError, match="0 of 1 requests are staged"):
        writer.commit([aborted], 0)
    writer.commit([_write(writer, 1)], 0)
    # Spark aborts when a commit fails, also if it failed after all was done.
    writer.abort([aborted], 0)
    writer.abort([None], 0)
    assert _ids(ours, path) == [1]


def test_tasks_without_rows_stage_nothing(ours: Backend, task: TaskContext) -> None:
    path = ours.create("events", EVENTS)
    writer = _writer(ours, path, **{"exactly.once": "true"})
    assert _write(writer) == RowsStored(0)
    assert writer.write(iter([])) == RowsStored(0)
    writer.commit([RowsStored(0), RowsStored(0)], 0)
    writer.commit([], 1)
    _be(task, "query", 2, 0)
    message = _write(writer, 7)
    assert isinstance(message, RowsStaged)
    assert message.row_count == 1
    writer.commit([RowsStored(0), message], 2)
    assert _ids(ours, path) == [7]


def test_without_exactly_once_rows_are_there_before_the_commit(ours: Backend) -> None:
    path = ours.create("events", EVENTS)
    writer = _writer(ours, path)
    message = _write(writer, 1, 2)
    assert message == RowsStored(2)
    assert _ids(ours, path) == [1, 2]
    writer.commit([message], 0)
    writer.abort([message, None], 1)
    assert _ids(ours, path) == [1, 2]


def test_deletes_in_missing_partitions_belong_to_what_a_micro_batch_is_known_by(
    ours: Backend, task: TaskContext
) -> None:
    schema = Schema.builder().column("id", T.bigint()).column("day", T.string()).primary_key(["id", "day"]).build()
    path, admin = TablePath(ours.database, "days"), ours.connection.get_admin()
    admin.create_table(path, TableDescriptor(schema, bucket_count=1, partition_keys=["day"]))
    changes = pa.record_batch({"_change_type": ["-D", "-D"], "id": [1, 2], "day": ["d1", "d2"]})
    struct = st.StructType().add("_change_type", st.StringType()).add("id", st.LongType()).add("day", st.StringType())
    source = FlussDataSource({"bootstrap.servers": ours.address, "table": str(path), **CHANGES})
    writer = source.streamWriter(struct, False)
    writer.commit([writer.write(iter([changes]))], 0)
    assert admin.list_partition_infos(path) == []
    # The same micro-batch again is the same, whichever partitions there are by now; another one is not.
    admin.create_partition(path, {"day": "d2"})
    writer.commit([writer.write(iter([changes]))], 0)
    with pytest.raises(InvalidRequestError, match="other rows"):
        writer.commit([writer.write(iter([changes.slice(1)]))], 0)


def test_exactly_once_outside_a_stream_is_refused(ours: Backend) -> None:
    writer = _writer(ours, ours.create("events", EVENTS), **{"exactly.once": "true"})
    with pytest.raises(InvalidRequestError, match="does not say which query this is"):
        _write(writer, 1)


def test_a_table_made_anew_during_the_write_is_noticed(ours: Backend) -> None:
    path = ours.create("events", EVENTS)
    writer = _writer(ours, path)
    ours.connection.get_admin().drop_table(path)
    ours.create("events", EVENTS)
    with pytest.raises(InvalidRequestError, match="was dropped and created again during the write"):
        _write(writer, 1)
    assert _ids(ours, path) == []
