"""A primary-key table against a dict: batches, duplicates, refused batches, restarts; table, changelog and dict agree.

The storage layer runs here without a server: a million rows take a minute, and each run is a matter of one seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from fluss.formats.batches.kv_batch import HEADER_SIZE_BYTES, decode_records, encode_header, parse_header
from fluss.model.errors import FlussError
from fluss.storage.kv.bucket import KvBucket
from tests.crash.kv_stored import check_whole, open_bucket, open_storage, read_rows, rows_of
from tests.kit.loads.kv_model import KEYS, Batch, Model, Op, fold, random_batch

STEPS = 150
FULL_STEPS = 2_500
FULL_RUNS = 8
RESTART_SHARE = 0.01
CHECK_SHARE = 0.03
BAD_SHARE = 0.08
DUPLICATE_SHARE = 0.08
REMEMBERED = 5  # batches of a writer that a server knows again


def _damaged(batch: Batch, sequence: int) -> tuple[bytearray, tuple[int, ...]]:
    data = batch.encode(0, sequence)
    data[-1] ^= 0x55
    return data, batch.targets


def _cut_row(batch: Batch, sequence: int) -> tuple[bytearray, tuple[int, ...]]:
    """The last row has lost its last byte, and all lengths and the checksum fit."""
    body = bytearray(Batch([Op(7, (7, "whole", 1))]).encode()[HEADER_SIZE_BYTES:])
    body[0] -= 1
    del body[-1]
    header = encode_header(body, schema_id=1, record_count=1, writer_id=0, batch_sequence=sequence)
    return header + body, batch.targets


BAD: dict[str, Callable[[Batch, int], tuple[bytearray, tuple[int, ...]]]] = {
    "a bad checksum": _damaged,
    "a cut row": _cut_row,
    "an unknown schema": lambda batch, sequence: (batch.encode(0, sequence, schema_id=9), batch.targets),
    "targets without the key": lambda batch, sequence: (batch.encode(0, sequence), (1, 2)),
    "a target that is no column": lambda batch, sequence: (batch.encode(0, sequence), (0, 9)),
    "a sequence too far": lambda batch, sequence: (batch.encode(0, sequence + 3), batch.targets),
}


class Machine:
    """A storage, a model, and random steps on both."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self._root = root
        self._chance = chance
        self._model = Model()
        self._sequence = 0
        self._sent: list[tuple[bytearray, tuple[int, ...], int]] = []

    async def run(self, steps: int) -> None:
        self._storage = await open_storage(self._root)
        try:
            for _ in range(steps):
                await self._step()
            await self._check()
            await self._restart()
            await self._check()
        finally:
            await self._storage.close()

    async def _restart(self) -> None:
        await self._storage.close()
        self._storage = await open_storage(self._root)

    async def _kv(self) -> KvBucket:
        return await open_bucket(self._storage)

    async def _step(self) -> None:
        what = self._chance.random()
        if what < RESTART_SHARE:
            await self._restart()
        elif what < RESTART_SHARE + CHECK_SHARE:
            await self._check()
        elif what < RESTART_SHARE + CHECK_SHARE + BAD_SHARE:
            await self._put_bad()
        elif what < RESTART_SHARE + CHECK_SHARE + BAD_SHARE + DUPLICATE_SHARE and self._sent:
            await self._put_again()
        else:
            await self._put_some()

    async def _put_some(self) -> None:
        """Several at once, so that later ones are folded before the first are durable."""
        kv = await self._kv()
        puts = []
        for _ in range(self._chance.randint(1, 6)):
            batch = random_batch(self._chance)
            data = batch.encode(0, self._sequence)
            puts.append(kv.put(memoryview(bytearray(data)), batch.targets))
            self._model.apply(batch)
            self._sent.append((data, batch.targets, len(self._model.changes)))
            self._sequence += 1
        for put, (_, _, end) in zip(puts, self._sent[-len(puts) :], strict=True):
            assert await put.applied == end
        await self._look_up(kv)

    async def _put_again(self) -> None:
        data, targets, end = self._chance.choice(self._sent[-REMEMBERED:])
        kv = await self._kv()
        assert await kv.put(memoryview(bytearray(data)), targets).applied == end

    async def _put_bad(self) -> None:
        name, make = self._chance.choice(list(BAD.items()))
        batch = random_batch(self._chance)
        batch.ops.append(Op(1, (1, "bad", 1)))
        data, targets = make(batch, self._sequence)
        kv = await self._kv()
        with pytest.raises(FlussError):
            await kv.put(memoryview(data), targets).applied
            pytest.fail(f"{name} was accepted")

    async def _look_up(self, kv: KvBucket) -> None:
        keys = self._chance.sample(range(KEYS), 20)
        data = Batch([Op(key, None) for key in keys]).encode()
        values = await kv.get_many(decode_records(data, parse_header(data)).keys)
        assert [value and rows_of([value])[0] for value in values] == [self._model.rows.get(key) for key in keys]

    async def _check(self) -> None:
        """Table, changelog and model agree, to the offset."""
        assert await check_whole(self._storage) == self._model.changes
        assert (await read_rows(await self._kv()))[1] == self._model.rows


def test_the_model_folds_to_itself(chance: random.Random) -> None:
    model = Model()
    for _ in range(200):
        model.apply(random_batch(chance))
    assert fold([change for change in model.changes if change]) == model.rows


def test_table_changelog_and_model_agree(tmp_path: Path, chance: random.Random) -> None:
    asyncio.run(Machine(tmp_path, chance).run(STEPS))


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("run", range(FULL_RUNS))
def test_table_changelog_and_model_agree_for_long(tmp_path: Path, seed: int, run: int) -> None:
    """A million operations in all."""
    asyncio.run(Machine(tmp_path, random.Random(seed + run)).run(FULL_STEPS))
