"""`table.changes()`: current rows, then live changes, stopped and resumed anywhere."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss
import fluss.aio
import fluss.sync
from fluss.client import runtime
from fluss.client.current import changes as changes_module
from fluss.client.current import current_rows
from fluss.testing import FlussServer
from tests.kit.followers import COLUMNS, Follower, apply, new_table, row, upsert
from tests.unit.api.conftest import Client

DEADLINE_S = 30.0

_numbers = itertools.count()


@pytest.fixture
def connection(api_server: FlussServer) -> Iterator[Any]:
    connected = fluss.sync.FlussConnection.create(fluss.Config({"bootstrap.servers": api_server.bootstrap_servers}))
    yield connected
    connected.close()


@pytest.fixture
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows per answer, so that readers stop in the middle of a bucket's rows."""
    monkeypatch.setattr(current_rows, "ANSWER_SIZE_BYTES_MAX", 100)


@pytest.fixture
def make(connection: Any) -> Callable[..., Any]:
    return lambda **options: new_table(connection, f"changes_{next(_numbers)}", **options)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline


@pytest.mark.usefixtures("short_answers")
@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"table.changelog.image": "WAL"},
        {"table.kv.format": "INDEXED", "table.log.format": "INDEXED"},
        {"table.log.format": "COMPACTED"},
    ],
    ids=["default", "wal", "indexed", "compacted"],
)
def test_what_a_reader_got_is_the_table_wherever_it_stopped(make: Callable[..., Any], properties: Any) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    follower = Follower(make(properties=properties), seed, strict="table.changelog.image" not in properties)
    for _ in range(20):
        follower.write()
    follower.run(120)
    assert follower.resumed


@pytest.mark.usefixtures("short_answers")
def test_a_reader_outlives_the_server_in_the_middle_of_current_rows(tmp_path: Path) -> None:
    with FlussServer(tmp_path / "data") as server:
        connection = fluss.sync.FlussConnection.create(fluss.Config({"bootstrap.servers": server.bootstrap_servers}))
        table = new_table(connection, "t", bucket_count=1)
        upsert(table, [row(key) for key in range(300)])
        seen: dict[int, Any] = {}
        changes = table.changes()

        def follow() -> dict[int, Any]:
            apply(seen, changes.poll(1_000))
            return seen

        until(lambda: len(follow()) > 100)
        assert len(seen) < 300
        upsert(table, [row(key, "b") for key in range(0, 300, 3)], [[key] for key in range(1, 300, 3)])
        server.restart()
        expected = {key: row(key, "b" if key % 3 == 0 else "a") for key in range(300) if key % 3 != 1}
        until(lambda: follow() == expected)
        upsert(table, [row(500)])
        until(lambda: 500 in follow())
        found, offsets = table.new_scan().to_arrow_with_offsets()
        assert {each["id"]: each for each in found.to_pylist()} == seen
        assert changes.position.buckets[0].offset == next(iter(offsets.values()))
        changes.close()
        connection.close()


def test_current_rows_have_the_offset_that_changes_go_on_from(make: Callable[..., Any]) -> None:
    table = make(bucket_count=1)
    upsert(table, [row(1), row(2)], [[2]])
    changes = table.changes()
    found = changes.poll(10_000).to_pylist()
    assert found == [{"_change_type": "+I", "_log_offset": 3, "_commit_timestamp": None, **row(1)}]
    upsert(table, [row(1, "b")])
    live = changes.poll(10_000)
    assert live["_change_type"].to_pylist() == ["-U", "+U"]
    assert live["_log_offset"].to_pylist() == [3, 4]
    assert live["_commit_timestamp"].null_count == 0
    assert live.schema == changes.arrow_schema
    changes.close()
    with pytest.raises(fluss.FlussError, match="closed"):
        changes.poll(10)


def test_positions_know_their_table(make: Callable[..., Any]) -> None:
    table, other = make(), make()
    position = table.changes("latest").position
    with pytest.raises(fluss.InvalidRequestError, match="another table"):
        other.changes(position)
    with pytest.raises(fluss.InvalidRequestError, match="Changes start at"):
        table.changes("beginning")
    with pytest.raises(fluss.InvalidRequestError, match="timeout_ms"):
        table.changes().poll(-1)


def test_other_starts(make: Callable[..., Any]) -> None:
    table = make(bucket_count=1)
    upsert(table, [row(1), row(1, "b")])
    before_ms = max(
        item.timestamp() for item in table.changes("earliest").poll(10_000)["_commit_timestamp"].to_pylist()
    )
    latest = table.changes(fluss.OffsetSpec.latest())
    until(lambda: time.time() > before_ms + 0.01)
    since_ms = int(time.time() * 1000)
    upsert(table, [row(1, "c")])
    for changes in (latest, table.changes(fluss.OffsetSpec.timestamp(since_ms))):
        found = changes.poll(10_000)
        assert found["_change_type"].to_pylist() == ["-U", "+U"]
        assert found["name"].to_pylist() == ["b", "c"]
    assert table.changes("earliest").poll(10_000)["_change_type"].to_pylist() == ["+I", "-U", "+U", "-U", "+U"]


