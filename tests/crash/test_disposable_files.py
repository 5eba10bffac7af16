"""Index and writer-state files are aids: deleted or corrupt, the server gives the same answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from fluss.model.errors import ErrorCode
from tests.crash.bucket_files import WrittenBucket, rows_in, written_bucket
from tests.kit.loads.oracle import Fate
from tests.kit.rows import Row, wire_batch

BATCHES = [40] * 40
REMEMBERED = 5

Damage: TypeAlias = Callable[[Path, random.Random], None]


def delete(path: Path, _: random.Random) -> None:
    path.unlink()


def empty(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def cut(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def overwrite(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(path.stat().st_size))


DAMAGES = (delete, empty, cut, flip, overwrite)


@pytest.mark.parametrize("suffix", [".index", ".writers"])
def test_same_answers_without(tmp_path: Path, chance: random.Random, suffix: str) -> None:
    """Each file suffers something else, after a kill and after an orderly stop."""
    with written_bucket(tmp_path, BATCHES) as written:
        for stop in (written.server.terminate, written.server.kill):
            spoil(written, suffix, chance, DAMAGES)
            start_and_check(written, stop)


@pytest.mark.full
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", [".index", ".writers"])
def test_same_answers_with_all_files_damaged(
    tmp_path: Path, chance: random.Random, suffix: str, damage: Damage
) -> None:
    with written_bucket(tmp_path, BATCHES) as written:
        for stop in (written.server.terminate, written.server.kill):
            spoil(written, suffix, chance, (damage,))
            start_and_check(written, stop)


def spoil(written: WrittenBucket, suffix: str, chance: random.Random, damages: Sequence[Damage]) -> None:
    files = sorted(written.directory().glob(f"*{suffix}"))
    assert files, "there is nothing to damage"
    for path in files:
        # Those of old segments are not written anew: what an earlier round emptied is still empty.
        if path.stat().st_size:
            chance.choice(damages)(path, chance)


def start_and_check(written: WrittenBucket, stop: Callable[[], None]) -> None:
    written.server.start()
    check_answers(written)
    stop()
    assert "Traceback" not in written.server.log_file.read_text()


def check_answers(written: WrittenBucket) -> None:
    """All rows, from any offset; repeats known, gaps refused, the next batch taken."""
    count = written.log.count
    rows = [Row(0, sequence) for sequence in range(count) if written.log.fate(sequence) is Fate.ACKNOWLEDGED]
    batches = written.read()
    assert rows_in(batches) == rows
    with written.wire() as wire:
        for batch in batches[:: len(batches) // 5]:
            inside = batch.base_offset + len(batch.rows) // 2
            assert wire.fetch(written.table_id, 0, inside)[0] == batch
        following = written.next_sequence()
        for age, batch in enumerate(reversed(batches[-REMEMBERED:]), start=1):
            answer = wire.produce(written.table_id, 0, wire_batch(batch.rows, written.writer_id, following - age))
            assert (answer.error_code, answer.base_offset) == (0, batch.base_offset)
        for wrong in (following + 1, following - REMEMBERED - 1):
            refused = written.log.begin(1)
            answer = wire.produce(written.table_id, 0, wire_batch(refused, written.writer_id, wrong))
            assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
            written.log.settle(refused, Fate.REFUSED)
        written.append(wire, 3)
