"""When tables are due, and which job has which: by clocks that the test moves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fluss.model.clock import wall_clock_ms
from fluss.model.errors import FlussError
from fluss.model.paths import TablePath
from fluss.model.staging import Assigned
from fluss.server.tables.lake import SILENCE_MS_MAX, Tiering
from fluss.storage.catalog.catalog import AlteredTable, Catalog, TableEntry

MINUTE_MS = 60_000
LATER_MS = 1_000_000_000  # than all that the catalog has done


class Clock:
    def __init__(self) -> None:
        self.now_ms = 5_000

    def __call__(self) -> int:
        return self.now_ms

    def wall(self) -> int:
        return wall_clock_ms() + LATER_MS + self.now_ms


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    opened = await Catalog.open(tmp_path / "catalog.db")
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tiering(catalog: Catalog, clock: Clock) -> Tiering:
    return Tiering(catalog, clock, clock.wall)


def table_json(enabled: bool = True, **more: str) -> str:
    properties = {"table.datalake.enabled": str(enabled).lower(), **more}
    return json.dumps({"properties": properties})


async def make(catalog: Catalog, name: str = "t", **more: str) -> TableEntry:
    return await catalog.create_table(TablePath("fluss", name), table_json(**more), "{}", 1)


async def alter(catalog: Catalog, name: str, text: str) -> None:
    await catalog.alter_table(TablePath("fluss", name), lambda *_: AlteredTable(text))


def taken(tiering: Tiering) -> Assigned:
    assigned = tiering.request()
    assert assigned is not None
    return assigned


def key(assigned: Assigned) -> tuple[int, int, int]:
    return assigned.table_id, assigned.coordinator_epoch, assigned.tiering_epoch


async def test_a_table_is_due_its_freshness_after_the_start(catalog: Catalog, clock: Clock, tiering: Tiering) -> None:
    await catalog.create_table(TablePath("fluss", "plain"), "{}", "{}", 1)
    await make(catalog, "off", enabled=False)
    entry = await make(catalog)
    clock.now_ms += 3 * MINUTE_MS - 1
    assert tiering.request() is None
    clock.now_ms += 1
    assigned = taken(tiering)
    assert (assigned.table_id, assigned.table_path) == (entry.table_id, entry.path)
    assert tiering.request() is None


async def test_a_new_table_is_due_its_freshness_after_it_was_made(catalog: Catalog, clock: Clock) -> None:
    tiering = Tiering(catalog, clock, wall_clock_ms)
    clock.now_ms += 60 * MINUTE_MS
    await make(catalog)
    # It was made an instant ago, so the time since then is all that may be missing.
    assert tiering.request() is None
    clock.now_ms += 3 * MINUTE_MS
    assert tiering.request() is not None


async def test_a_finished_round_waits_for_the_next(catalog: Catalog, clock: Clock, tiering: Tiering) -> None:
    await make(catalog)
    clock.now_ms += 3 * MINUTE_MS
    first = taken(tiering)
    clock.now_ms += MINUTE_MS
    tiering.finish(*key(first))
    clock.now_ms += MINUTE_MS
    tiering.finish(*key(first))
    clock.now_ms += 2 * MINUTE_MS - 1
    assert tiering.request() is None
    clock.now_ms += 1
    second = taken(tiering)
    assert second.tiering_epoch > first.tiering_epoch


async def test_heartbeats_keep_a_table_and_silence_loses_it(catalog: Catalog, clock: Clock, tiering: Tiering) -> None:
    await make(catalog)
    clock.now_ms += 3 * MINUTE_MS
    first = taken(tiering)
    for _ in range(5):
        clock.now_ms += SILENCE_MS_MAX - 1
        tiering.renew(*key(first))
    clock.now_ms += SILENCE_MS_MAX
    for late in (tiering.renew, tiering.finish, tiering.fail):
        with pytest.raises(FlussError, match="ask for a table again") as raised:
            late(*key(first))
        assert raised.value.error_code == 50
    second = taken(tiering)
    assert second.tiering_epoch > first.tiering_epoch
    tiering.renew(*key(second))


@pytest.mark.parametrize("way", ["fail", "finish_early"])
async def test_due_again_at_once(catalog: Catalog, clock: Clock, tiering: Tiering, way: str) -> None:
    await make(catalog)
    clock.now_ms += 3 * MINUTE_MS
    first = taken(tiering)
    getattr(tiering, way)(*key(first))
    second = taken(tiering)
    assert second.tiering_epoch > first.tiering_epoch
    tiering.finish(*key(second))
    assert tiering.request() is None


async def test_the_one_that_waits_longest_comes_first(catalog: Catalog, clock: Clock, tiering: Tiering) -> None:
    for name, freshness in (("slow", "10 min"), ("fast", "1 min"), ("middle", "5 min")):
        await make(catalog, name, **{"table.datalake.freshness": freshness})
    clock.now_ms += 20 * MINUTE_MS
    assert [taken(tiering).table_path.table for _ in range(3)] == ["fast", "middle", "slow"]
    assert tiering.request() is None


async def test_alterations_and_drops_take_effect(catalog: Catalog, clock: Clock, tiering: Tiering) -> None:
    entry = await make(catalog, **{"table.datalake.freshness": "1 h"})
    assert tiering.request() is None
    clock.now_ms += 2 * MINUTE_MS
    await alter(catalog, "t", table_json(**{"table.datalake.freshness": "1 min"}))
    first = taken(tiering)
    await alter(catalog, "t", table_json(enabled=False))
    with pytest.raises(FlussError, match="not tiered any more") as raised:
        tiering.renew(*key(first))
    assert raised.value.error_code == 7
    clock.now_ms += 10 * MINUTE_MS
    assert tiering.request() is None
    await alter(catalog, "t", table_json())
    again = taken(tiering)
    await catalog.drop_table(entry.path)
    with pytest.raises(FlussError, match="was dropped"):
        tiering.finish(*key(again))
    assert tiering.request() is None


async def test_another_start_of_the_server_knows_nothing(catalog: Catalog, clock: Clock, tiering: Tiering) -> None:
    await make(catalog)
    clock.now_ms += 3 * MINUTE_MS
    first = taken(tiering)
    later = Tiering(catalog, clock, clock.wall)
    with pytest.raises(FlussError, match="started anew") as raised:
        later.renew(*key(first))
    assert raised.value.error_code == 23
    assert later.request() is None
    clock.now_ms += 3 * MINUTE_MS
    assert later.request() is not None
