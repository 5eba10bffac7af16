"""Auto-partitioned tables: partitions made ahead and dropped by age, with a clock in the test's hand."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fluss.model.clock import NO_SETTLING, SETTLE_MS
from fluss.model.clock import Clock as TrustedClock
from fluss.model.errors import FlussError
from fluss.model.paths import TablePath
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.tables.jobs import AutoPartitioner
from fluss.storage import failpoints
from fluss.storage.catalog.catalog import Catalog, CatalogLimits, TableEntry
from tests.kit.thread_server import RunningServer, Wire, WireError, create_table, path
from tests.unit.server.calls import alter, config
from tests.unit.server.partitioned import create, listed

AUTO = "table.auto-partition."
DAY = dt.timedelta(days=1)


class Clock(TrustedClock):
    def __init__(self) -> None:
        self.now = dt.datetime(2025, 3, 10, 12, tzinfo=dt.UTC)
        super().__init__(NO_SETTLING, wall_ms=lambda: round(self.now.timestamp() * 1_000))


@pytest.fixture
def clock(server: RunningServer) -> Clock:
    made = Clock()
    server.server.context.auto_partitioner.clock = made
    return made


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def properties(**values: str) -> dict[str, str]:
    named = {AUTO + key.replace("_", "-"): value for key, value in values.items()}
    return {f"{AUTO}enabled": "true", f"{AUTO}time-zone": "UTC", **named}


def names(wire: Wire, table: str = "t") -> list[str]:
    return ["$".join(values.values()) for _, values in listed(wire, table=table)]


def run(server: RunningServer) -> None:
    server.run(server.server.context.auto_partitioner.run_all())


# --- over the wire


def test_partitions_are_there_when_the_table_is(server: RunningServer, wire: Wire, clock: Clock) -> None:
    create_table(wire, partition_key=["name"], properties=properties())
    assert names(wire) == ["20250310", "20250311"]
    stored = json.loads(wire.call(api_keys.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path())).table_json)
    assert stored["properties"] == {"table.replication.factor": "1", "table.log.ttl": "0 s", **properties()}


def test_time_goes_on(server: RunningServer, wire: Wire, clock: Clock) -> None:
    create_table(wire, partition_key=["name"], properties=properties(num_precreate="1", num_retention="2"))
    seen = []
    for _ in range(4):
        seen.append(names(wire))
        clock.now += DAY
        run(server)
        run(server)
    assert seen == [
        ["20250310"],
        ["20250310", "20250311"],
        ["20250310", "20250311", "20250312"],
        ["20250311", "20250312", "20250313"],
    ]


def test_only_names_of_the_unit_are_dropped(server: RunningServer, wire: Wire, clock: Clock) -> None:
    plain = {**properties(), f"{AUTO}enabled": "false"}
    create_table(wire, partition_key=["name"], properties=plain)
    for name in ("20200101", "2020", "0000", "2020-01-01", "20200230"):
        create(wire, {"name": name})
    alter(wire, config_changes=[config(f"{AUTO}enabled", "true")])
    assert names(wire) == ["0000", "2020", "2020-01-01", "20200230", "20250310", "20250311"]


def test_several_partition_keys(server: RunningServer, wire: Wire, clock: Clock) -> None:
    create_table(wire, partition_key=["id", "name"], properties=properties(key="name", num_retention="1"), buckets=1)
    stored = json.loads(wire.call(api_keys.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path())).table_json)
    assert stored["properties"][f"{AUTO}num-precreate"] == "0"
    assert names(wire) == []
    for number in ("1", "2"):
        for day in ("20250309", "20250310"):
            create(wire, {"id": number, "name": day})
    clock.now += DAY
    run(server)
    assert names(wire) == ["1$20250310", "2$20250310"]


def test_altering_takes_effect_at_once(server: RunningServer, wire: Wire, clock: Clock) -> None:
    create_table(wire, partition_key=["name"], properties={})
    assert names(wire) == []
    alter(wire, config_changes=[config(f"{AUTO}enabled", "true"), config(f"{AUTO}num-precreate", "1")])
    (today,) = names(wire)
    assert len(today) == 8
    alter(wire, config_changes=[config(f"{AUTO}num-precreate", "4")])
    assert len(names(wire)) == 4
    clock.now += 30 * DAY
    alter(wire, config_changes=[config(f"{AUTO}enabled", "false")])
    run(server)
    assert len(names(wire)) == 4, "nothing happens by itself any more"


def test_partitions_made_by_hand(server: RunningServer, wire: Wire, clock: Clock) -> None:
    create_table(wire, partition_key=["name"], properties=properties(num_retention="2"))
    create(wire, {"name": "20250308"})
    for name in ("20250307", "today", "2025030"):
        with pytest.raises(WireError) as raised:
            create(wire, {"name": name})
        assert raised.value.code == 43
    create_table(wire, "forever", partition_key=["name"], properties=properties(num_retention="-1"))
    create(wire, {"name": "19990101"}, "forever")


@pytest.mark.parametrize(
    ("keys", "values", "code", "text"),
    [
        ([], {}, 39, "partition keys"),
        (["name"], {"time_unit": "WEEK"}, 39, "HOUR"),
        (["name"], {"time_zone": "Nowhere"}, 39, "time-zone"),
        (["name"], {"num_precreate": "1001"}, 39, "num-precreate"),
        (["name"], {"time_format": "dd.MM.yyyy"}, 15, "time-format"),
        (["id", "name"], {"key": "score"}, 15, "not one of"),
        (["id", "name"], {}, 15, "auto-partition.key"),
        (["id", "name"], {"key": "name", "num_precreate": "1"}, 15, "must be 0"),
    ],
)
def test_rules(wire: Wire, keys: list[str], values: dict[str, str], code: int, text: str) -> None:
    with pytest.raises(WireError, match=text) as raised:
        create_table(wire, partition_key=keys, properties=properties(**values))
    assert raised.value.code == code


def test_dates_as_times(server: RunningServer, wire: Wire, clock: Clock) -> None:
    def with_dates(**values: str) -> Any:
        columns = [{"name": "day", "data_type": {"type": "DATE"}, "id": 0}]
        schema = {"version": 1, "columns": columns, "highest_field_id": 0}
        return create_table(wire, partition_key=["day"], schema=schema, properties=properties(**values))

    for values in ({}, {"time_unit": "MONTH"}):
        with pytest.raises(WireError, match="DATE") as raised:
            with_dates(**values)
        assert raised.value.code == 15
    with_dates(time_format="yyyy-MM-dd")
    assert names(wire) == ["2025-03-10", "2025-03-11"]


def test_what_was_missed_while_the_server_was_down_is_made_good(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.connect() as wire:
        clock = Clock()
        server.server.context.auto_partitioner.clock = clock
        create_table(wire, partition_key=["name"], properties=properties())
        assert names(wire) == ["20250310", "20250311"]
    with RunningServer(tmp_path) as server, server.connect() as wire:
        # By the real clock, these are long past.
        server.server.context.storage.clock.confirm()
        server.run(server.server.context.auto_partitioner.run_all())
        assert "20250310" not in names(wire)
        assert len(names(wire)) == 2


# --- on the catalog


async def opened(tmp_path: Path, **limits: int) -> Catalog:
    return await Catalog.open(tmp_path / "catalog.db", CatalogLimits(**limits))


async def table(catalog: Catalog, **values: str) -> TableEntry:
    table_json = json.dumps({"properties": properties(**values)})
    return await catalog.create_table(TablePath("fluss", "t"), table_json, "{}", 1, partition_keys=["dt"])


def made(catalog: Catalog, entry: TableEntry) -> list[str]:
    return [partition.name for partition in catalog.partitions(entry)]


async def test_a_run_that_fails_is_made_good_by_the_next(tmp_path: Path) -> None:
    catalog = await opened(tmp_path)
    entry = await table(catalog, num_retention="1")
    clock = Clock()
    partitioner = AutoPartitioner(catalog, clock=clock)
    await catalog.create_partitions(entry.table_id, ["20250101", "20250310"])
    failpoints.arm("catalog.commit.before_commit:1:enospc")
    await partitioner.run_all()
    assert made(catalog, entry) == ["20250101", "20250310"]
    failpoints.arm("catalog.commit.before_commit:2:enospc")
    await partitioner.run_all()
    assert made(catalog, entry) == ["20250310"]
    await partitioner.run_all()
    assert made(catalog, entry) == ["20250310", "20250311"]
    await catalog.close()


async def test_limits_stop_a_run_and_not_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalog = await opened(tmp_path, partitions_per_table_max=3)
    entry = await table(catalog, num_precreate="4")
    await AutoPartitioner(catalog, clock=Clock()).run_all()
    assert made(catalog, entry) == []
    assert "a table may have 3" in caplog.text
    await catalog.close()


async def test_a_rule_that_can_not_be_read_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalog = await opened(tmp_path)
    entry = await table(catalog, time_zone="Gone/Town")
    await AutoPartitioner(catalog, clock=Clock()).run_all()
    assert made(catalog, entry) == []
    assert "Gone/Town" in caplog.text
    await catalog.close()


async def test_the_timer(tmp_path: Path) -> None:
    catalog = await opened(tmp_path)
    entry = await table(catalog, num_precreate="1")
    clock = Clock()
    partitioner = AutoPartitioner(catalog, clock=clock, check_interval_s=0.01)
    partitioner.start()
    for day in ("20250310", "20250311"):
        async with asyncio.timeout(10):
            while day not in made(catalog, entry):
                await asyncio.sleep(0.005)
        clock.now += DAY
    await partitioner.stop()
    await catalog.drop_table(entry.path)
    await partitioner.run(entry.table_id)
    with pytest.raises(FlussError):
        await catalog.create_partitions(entry.table_id, ["x"])
    await catalog.close()


@pytest.mark.parametrize("jump", [8 * DAY, -8 * DAY, 18_250 * DAY, -18_250 * DAY])
async def test_a_jump_makes_no_partitions_and_drops_none(tmp_path: Path, jump: dt.timedelta) -> None:
    world, elapsed = Clock(), dt.timedelta()
    clock = TrustedClock(
        SETTLE_MS,
        wall_ms=lambda: round(world.now.timestamp() * 1_000),
        elapsed_ms=lambda: round(elapsed.total_seconds() * 1_000),
    )
    catalog = await opened(tmp_path)
    entry = await table(catalog, num_retention="1")
    partitioner = AutoPartitioner(catalog, clock)
    await catalog.create_partitions(entry.table_id, ["20250101"])
    await partitioner.run_all()
    # Whether the clock is right is not known yet; but rows of today have to go somewhere.
    assert made(catalog, entry) == ["20250101", "20250310", "20250311"]
    world.now += jump
    await partitioner.run_all()
    assert made(catalog, entry) == ["20250101", "20250310", "20250311"]
    # Time goes on meanwhile.
    world.now += DAY
    elapsed += DAY
    world.now -= jump
    await partitioner.run_all()
    assert made(catalog, entry) == ["20250310", "20250311", "20250312"]
    await catalog.close()
