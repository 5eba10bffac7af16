"""Promises beside those of logs and keys: each kind of broken one, planted, is found; and everything together."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.testing.sim.history import (
    Administer,
    Append,
    Bucket,
    ClientCall,
    Fate,
    Get,
    History,
    Issue,
    LakeEnd,
    Offsets,
    Poll,
    Record,
    Staged,
    Tier,
    Upsert,
)
from fluss.testing.sim.linearizability import broken_keys
from fluss.testing.sim.logs import Content, Logs
from fluss.testing.sim.models import Replacing
from fluss.testing.sim.oracles import Rules, check, fold, report, unended, violations
from tests.unit.testing.sim.log_worlds import BUCKET, LogWorld, Told, records, stored
from tests.unit.testing.sim.worlds import TABLE, KeyWorld

seeds = st.integers(0, 1 << 32)


def kinds(told: Told, content: Content | None = None) -> list[str]:
    contents = {} if content is None else {BUCKET: content}
    return [found.kind for found in violations(told.history, contents)]


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_a_run_that_keeps_all_promises_is_accepted(seed: int) -> None:
    logs = LogWorld(seed)
    check(logs.run(200), logs.contents())
    keys = KeyWorld(seed, Replacing())
    check(keys.run(200), {})


def test_ten_thousand_calls_are_checked_in_a_second() -> None:
    """8 clients, 100 keys, one call in fifty in doubt; by processor time, to which a busy machine adds nothing."""
    history = KeyWorld(7, Replacing(), clients=8, keys=100, doubts=0.02).run(10_000)
    began_s = time.process_time()
    assert broken_keys(history, lambda _: Replacing()) == []
    assert time.process_time() - began_s < 1.0


# --- changelogs

INSERT = Record(0, None, "+I", 1, (1, "a"))
BEFORE = Record(1, None, "-U", 1, (1, "a"))
AFTER = Record(2, None, "+U", 1, (1, "b"))
DELETE = Record(3, None, "-D", 1, (1, "b"))


def test_the_fold_of_a_changelog() -> None:
    assert fold([INSERT, BEFORE, AFTER]) == ({1: (1, "b")}, [])
    assert fold([INSERT, BEFORE, AFTER, DELETE]) == ({}, [])
    assert fold([AFTER]) == ({1: (1, "b")}, [])  # without images of before, all upserts are updates


@pytest.mark.parametrize(
    "changes",
    [
        [INSERT, INSERT],
        [INSERT, BEFORE],
        [INSERT, BEFORE, DELETE],
        [BEFORE, AFTER],
        [INSERT, DELETE],
        [INSERT, BEFORE, AFTER._replace(key=2)],
    ],
)
def test_changes_that_do_not_fit(changes: list[Record]) -> None:
    assert fold(changes)[1]


def test_a_table_that_is_not_the_fold_of_its_changelog() -> None:
    content = {BUCKET: Content(0, 3, [INSERT, BEFORE, AFTER])}
    history = Told().history
    assert violations(history, content, {TABLE: {1: (1, "b")}}) == []
    for rows in ({}, {1: (1, "a")}, {1: (1, "b"), 2: (2, "c")}):
        assert [found.kind for found in violations(history, content, {TABLE: rows})] == ["changelog"]


# --- staged batches


def commit(told: Told, batch: int, *ids: int, fate: Fate = Fate.DONE) -> ClientCall:
    return told.did("s", Staged(TABLE, "q", batch, ids), fate=fate)


def test_a_batch_that_came_again_is_stored_once() -> None:
    told = Told()
    commit(told, 0, 1, 2, fate=Fate.UNKNOWN)
    commit(told, 0, 1, 2)
    commit(told, 0, 1, 2)
    assert kinds(told, stored(1, 2)) == []
    assert kinds(told, stored(1, 2, 1, 2)) == ["doubled", "doubled"]


def test_half_a_batch() -> None:
    told = Told()
    commit(told, 0, 1, 2, fate=Fate.UNKNOWN)
    assert kinds(told, stored()) == []
    assert kinds(told, stored(1)) == ["commit"]


def test_two_attempts_that_are_both_stored() -> None:
    told = Told()
    commit(told, 0, 1, 2, fate=Fate.UNKNOWN)
    commit(told, 0, 3, 4)
    assert kinds(told, stored(3, 4)) == []
    assert kinds(told, stored(1, 2, 3, 4)) == ["commit"]


def test_a_batch_that_is_taken_for_done_with_other_rows() -> None:
    """T16: the rows of the second attempt are dropped without a word."""
    told = Told()
    commit(told, 0, 1, 2)
    commit(told, 0, 3, 4)
    assert set(kinds(told, stored(1, 2))) == {"commit", "lost"}


def test_an_earlier_batch_that_is_taken_for_done() -> None:
    told = Told()
    commit(told, 6, 1)
    commit(told, 5, 2)
    assert kinds(told, stored(1, 2)) == ["commit"]


def test_an_earlier_batch_that_is_a_repetition() -> None:
    told = Told()
    commit(told, 5, 1)
    commit(told, 6, 2)
    commit(told, 5, 1)
    assert kinds(told, stored(1, 2)) == []


# --- the rest


def test_a_number_that_is_given_out_twice() -> None:
    told = Told()
    told.did("a", Issue("writer"), 1)
    told.did("b", Issue("table"), 1)
    told.did("c", Issue("writer"), 2)
    assert kinds(told) == []
    told.did("d", Issue("writer"), 1)
    assert kinds(told) == ["issued twice"]


def test_the_lake_forgets_an_offset_or_knows_one_that_nobody_registered() -> None:
    told = Told()
    told.did("t", LakeEnd(BUCKET), None)
    told.did("t", Tier(BUCKET, 5))
    told.did("t", Tier(BUCKET, 9), fate=Fate.UNKNOWN)
    told.did("t", LakeEnd(BUCKET), 5)
    told.did("t", LakeEnd(BUCKET), 9)
    assert kinds(told) == []
    told.did("t", LakeEnd(BUCKET), None)
    told.did("t", LakeEnd(BUCKET), 12)
    assert kinds(told) == ["lake", "lake"]


def test_a_figure_above_its_bound() -> None:
    told = Told()
    told.history.sample("memory", 10, 10)
    assert kinds(told) == []
    told.history.sample("memory", 11, 10)
    assert kinds(told) == ["bound"]


def test_calls_that_do_not_end_behind_the_last_fault() -> None:
    told = Told()
    slow = told.begin("a", Administer("snapshot"))
    told.time_s = 100.0
    told.history.fault("the network is whole")
    told.time_s = 160.0
    told.history.end(slow)
    assert list(unended(told.history)) == []
    late = told.begin("b", Administer("snapshot"))
    open_call = told.begin("c", Administer("add column", TABLE))
    told.time_s += 61
    told.history.end(late)
    assert [found.calls for found in unended(told.history)] == [(late,), (open_call,)]


def test_a_backup_has_what_ended_before_it_and_nothing_begun_after() -> None:
    told = Told()
    told.append(1)
    beside = told.begin("w", Append(TABLE, (2,)))
    backup = told.begin("b", Administer("backup"))
    told.append(3, client="x")
    told.history.end(beside)
    told.history.end(backup)
    told.append(4)
    restored = told.history.as_restored(backup)
    for ids in ((1,), (1, 2), (1, 3), (1, 3, 2)):
        assert Logs(restored, {BUCKET: stored(*ids)}).violations() == []
    for ids, kind in (((2,), "lost"), ((1, 4), "strange")):
        assert kind in {found.kind for found in Logs(restored, {BUCKET: stored(*ids)}).violations()}


def test_what_comes_behind_a_backup_that_was_put_in_place() -> None:
    told = Told()
    told.did("w", Upsert(TABLE, 0, (0, 1)))
    backup = told.did("b", Administer("backup"))
    told.did("w", Upsert(TABLE, 0, (0, 2)))
    put_back = told.did("b", Administer("restore"))
    told.did("r", Get(TABLE, 0), (0, 1))
    assert broken_keys(told.history, lambda _: Replacing())
    assert broken_keys(told.history.as_restored(backup, put_back), lambda _: Replacing()) == []
    told.did("r", Get(TABLE, 0), (0, 2))
    assert broken_keys(told.history.as_restored(backup, put_back), lambda _: Replacing())


def test_the_report_names_what_is_broken_and_shows_the_calls() -> None:
    told = Told()
    told.append(7)
    told.history.fault("the server is killed")
    with pytest.raises(AssertionError, match=r"1 broken promises.*\nlost: row 7 was acknowledged") as raised:
        check(told.history, {BUCKET: stored()})
    assert "w      done     Append(table='t', ids=(7,), writer=0)" in str(raised.value)


def test_texts_of_histories() -> None:
    told = Told()
    told.poll(*records(*range(9)))
    told.history.fault("the disk is full")
    open_call = told.begin("c", Offsets(BUCKET))
    poll, fault, last = told.history.text(told.history.calls).splitlines()
    assert "... Record(offset=8, id=8, change='+A'): 9)" in poll
    assert fault.split() == ["1.000000", "fault", "the", "disk", "is", "full"]
    assert last.split() == ["1.500000", "c", "open", "Offsets(bucket=t.0)"]
    assert told.history.text([]) == ""
    told.history.end(open_call)
    with pytest.raises(AssertionError, match="ended twice"):
        told.history.end(open_call)


def test_rules_of_tables() -> None:
    assert Rules().model_of("any") == Replacing()
    assert "0 broken" in report(History(lambda: 0.0), [])
    assert Poll(Bucket("t")).reader == 0
