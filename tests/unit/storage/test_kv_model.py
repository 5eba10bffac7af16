"""Random puts, reads, failures and restarts against a dict: table, changelog and model never differ."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TablePath
from fluss.storage import failpoints
from fluss.storage.log.writer_state import REMEMBERED_BATCHES
from tests.kit.storage.kv_tables import Row, Table, by_id, fold, opened, row
from tests.kit.storage.logs import crash_image

T = TablePath("fluss", "t")
KEYS = 40
ROUNDS = 4
PUTS = 40
FAILURE_SHARE = 0.1


@dataclass
class Version:
    """What a put left at a key, and the log offset behind it, once that is known."""

    kept: Row | None
    end_offset: int | None = None


@dataclass
class Model:
    """The history of every key, in the order of puts."""

    chance: random.Random
    versions: dict[int, list[Version]] = field(default_factory=dict)
    applied: dict[int, int] = field(default_factory=dict)  # per key, the version that reads must have reached

    def change(self, key: int, kept: Row | None) -> Version:
        version = Version(kept)
        self.versions.setdefault(key, [Version(None, 0)]).append(version)
        return version

    def rows(self) -> list[Row]:
        return by_id(versions[-1].kept for versions in self.versions.values())


async def put_some(table: Table, model: Model, sequence: int, writer_id: int) -> None:
    """One batch, sent again until it is applied."""
    chance = model.chance
    keys = [chance.randrange(KEYS) for _ in range(chance.randrange(1, 8))]
    rows = [row(key, f"{writer_id}/{sequence}", chance.randrange(100)) for key in keys]
    deletes = [chance.randrange(KEYS) for _ in range(chance.randrange(3))]
    batch = table.batch(rows, deletes, writer_id=writer_id, sequence=sequence)
    put = table.kv().put(batch)
    final: dict[int, Row | None] = {kept["id"]: kept for kept in rows} | dict.fromkeys(deletes)
    places = {}
    for key, kept in final.items():
        version = model.change(key, kept)
        places[key] = (len(model.versions[key]) - 1, version)
    if chance.random() < 0.2:
        table.kv().put(batch)
    while True:
        try:
            end_offset = await put.appended
            for _, version in places.values():
                version.end_offset = end_offset
            assert await put.applied == end_offset
            break
        except FlussError as error:
            # Behind one that failed before it came to the log, a batch is out of order until that was sent again.
            if not error.is_retriable and error.error_code != ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION:
                raise
            put = table.kv().put(batch)
    for key, (place, _) in places.items():
        model.applied[key] = max(model.applied.get(key, 0), place)


async def read_some(table: Table, model: Model) -> None:
    key = model.chance.randrange(KEYS)
    at_least = model.applied.get(key, 0)
    try:
        found = await table.get(key)
    except FlussError as error:
        if not error.is_retriable:
            raise
        return
    high_watermark = table.storage.bucket(table.bucket()).high_watermark
    versions = model.versions.get(key, [Version(None, 0)])
    possible = [
        version.kept
        for place, version in enumerate(versions)
        if place >= at_least and version.end_offset is not None and version.end_offset <= high_watermark
    ]
    assert found in possible, f"key {key}: {found} is none of {possible}"


async def check(table: Table, model: Model) -> None:
    expected = model.rows()
    assert await table.all_rows() == expected
    assert by_id(fold(table.changelog()).values()) == expected
    assert await table.kv().row_count() == len(expected)


@pytest.mark.parametrize("with_failures", [False, True])
async def test_against_a_model(tmp_path: Path, with_failures: bool) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    model = Model(random.Random(seed))
    root = tmp_path / "data"
    async with opened(root) as storage:
        await Table.create(storage)
    for turn in range(ROUNDS):
        async with opened(root, segment_size_bytes=20_000) as storage:
            table = Table(storage, T)
            await check(table, model)

            async def writes(table: Table = table, writer_id: int = turn) -> None:
                # Five at a time, as clients do: the log remembers so many of a writer. The sequence fixes their order.
                sent: list[asyncio.Task[None]] = []
                for sequence in range(PUTS):
                    if with_failures and model.chance.random() < FAILURE_SHARE:
                        failpoints.arm(f"kv.commit.{model.chance.choice(['before', 'after'])}_commit:1:eio")
                    if sequence >= REMEMBERED_BATCHES:
                        await sent[sequence - REMEMBERED_BATCHES]
                    sent.append(asyncio.ensure_future(put_some(table, model, sequence, writer_id)))
                    await asyncio.sleep(0)
                await asyncio.gather(*sent)

            writing = asyncio.ensure_future(writes())
            while not writing.done():
                await asyncio.sleep(0)
                await read_some(table, model)
            await writing
            failpoints.disarm()
            await table.kv().settle()
            await check(table, model)
            root_after = crash_image(root, f"image{turn}") if model.chance.random() < 0.6 else root
        root = root_after
    async with opened(root) as storage:
        await check(Table(storage, T), model)
