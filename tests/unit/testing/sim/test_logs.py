"""Logs that keep their promises are accepted; every kind of broken one, planted, is found by its name."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.testing.sim.history import (
    Append,
    Bucket,
    Close,
    Fate,
    Offsets,
    Poll,
    Record,
    Staged,
    Subscribe,
    Upsert,
)
from fluss.testing.sim.logs import Content, Logs
from tests.unit.testing.sim.log_worlds import BUCKET, LogWorld, Told, records, stored
from tests.unit.testing.sim.worlds import TABLE

seeds = st.integers(0, 1 << 32)


@settings(max_examples=100, deadline=None)
@given(seed=seeds, clients=st.integers(1, 8), doubts=st.sampled_from([0.0, 0.1, 0.4]))
def test_logs_that_keep_their_word_are_accepted(seed: int, clients: int, doubts: float) -> None:
    world = LogWorld(seed, clients, doubts=doubts)
    for calls in (100, 200, 300):
        world.run(calls)
        for bucket in world.logs:
            world.remove(bucket, world.chance.randrange(20))
        if calls < 300 and clients > 2:
            world.close()
    assert Logs(world.history, world.contents(), {TABLE: 0.0}).violations() == []


@settings(max_examples=100, deadline=None)
@given(seed=seeds)
def test_a_row_that_is_taken_out_anywhere_is_found(seed: int) -> None:
    """Those behind it move up, as a log does that loses a batch and gives its offsets out again."""
    world = LogWorld(seed)
    history, contents = world.run(200), world.contents()
    done = {number for call in history.of(Append) if call.fate is Fate.DONE for number in call.action.ids}
    bucket, at = world.chance.choice(
        [(bucket, at) for bucket, content in contents.items() for at, r in enumerate(content.records) if r.id in done]
    )
    rows = [record.id for record in contents[bucket].records]
    del rows[at]
    assert Logs(history, contents | {bucket: Content(0, len(rows), records(*rows))}).violations()


@settings(max_examples=100, deadline=None)
@given(seed=seeds)
def test_a_row_that_is_stored_again_is_found(seed: int) -> None:
    world = LogWorld(seed)
    history = world.run(200)
    bucket, other = (world.chance.choice(list(world.logs)) for _ in range(2))
    number = world.chance.choice(world.logs[bucket]).id
    world.logs[other].append(Record(len(world.logs[other]), number))
    assert "doubled" in {found.kind for found in Logs(history, world.contents()).violations()}


@settings(max_examples=100, deadline=None)
@given(seed=seeds)
def test_rows_that_change_places_are_found(seed: int) -> None:
    """Two rows of different calls of one writer, after its calls ended."""
    world = LogWorld(seed, clients=1, buckets=1, doubts=0.0)
    history, (content,) = world.run(60), world.contents().values()
    rows = [record.id for record in content.records]
    first, second = sorted(world.chance.sample(range(len(rows)), 2))
    rows[first], rows[second] = rows[second], rows[first]
    assert Logs(history, {BUCKET: Content(0, len(rows), records(*rows))}).violations()


def test_a_lost_acknowledged_row() -> None:
    told = Told()
    told.append(1, 2)
    told.append(3, fate=Fate.DOUBTFUL)
    assert told.kinds(stored(1, 2)) == []
    assert told.kinds(stored(1, 2, 3)) == []
    # The log ends earlier than it was told to.
    assert told.kinds(stored(1)) == ["lost"]
    assert told.kinds({BUCKET: stored(1), Bucket(TABLE, 1): stored(2)}) == []


def test_a_row_that_was_read_and_is_gone_though_it_was_never_acknowledged() -> None:
    told = Told()
    told.append(1)
    told.append(2, fate=Fate.UNKNOWN)
    told.poll(*records(1, 2))
    assert told.kinds(stored(1)) == ["lost", "stale"]


def test_a_doubled_row() -> None:
    told = Told()
    told.append(1)
    told.append(2, fate=Fate.UNKNOWN)
    assert told.kinds(stored(1, 2, 2)) == ["doubled"]
    assert told.kinds({BUCKET: stored(1), Bucket(TABLE, 1): stored(1)}) == ["doubled"]


def test_an_offset_that_is_given_out_twice() -> None:
    told = Told()
    told.append(1, fate=Fate.UNKNOWN)
    told.poll(*records(1))
    told.append(2)
    (found, *_) = told.found(stored(2))
    assert found.kind == "offset reused"
    assert "offset 0 was Record(offset=0, id=1" in found.text


@pytest.mark.parametrize(
    ("content", "kinds"),
    [
        (Content(0, 3, records(1, 2)), ["offsets"]),
        (Content(0, 2, [Record(0, 1), Record(2, 2)]), ["offsets", "stale"]),
        (Content(0, 2, [Record(1, 2), Record(0, 1)]), ["offsets"]),
        (Content(1, 3, records(1, 2)), ["removed early", "offsets"]),
        (Content(0, 3, [Record(0, 1), Record(2, 2)], has_gaps=True), []),
    ],
)
def test_offsets_with_holes(content: Content, kinds: list[str]) -> None:
    told = Told()
    told.append(1, 2)
    assert told.kinds(content) == kinds


def test_a_row_that_nobody_wrote_and_one_of_another_table() -> None:
    told = Told()
    told.did("w", Append("other", (1,)), fate=Fate.UNKNOWN)
    assert told.kinds(stored(1, 2)) == ["strange", "strange"]


def test_a_row_that_was_refused_and_is_stored() -> None:
    told = Told()
    call = told.append(1, fate=Fate.FAILED)
    (found,) = told.found(stored(1))
    assert (found.kind, found.calls) == ("stored after failure", (call,))


@pytest.mark.parametrize("fate", [Fate.UNKNOWN, Fate.DOUBTFUL])
def test_a_row_that_is_stored_after_close_or_after_a_reported_error(fate: Fate) -> None:
    told = Told()
    told.append(1, client="closed", fate=fate)
    if fate is Fate.UNKNOWN:
        told.did("closed", Close())
    told.append(2)
    assert told.kinds(stored(1, 2)) == []
    assert told.kinds(stored(2, 1)) == ["stored after close"]


def test_a_row_of_unknown_fate_may_come_late() -> None:
    told = Told()
    told.append(1, client="other", fate=Fate.UNKNOWN)
    told.append(2)
    assert told.kinds(stored(2, 1)) == []


def test_rows_of_a_writer_in_another_order() -> None:
    told = Told()
    calls = [told.begin("w", Append(TABLE, ids)) for ids in ((1, 2), (3,))]
    for call in calls:
        told.history.end(call)
    assert told.kinds(stored(1, 2, 3)) == []
    assert told.kinds(stored(2, 1, 3)) == ["order"]
    assert told.kinds(stored(3, 1, 2)) == ["order", "order"]


def test_rows_of_two_writers_of_a_client_may_lie_in_any_order() -> None:
    told = Told()
    calls = [told.begin("w", Append(TABLE, (number,), writer=number)) for number in (1, 2)]
    for call in calls:
        told.history.end(call)
    assert told.kinds(stored(2, 1)) == []


def test_a_row_that_was_acknowledged_before_another_was_begun_lies_before_it() -> None:
    told = Told()
    told.append(1, client="a")
    told.append(2, client="b")
    assert told.kinds(stored(2, 1)) == ["order"]


def test_a_reader_that_gets_a_record_twice() -> None:
    told = Told()
    told.append(1, 2)
    told.poll(*records(1, 2))
    told.poll(Record(1, 2))
    assert told.kinds(stored(1, 2)) == ["read twice"]
    told.did("r", Subscribe(BUCKET, 0, 1))
    told.poll(Record(1, 2))
    assert told.kinds(stored(1, 2)) == ["read twice"]


def test_a_cancelled_poll_that_takes_records_with_it() -> None:
    told = Told()
    told.append(1, 2, 3)
    told.poll(Record(0, 1))
    told.did("r", Poll(BUCKET), fate=Fate.UNKNOWN)
    told.poll(Record(2, 3))
    assert told.kinds(stored(1, 2, 3)) == ["read lost"]
    assert told.kinds(stored(3, start=2), t=0.0) == []


def test_a_reader_that_begins_behind_where_it_was_told_to() -> None:
    told = Told()
    told.append(1, 2)
    told.did("r", Subscribe(BUCKET, 0, 0))
    told.poll(Record(1, 2))
    assert told.kinds(stored(1, 2)) == ["read lost"]


def test_a_record_that_is_read_before_it_was_written() -> None:
    told = Told()
    told.poll(Record(0, 1))
    told.append(1)
    assert told.kinds(stored(1)) == ["from the future"]


@pytest.mark.parametrize("told_ends", [(0, 1), (0, 0)])
def test_an_end_that_is_older_than_what_was_acknowledged(told_ends: tuple[int, int]) -> None:
    told = Told()
    told.append(1, 2)
    call = told.did("r", Offsets(BUCKET), told_ends)
    (found,) = told.found(stored(1, 2))
    assert (found.kind, found.calls) == ("stale", (call,))


def test_ends_that_go_back() -> None:
    told = Told()
    told.append(1, 2, fate=Fate.UNKNOWN)
    told.did("a", Offsets(BUCKET), (1, 2))
    told.did("b", Offsets(BUCKET), (0, 2))
    told.did("b", Offsets(BUCKET), (1, 1))
    told.did("b", Offsets(BUCKET), (1, 2))
    assert told.kinds(stored(2, start=1)) == ["stale", "stale"]


def test_an_end_from_a_call_beside_an_append_may_be_either() -> None:
    told = Told()
    call = told.begin("w", Append(TABLE, (1,)))
    told.did("r", Offsets(BUCKET), (0, 0))
    told.did("r", Offsets(BUCKET), (0, 1))
    told.history.end(call)
    assert told.kinds(stored(1)) == []


def test_a_row_that_is_removed_while_it_is_young() -> None:
    told = Told()
    told.append(1)
    told.append(2)
    told.poll(*records(1, 2))
    told.time_s = 20.0
    told.did("r", Offsets(BUCKET), (1, 2))
    assert told.kinds(stored(2, start=1), t=20.0) == []
    assert told.kinds(stored(2, start=1), t=21.0) == ["removed early"]
    assert told.kinds(stored(2, start=1)) == ["removed early"]


def test_a_row_that_nobody_read_is_lost_unless_it_may_be_removed() -> None:
    told = Told()
    told.append(1)
    told.append(2)
    told.append(3)
    told.time_s = 20.0
    assert told.kinds(stored(3, start=2), t=10.0) == []
    assert told.kinds(stored(3, start=2), t=100.0) == ["lost", "lost"]
    assert told.kinds(stored(2, start=1), t=10.0) == ["lost"]


def test_an_upsert_whose_change_is_not_in_the_changelog() -> None:
    told = Told()
    told.did("w", Upsert(TABLE, 1, (1, 7), id=7))
    told.did("w", Upsert(TABLE, 1, (1, 8), id=8))
    changes = [
        Record(0, 7, "+I", 1, (1, 7)),
        Record(1, 7, "-U", 1, (1, 7)),
        Record(2, 8, "+U", 1, (1, 8)),
    ]
    assert told.kinds(Content(0, 3, changes)) == []
    assert told.kinds(Content(0, 1, changes[2:], has_gaps=True)) == ["lost", "offsets", "stale"]


def test_what_is_staged_may_be_stored_after_its_client_is_gone() -> None:
    """The server carries out what was decided."""
    told = Told()
    told.did("s", Staged(TABLE, "q", 0, (1,)), fate=Fate.DOUBTFUL)
    told.did("s", Close())
    told.append(2)
    assert told.kinds(stored(2, 1)) == []


def test_the_proof_is_named() -> None:
    told = Told()
    late, newer = told.append(1, client="a"), told.append(2, client="b")
    (found,) = told.found(stored(2, 1))
    assert found.calls == (late, newer)
