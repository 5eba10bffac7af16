"""The checker itself: each kind of broken promise, planted, is found; kept promises pass."""

from __future__ import annotations

import pytest

from tests.kit.loads.oracle import Bucket, BucketContent, Fate, ReaderLog, WriterLog, check, violations
from tests.kit.rows import Row, StoredBatch

BUCKET = Bucket("t", 0)


def history() -> tuple[WriterLog, list[Row]]:
    """Six rows: four acknowledged, one refused, one of unknown fate."""
    writer = WriterLog(1, "t")
    rows = writer.begin(6)
    writer.settle(rows[:4], Fate.ACKNOWLEDGED)
    writer.settle(rows[4:5], Fate.REFUSED)
    return writer, rows


def content(*batches: list[Row], latest: int | None = None) -> dict[Bucket, BucketContent]:
    stored, offset = [], 0
    for rows in batches:
        stored.append(StoredBatch(offset, rows))
        offset += len(rows)
    return {BUCKET: BucketContent(stored, offset if latest is None else latest)}


def kinds(found: list[str]) -> list[str]:
    return [problem.partition(":")[0] for problem in found]


def test_a_store_that_kept_its_word_passes() -> None:
    writer, rows = history()
    reader = ReaderLog("reader")
    reader.see(BUCKET, 0, rows[:2])
    reader.see(BUCKET, 2, rows[2:3])
    check([writer], [reader], content(rows[:2], rows[2:4]))
    check([writer], [reader], content(rows[:2], rows[2:4], rows[5:6]))


def test_a_lost_row_is_found() -> None:
    writer, rows = history()
    assert kinds(violations([writer], [], content(rows[:2], rows[3:4]))) == ["lost"]


def test_rows_of_an_emptied_bucket_are_lost() -> None:
    writer, _ = history()
    assert kinds(violations([writer], [], content())) == ["lost"] * 4


def test_a_duplicate_is_found_also_of_unknown_fate() -> None:
    writer, rows = history()
    assert kinds(violations([writer], [], content(rows[:4], rows[3:4]))) == ["order", "duplicate"]
    assert kinds(violations([writer], [], content(rows[:4], rows[5:6], rows[5:6]))) == ["order", "duplicate"]


def test_a_duplicate_in_another_bucket_is_found() -> None:
    writer, rows = history()
    stored = content(rows[:4]) | {Bucket("t", 1): BucketContent([StoredBatch(0, rows[1:2])], 1)}
    assert kinds(violations([writer], [], stored)) == ["duplicate"]


def test_swapped_rows_are_found() -> None:
    writer, rows = history()
    swapped = [rows[0], rows[2], rows[1], rows[3]]
    assert kinds(violations([writer], [], content(swapped))) == ["order"]


def test_a_refused_row_that_is_stored_is_found() -> None:
    writer, rows = history()
    assert kinds(violations([writer], [], content(rows[:5]))) == ["trace"]


@pytest.mark.parametrize("phantom", [Row(1, 6), Row(2, 0), Row(1, -1)])
def test_a_row_that_nobody_sent_is_found(phantom: Row) -> None:
    writer, rows = history()
    assert kinds(violations([writer], [], content(rows[:4], [phantom]))) == ["phantom"]


def test_a_row_in_the_wrong_table_is_found() -> None:
    writer, rows = history()
    stored = content(rows[:4]) | {Bucket("u", 0): BucketContent([StoredBatch(0, rows[5:6])], 1)}
    assert kinds(violations([writer], [], stored)) == ["phantom"]


def test_a_gap_and_an_overlap_of_offsets_are_found() -> None:
    writer, rows = history()
    gap = {BUCKET: BucketContent([StoredBatch(0, rows[:2]), StoredBatch(3, rows[2:4])], 5)}
    overlap = {BUCKET: BucketContent([StoredBatch(0, rows[:2]), StoredBatch(1, rows[2:4])], 3)}
    for stored in (gap, overlap):
        assert [("should follow" in problem) for problem in violations([writer], [], stored)] == [True]


@pytest.mark.parametrize("latest", [3, 5])
def test_a_wrong_latest_offset_is_found(latest: int) -> None:
    writer, rows = history()
    (problem,) = violations([writer], [], content(rows[:4], latest=latest))
    assert f"the latest offset is {latest}" in problem


def test_what_a_reader_saw_and_is_gone_or_elsewhere_is_found() -> None:
    writer, rows = history()
    reader = ReaderLog("reader")
    reader.see(BUCKET, 0, [*rows[:4], rows[5]])
    (gone,) = violations([writer], [reader], content(rows[:4]))
    assert "where nothing is now" in gone
    other = WriterLog(2, "t")
    moved = other.begin(1)
    (replaced,) = violations([writer, other], [reader], content(rows[:4], moved, rows[5:6]))
    assert f"where {moved[0]} is now" in replaced


def test_a_reader_that_skips_or_repeats_is_found() -> None:
    writer, rows = history()
    for base_offset in (1, 3):
        reader = ReaderLog("reader")
        reader.see(BUCKET, 0, rows[:2])
        reader.see(BUCKET, base_offset, rows[2:4])
        (problem,) = violations([writer], [reader], content(rows[:4]))
        assert f"got offset {base_offset}" in problem


def test_the_report_names_what_is_broken() -> None:
    writer, rows = history()
    with pytest.raises(AssertionError, match=r"1 broken promises.*\nlost: Row\(writer=1, sequence=3\)"):
        check([writer], [], content(rows[:3]))
