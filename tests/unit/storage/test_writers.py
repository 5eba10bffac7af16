"""Idempotent writers: every sequence against a model, through restarts and kills."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluss.model.errors import FlussError
from fluss.storage.log.log import BucketLog, LogOptions
from fluss.storage.log.writer_state import REMEMBERED_BATCHES, SEQUENCE_MAX, WRITERS_MAX, StoredBatch, WriterTable
from tests.kit.storage.logs import NOW_MS, append, crash_image, opened

EXPIRY_MS = 1000
SMALL = LogOptions(segment_size_bytes=300, writer_expiry_ms=EXPIRY_MS)


class Model:
    """The rules, said as simply as possible: per writer a list of all batches since it last began at 0."""

    def __init__(self) -> None:
        self.end = 0
        self.history: dict[int, list[tuple[int, int]]] = {}
        self.last_ms: dict[int, int] = {}

    def append(self, writer_id: int, sequence: int, now_ms: int) -> tuple[str, int]:
        history = self.history.setdefault(writer_id, [])
        if history and now_ms - self.last_ms[writer_id] > EXPIRY_MS:
            history.clear()
        if sequence == (history[-1][0] + 1 if history else 0):
            history.append((sequence, self.end))
            self.last_ms[writer_id] = now_ms
            self.end += 1
            return "appended", self.end - 1
        for known, base_offset in history[-REMEMBERED_BATCHES:]:
            if known == sequence:
                return "duplicate", base_offset
        return "refused with 31", history[-1][0] + 1 if history else 0


def _actual(log: BucketLog, writer_id: int, sequence: int, now_ms: int) -> tuple[str, int]:
    try:
        appended = append(log, "x" * 30, records=1, writer_id=writer_id, sequence=sequence, now_ms=now_ms)
    except FlussError as error:
        said = re.fullmatch(r"Writer (\d+): batch sequence (\d+) is out of order, (\d+) is expected\.", error.message)
        if said is None or (int(said[1]), int(said[2])) != (writer_id, sequence):
            pytest.fail(f"the message misleads: {error.message}")
        return f"refused with {error.error_code}", int(said[3])
    return "duplicate" if appended.duplicate else "appended", appended.base_offset


# Relative sequences: 1 is the next, 0 repeats the last, -4 the last remembered, -5 is forgotten, 2 skips one.
_STEP = st.one_of(
    st.tuples(st.just("batch"), st.integers(0, 2), st.one_of(st.just(1), st.integers(-6, 3))),
    st.tuples(st.just("begin"), st.integers(0, 2), st.just(0)),
    st.tuples(st.sampled_from(["reopen", "kill", "wait", "expire"]), st.just(0), st.just(0)),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_STEP, max_size=40))
def test_sequences_follow_the_model_through_restarts(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_follow(steps, Path(directory)))


async def _follow(steps: list[tuple[str, int, int]], directory: Path) -> None:
    model, now_ms, root, kills = Model(), NOW_MS, directory / "data", 0
    context = opened(root, SMALL)
    log = await context.__aenter__()
    try:
        for kind, writer_id, relative in steps:
            if kind in ("batch", "begin"):
                history = model.history.get(writer_id)
                last = history[-1][0] if history else -1
                sequence = max(last + relative, 0) if kind == "batch" else 0
                assert _actual(log, writer_id, sequence, now_ms) == model.append(writer_id, sequence, now_ms)
            elif kind in ("wait", "expire"):
                now_ms += 100 if kind == "wait" else EXPIRY_MS + 1
            else:
                await log.flush()
                if kind == "kill":
                    kills += 1
                    root = crash_image(root, f"killed-{kills}")
                await context.__aexit__(None, None, None)
                context = opened(root, SMALL)
                log = await context.__aenter__()
        assert log.log_end_offset == model.end
    finally:
        await context.__aexit__(None, None, None)


async def test_the_rules_one_by_one(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        assert _actual(log, 1, 1, NOW_MS) == ("refused with 31", 0)
        for sequence in range(8):
            assert _actual(log, 1, sequence, NOW_MS) == ("appended", sequence)
        for sequence in range(3):
            assert _actual(log, 1, sequence, NOW_MS) == ("refused with 31", 8)
        for sequence in range(3, 8):
            assert _actual(log, 1, sequence, NOW_MS) == ("duplicate", sequence)
        assert _actual(log, 1, 9, NOW_MS) == ("refused with 31", 8)
        assert _actual(log, 2, 0, NOW_MS) == ("appended", 8)
        assert log.log_end_offset == 9


async def test_without_a_writer_id_nothing_is_checked(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        for _ in range(3):
            assert not append(log, "x", writer_id=-1, sequence=-1).duplicate
        assert log.log_end_offset == 9


def test_sequences_wrap_around() -> None:
    table = WriterTable()
    for number, sequence in enumerate((SEQUENCE_MAX - 1, SEQUENCE_MAX, 0, 1)):
        table.record(4, StoredBatch(sequence, number, number), NOW_MS)
    assert table.check(4, 2, NOW_MS) is None
    assert table.check(4, SEQUENCE_MAX, NOW_MS) == StoredBatch(SEQUENCE_MAX, 1, 1)
    assert table.check(4, 0, NOW_MS) == StoredBatch(0, 2, 2)
    table = WriterTable()
    table.record(4, StoredBatch(SEQUENCE_MAX, 0, 0), NOW_MS)
    assert table.check(4, 0, NOW_MS) is None
    with pytest.raises(FlussError, match="0 is expected"):
        table.check(4, 1, NOW_MS)


def test_the_number_of_writers_is_bounded_and_the_longest_idle_goes() -> None:
    table = WriterTable()
    for writer_id in range(WRITERS_MAX):
        table.record(writer_id, StoredBatch(0, writer_id, writer_id), NOW_MS)
    table.record(0, StoredBatch(1, WRITERS_MAX, WRITERS_MAX), NOW_MS)
    table.record(WRITERS_MAX, StoredBatch(0, WRITERS_MAX + 1, WRITERS_MAX + 1), NOW_MS)
    assert len(table) == WRITERS_MAX
    assert table.check(0, 2, NOW_MS) is None
    with pytest.raises(FlussError):
        table.check(1, 1, NOW_MS)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, SEQUENCE_MAX)), max_size=30), st.integers(0, 1 << 62))
def test_a_snapshot_says_the_same_as_the_table(batches: list[tuple[int, int]], end_offset: int) -> None:
    table = WriterTable()
    for number, (writer_id, sequence) in enumerate(batches):
        table.record(writer_id, StoredBatch(sequence, number, number), NOW_MS + number)
    data = table.encode(end_offset)
    decoded = WriterTable.decode(data)
    assert decoded is not None
    assert decoded[1] == end_offset
    assert decoded[0].encode(end_offset) == data


@given(st.binary(max_size=200))
def test_a_snapshot_of_garbage_is_refused(data: bytes) -> None:
    assert WriterTable.decode(data) is None
