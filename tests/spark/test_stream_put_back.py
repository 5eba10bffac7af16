"""Exactly-once streams whose checkpoint was put back: they go on, or fail with what to do, and never drop rows."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from fluss.sync import Config, FlussConnection, TablePath
from fluss.testing import FlussServer
from tests.kit.command import fluss as command
from tests.spark.conftest import Backend
from tests.spark.feed import EVENTS, Feed

pytestmark = pytest.mark.spark

ROWS = 200
EXACTLY_ONCE = {"exactly.once": "true"}


@pytest.fixture
def backend(tmp_path: Path, spark: SparkSession) -> Iterator[Backend]:
    """A server of its own, which may be restarted."""
    with FlussServer(tmp_path / "data") as server:
        config = Config({"bootstrap.servers": server.bootstrap_servers})
        with FlussConnection.create(config) as connection:
            yield Backend(spark, server, connection, "fluss")


@pytest.fixture
def feed(tmp_path: Path, spark: SparkSession) -> Feed:
    """Two micro-batches."""
    made = Feed(tmp_path, spark)
    for number in range(2):
        made.add(number, events(number))
    return made


def events(value: int) -> pa.Table:
    return pa.table({"id": list(range(ROWS)), "value": [value] * ROWS})


def counts(backend: Backend, path: TablePath) -> dict[int, int]:
    """How often each value is in the table."""
    rows = backend.connection.get_table(path).new_scan().to_arrow()
    return dict(Counter(rows.column("value").to_pylist()))


def fails(run: Callable[[], None]) -> str:
    """What the exception of a stream says."""
    with pytest.raises(StreamingQueryException) as raised:
        run()
    return str(raised.value)


def advice(message: str) -> list[str]:
    """The commands that a refusal names, as arguments."""
    found = [part.split()[1:] for part in message.split("`") if part.startswith("fluss staged ")]
    assert [arguments[1] for arguments in found] == ["accept", "reset"]
    accept, _ = found
    return accept


def put_back(backend: Backend, feed: Feed, path: TablePath, frame: DataFrame) -> str:
    """Run four micro-batches, go back to the checkpoint after two and meet other rows: what the stream fails with."""
    feed.run(frame, backend, path, **EXACTLY_ONCE)
    saved = feed.checkpoint.with_name("saved")
    shutil.copytree(feed.checkpoint, saved)
    for number in (2, 3):
        feed.add(number, events(number))
    feed.run(frame, backend, path, **EXACTLY_ONCE)
    shutil.rmtree(feed.checkpoint)
    saved.rename(feed.checkpoint)
    for number in (2, 3):
        feed.add(number, events(number * 10))
    message = fails(lambda: feed.run(frame, backend, path, **EXACTLY_ONCE))
    assert "Batch 2 of query" in message
    assert f"batch 3 is the last one committed to table {path}" in message
    assert counts(backend, path) == dict.fromkeys(range(4), ROWS)
    return message


def settle(backend: Backend, *arguments: str) -> None:
    done = command(*arguments, "--yes", bootstrap=backend.address)
    assert done.returncode == 0, done.stderr
    assert isinstance(backend.server, FlussServer)
    backend.server.restart()


def test_a_checkpoint_put_back_is_refused_and_then_accepted(backend: Backend, feed: Feed) -> None:
    path, frame = backend.create("events", EVENTS, 3), feed.stream().repartition(2)
    accept = advice(put_back(backend, feed, path, frame))
    settle(backend, *accept)
    feed.add(4, events(4))
    feed.run(frame, backend, path, **EXACTLY_ONCE)
    # What came again is dropped because the operator said so, what follows is stored.
    assert counts(backend, path) == dict.fromkeys(range(5), ROWS)


@pytest.mark.full
def test_a_checkpoint_put_back_is_refused_and_then_reset(backend: Backend, feed: Feed) -> None:
    path, frame = backend.create("events", EVENTS, 3), feed.stream().repartition(2)
    message = put_back(backend, feed, path, frame)
    reset = next(part for part in message.split("`") if part.startswith("fluss staged reset"))
    assert reset.endswith(" --to 1")
    settle(backend, *reset.split()[1:])
    feed.run(frame, backend, path, **EXACTLY_ONCE)
    assert counts(backend, path) == dict.fromkeys((0, 1, 2, 3, 20, 30), ROWS)


def forget_last_commit(feed: Feed, batch_id: int) -> None:
    """As if the driver was killed when the table had the rows and Spark had not noted it."""
    (feed.checkpoint / "commits" / str(batch_id)).unlink()
    (feed.checkpoint / "commits" / f".{batch_id}.crc").unlink(missing_ok=True)


def test_a_batch_that_spark_repeats_is_stored_once(backend: Backend, feed: Feed) -> None:
    path = backend.create("events", EVENTS, 3)
    feed.run(feed.stream().repartition(2), backend, path, **EXACTLY_ONCE)
    forget_last_commit(feed, 1)
    feed.add(2, events(2))
    # Cut and ordered otherwise than at first.
    feed.run(feed.stream().repartition(3, "id"), backend, path, **EXACTLY_ONCE)
    assert counts(backend, path) == dict.fromkeys(range(3), ROWS)


@pytest.mark.full
def test_a_query_that_is_not_deterministic(backend: Backend, feed: Feed) -> None:
    path = backend.create("events", EVENTS, 2)
    frame = feed.stream().selectExpr("CAST(rand() * 9e15 AS BIGINT) AS id", "value")
    feed.run(frame, backend, path, **EXACTLY_ONCE)
    forget_last_commit(feed, 1)
    feed.add(2, events(2))
    message = fails(lambda: feed.run(frame, backend, path, **EXACTLY_ONCE))
    assert f"with other rows ({ROWS} rows now, {ROWS} then)" in message
    settle(backend, *advice(message))
    feed.run(frame, backend, path, **EXACTLY_ONCE)
    assert counts(backend, path) == dict.fromkeys(range(3), ROWS)
