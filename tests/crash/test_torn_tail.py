"""The last segment cut at any byte: the server starts, serves the whole batches before the cut, appends behind them.

Without marks, that is: nothing says then that the batches had been acknowledged. With them, `test_rot` has such cuts.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fluss.formats.batches.log_batch import HEADER_SIZE_BYTES
from fluss.storage.directory import MARKS_NAME
from tests.crash.bucket_files import WrittenBucket, places, rows_in, written_bucket
from tests.kit.rows import Row, wire_batch
from tests.kit.wire import Wire

SMALL_BATCHES = [3, 1, 2, 1]
# Behind the first byte, in the middle of the header, at its end, in the payload, before the last byte.
POSITIONS_IN_BATCH = (1, HEADER_SIZE_BYTES // 2, HEADER_SIZE_BYTES, HEADER_SIZE_BYTES + 9, -1)


def check_cut(written: WrittenBucket, image: bytes, cut: int) -> None:
    """Cut the only segment, start, read, append, kill, read again."""
    (segment,) = written.segments()
    segment.write_bytes(image)
    whole = places(segment)
    all_rows = image_rows()
    kept = [place for place in whole if place.end <= cut]
    expected = all_rows[: len(all_rows) if len(kept) == len(whole) else whole[len(kept)].base_offset]
    segment.write_bytes(image[:cut])
    forget_marks(written)
    written.server.start()
    assert rows_in(written.read()) == expected, f"cut at byte {cut}"
    added = [Row(1, 0), Row(1, 1)]
    with written.wire() as wire:
        answer = wire.produce(written.table_id, 0, wire_batch(added))
        assert (answer.error_code, answer.base_offset) == (0, len(expected)), f"cut at byte {cut}"
        check_writer_state(written, wire, len(kept), expected)
    written.server.kill()
    written.server.start()
    assert rows_in(written.read())[: len(expected) + 2] == [*expected, *added], f"cut at byte {cut}"
    written.server.kill()


def forget_marks(written: WrittenBucket) -> None:
    (written.server.data_dir / MARKS_NAME).unlink()


def check_writer_state(written: WrittenBucket, wire: Wire, kept: int, expected: list[Row]) -> None:
    """The writer's state is that of the batches kept: it goes on with the first one that was cut off."""
    lost = written.log.begin(1)
    answer = wire.produce(written.table_id, 0, wire_batch(lost, written.writer_id, kept))
    assert (answer.error_code, answer.base_offset) == (0, len(expected) + 2)


def image_rows() -> list[Row]:
    return [Row(0, sequence) for sequence in range(sum(SMALL_BATCHES))]


def cut_points(image_places: list[tuple[int, int]]) -> list[int]:
    """Chosen places in the last two batches, and their boundaries."""
    points = set()
    for start, end in image_places[-2:]:
        points |= {start, end}
        points |= {(start if position > 0 else end) + position for position in POSITIONS_IN_BATCH}
    return sorted(points)


def test_cuts_in_the_last_two_batches(tmp_path: Path, chance: random.Random) -> None:
    with written_bucket(tmp_path, SMALL_BATCHES) as written:
        (segment,) = written.segments()
        image = segment.read_bytes()
        points = cut_points([(place.start, place.end) for place in places(segment)])
        boundary = places(segment)[-1].start
        for cut in sorted({boundary, len(image), *chance.sample(points, 3)}):
            remove_disposable(written)
            check_cut(written, image, cut)


@pytest.mark.full
@pytest.mark.timeout(3_600)
def test_cuts_at_every_byte_of_the_last_two_batches(tmp_path: Path) -> None:
    with written_bucket(tmp_path, SMALL_BATCHES) as written:
        (segment,) = written.segments()
        image = segment.read_bytes()
        for cut in range(places(segment)[-2].start, len(image) + 1):
            remove_disposable(written)
            check_cut(written, image, cut)


def remove_disposable(written: WrittenBucket) -> None:
    """What an earlier round left would speak for bytes that are cut off now."""
    for path in written.directory().iterdir():
        if path.suffix != ".log":
            path.unlink()


def test_flipped_header_bytes_of_the_last_batch_cut_it_off(tmp_path: Path, chance: random.Random) -> None:
    with written_bucket(tmp_path, SMALL_BATCHES) as written:
        (segment,) = written.segments()
        image = segment.read_bytes()
        last = places(segment)[-1]
        # The commit time (bytes 13 to 20) is outside the checksum and decides nothing.
        covered = [at for at in range(HEADER_SIZE_BYTES) if not 13 <= at < 21]
        for position in chance.sample(covered, 4):
            damaged = bytearray(image)
            damaged[last.start + position] ^= 1 << chance.randrange(8)
            remove_disposable(written)
            segment.write_bytes(damaged)
            forget_marks(written)
            written.server.start()
            assert rows_in(written.read()) == image_rows()[: last.base_offset], f"header byte {position}"
            written.server.kill()