def test_a_log_table(connection: Any) -> None:
    path = fluss.TablePath("fluss", f"changes_{next(_numbers)}")
    connection.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(COLUMNS), bucket_count=1))
    table = connection.get_table(path)
    writer = table.new_append().create_writer()
    writer.append(row(1))
    writer.flush()
    changes = table.changes()
    found = changes.poll(10_000)
    assert found["_change_type"].to_pylist() == ["+A"]
    assert found["_log_offset"].to_pylist() == [0]
    writer.append(row(2))
    writer.flush()
    assert table.changes(changes.position).poll(10_000)["id"].to_pylist() == [2]


@pytest.mark.parametrize("start", ["snapshot", "earliest", "latest"])
def test_partitions_come_and_go(connection: Any, monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    monkeypatch.setattr(changes_module, "PARTITION_LOOK_INTERVAL_S", 0.05)
    admin = connection.get_admin()
    path = fluss.TablePath("fluss", f"changes_{next(_numbers)}")
    columns = pa.schema([("id", pa.int32()), ("region", pa.string())])
    descriptor = fluss.TableDescriptor(
        fluss.Schema(columns, ["id", "region"]), partition_keys=["region"], bucket_count=2
    )
    admin.create_table(path, descriptor)
    table = connection.get_table(path)
    changes = table.changes(start)
    assert changes.poll(0).num_rows == 0
    seen: list[tuple[int, str]] = []

    def saw(region: str) -> bool:
        found = changes.poll(500)
        seen.extend(zip(found["id"].to_pylist(), found["region"].to_pylist(), strict=True))
        return sorted(seen) == [(key, region) for key in range(10)]

    for region in ("eu", "us"):
        admin.create_partition(path, {"region": region})
        upsert(table, [{"id": key, "region": region} for key in range(10)])
        until(lambda region=region: saw(region))  # type: ignore[misc]
        seen.clear()
        changes = table.changes(changes.position)
    admin.drop_partition(path, {"region": "eu"})
    until(lambda: changes.poll(100).num_rows == 0 and len(changes.position.buckets) == 2)
    upsert(table, [{"id": 99, "region": "us"}])
    until(lambda: 99 in changes.poll(500)["id"].to_pylist())
    changes.close()


def test_iterating_in_every_facade(client: Client) -> None:
    table = client.table(COLUMNS, ["id"])
    writer = table.new_upsert().create_writer()
    writer.upsert(row(1))
    client.do(writer.flush())

    async def first(changes: Any) -> pa.Table:
        async with changes:
            async for found in changes:
                return found

    if client.facade is fluss.aio:
        found = client.do(first(table.changes()))
    else:
        with table.changes() as changes:
            found = next(iter(changes))
    assert found["id"].to_pylist() == [1]


@pytest.mark.usefixtures("short_answers")
def test_a_reader_that_is_cancelled_misses_nothing(api_server: FlussServer, make: Callable[..., Any]) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    written = make()
    expected = {key: row(key) for key in range(300)}
    upsert(written, list(expected.values()))

    async def follow() -> dict[int, Any]:
        config = fluss.Config({"bootstrap.servers": api_server.bootstrap_servers})
        seen: dict[int, Any] = {}
        async with await fluss.aio.FlussConnection.create(config) as connection:
            changes = await (await connection.get_table(written.get_table_path())).changes()
            for number in range(60):
                key = chance.randrange(300)
                expected[key] = row(key, "b", number)
                await asyncio.to_thread(upsert, written, [expected[key]])
                polling = asyncio.ensure_future(changes.poll(5_000))
                await asyncio.sleep(0)
                if chance.random() < 0.5:
                    # The rows have been read, and this loop has not seen anything of it: the worst moment.
                    until(lambda: changes._core._untaken is not None)
                else:
                    await asyncio.wait([polling], timeout=chance.random() / 100)
                polling.cancel()
                await asyncio.wait([polling])
                if not polling.cancelled():
                    apply(seen, polling.result())
            async with asyncio.timeout(DEADLINE_S):
                while seen != expected:
                    apply(seen, await changes.poll(500))
            changes.close()
        return seen

    assert asyncio.run(follow()) == expected


async def test_where_changes_begin_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_run(*_: Any) -> None:
        raise AssertionError("this blocks")

    columns = pa.schema([pa.field("id", pa.int32(), nullable=False)])
    async with fluss.aio.connect("memory:") as connection:
        await connection.get_admin().create_table("t", fluss.TableDescriptor(fluss.Schema(columns, ["id"])))
        table = await connection.get_table("t")
        async with table.new_upsert().create_writer() as writer:
            writer.upsert([1])
        with monkeypatch.context() as patched:
            patched.setattr(runtime, "check_may_block", no_run)
            async with table.changes() as changes:
                assert (await changes.poll(5_000)).column("id").to_pylist() == [1]
            changes = await table.changes("latest")
            assert [item.offset for item in changes.position.buckets] == [1]
            assert (await table.changes().poll(5_000)).num_rows == 1  # the first poll waits, too
            failing = table.changes("beginning")
            for _ in range(2):
                with pytest.raises(fluss.InvalidRequestError, match="Changes start at"):
                    await failing.poll(10)
            with pytest.raises(fluss.InvalidRequestError, match="Changes start at"):
                await failing
        assert [item.offset for item in table.changes("latest").position.buckets] == [1]  # without awaiting
