"""Histories of stores that keep their word are accepted, all others are not: compared with every order there is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.testing.sim import models
from fluss.testing.sim.history import (
    NEVER,
    Clear,
    ClientCall,
    Close,
    Delete,
    Fate,
    Get,
    History,
    Row,
    Upsert,
    deadline,
)
from fluss.testing.sim.linearizability import Verdict, broken_keys
from fluss.testing.sim.models import Aggregating, FirstRow, RegisterModel, Replacing, Versioned
from tests.unit.testing.sim.worlds import TABLE, KeyWorld

SUMS = Aggregating({1: models.combine_sum, 2: models.combine_max}, deletes=True)
MODELS = {
    "replacing": Replacing(),
    "first row": FirstRow(),
    "versioned": Versioned(2),
    "sums": SUMS,
    "last": Aggregating({1: models.combine_last, 2: models.combine_joined}),
}
by_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
seeds = st.integers(0, 1 << 32)


def broken(history: History, model: RegisterModel | None = None) -> list[tuple[ClientCall, ...]]:
    found = broken_keys(history, lambda _: model or Replacing())
    assert all(key.verdict is Verdict.BROKEN for key in found)
    return [key.core for key in found]


def new_history() -> History:
    return History(lambda: 0.0)


def did(history: History, action: Upsert | Delete | Get | Clear, result: Row | None = None) -> ClientCall:
    """A call with none beside it."""
    call = history.begin("c", action)
    history.end(call, result)
    return call


def put(value: int | None, other: int | None = None) -> Upsert:
    return Upsert(TABLE, 0, (0, value, other))


GET = Get(TABLE, 0)


@by_model
@settings(max_examples=60, deadline=None)
@given(seed=seeds, clients=st.integers(1, 6), doubts=st.sampled_from([0.0, 0.1, 0.4]))
def test_a_store_that_keeps_its_word_is_accepted(model: RegisterModel, seed: int, clients: int, doubts: float) -> None:
    world = KeyWorld(seed, model, clients, doubts=doubts)
    assert broken(world.run(120), model) == []


@by_model
@settings(max_examples=300, deadline=None)
@given(seed=seeds)
def test_the_search_says_what_trying_all_orders_says(model: RegisterModel, seed: int) -> None:
    """Histories of at most six calls whose reads may be wrong."""
    chance = random.Random(seed)
    world = KeyWorld(seed, model, chance.randint(1, 4), keys=1, doubts=0.4)
    history = world.run(chance.randint(2, 6))
    reads = [call for call in history.of(Get) if call.fate is Fate.DONE]
    writes = history.of(Upsert)
    for read in reads:
        if chance.random() < 0.5:
            read.result = chance.choice([None, *(write.action.row for write in writes)])
    if chance.random() < 0.3:
        history.end(history.begin(chance.choice(world.clients), Close()))
    assert (broken(history, model) == []) is has_order(history, model)


def has_order(history: History, model: RegisterModel) -> bool:
    """By trying all orders of all choices of calls."""
    closed = history.closed()
    calls = [c for c in history.of(Upsert, Delete, Get) if deadline(c, closed) != NEVER]
    calls = [c for c in calls if c.fate is Fate.DONE or not isinstance(c.action, Get)]
    optional = [c for c in calls if c.fate is not Fate.DONE]
    for chosen in range(1 << len(optional)):
        left_out = [c for at, c in enumerate(optional) if not chosen >> at & 1]
        some = [c for c in calls if c not in left_out]
        if any(fits(order, model, closed) for order in permutations(some)):
            return True
    return False


def fits(order: Sequence[ClientCall], model: RegisterModel, closed: dict[str, int]) -> bool:
    row: Row | None = None
    for at, call in enumerate(order):
        if any(deadline(later, closed) < call.began for later in order[at + 1 :]):
            return False
        if isinstance(call.action, Get):
            if call.result != row:
                return False
        else:
            row = model.apply(row, call.action)
    return True


# --- planted violations, and the calls that contradict each other


def test_a_lost_row() -> None:
    history = new_history()
    written = did(history, put(1))
    assert broken(history) == []
    read = did(history, GET, None)
    did(history, put(2))
    did(history, GET, (0, 2, None))
    assert broken(history) == [(written, read)]


def test_a_stale_read() -> None:
    history = new_history()
    did(history, put(1))
    did(history, GET, (0, 1, None))
    written = did(history, put(2))
    read = did(history, GET, (0, 1, None))
    assert broken(history) == [(written, read)]


def test_a_row_that_is_seen_goes_away_again() -> None:
    history = new_history()
    doubtful = history.begin("other", put(1))
    seen = did(history, GET, (0, 1, None))
    gone = did(history, GET, None)
    history.end(doubtful, fate=Fate.UNKNOWN)
    assert broken(history) == [(seen, gone)]


def test_a_value_from_the_future() -> None:
    history = new_history()
    read = did(history, GET, (0, 1, None))
    did(history, put(1))
    assert broken(history) == [(read,)]


def test_a_value_that_nobody_wrote() -> None:
    history = new_history()
    did(history, put(1))
    read = did(history, GET, (0, 3, None))
    assert broken(history) == [(read,)]


def test_a_write_that_surely_failed_is_seen() -> None:
    history = new_history()
    history.end(history.begin("c", put(1)), fate=Fate.FAILED)
    read = did(history, GET, (0, 1, None))
    assert broken(history) == [(read,)]


@pytest.mark.parametrize("fate", [Fate.UNKNOWN, Fate.DOUBTFUL])
def test_an_old_write_overwrites_a_newer_one_after_close(fate: Fate) -> None:
    """T2: the closed connection goes on writing."""
    history = new_history()
    old = history.begin("closed", put(1))
    if fate is Fate.UNKNOWN:
        history.end(old, fate=fate)
        history.end(history.begin("closed", Close()))
    else:
        history.end(old, fate=fate)
    new = did(history, put(2))
    did(history, GET, (0, 2, None))
    assert broken(history) == []
    read = did(history, GET, (0, 1, None))
    assert broken(history) == [(new, read)]


def test_a_write_of_unknown_fate_may_come_late_or_never() -> None:
    history = new_history()
    history.end(history.begin("other", put(1)), fate=Fate.UNKNOWN)
    for _ in range(3):
        did(history, put(2))
        did(history, GET, (0, 2, None))
    did(history, GET, (0, 1, None))
    assert broken(history) == []
    did(history, GET, (0, 2, None))
    assert len(broken(history)) == 1


def test_a_sum_to_which_a_row_was_added_twice() -> None:
    history = new_history()
    did(history, put(3))
    history.end(history.begin("other", put(4)), fate=Fate.UNKNOWN)
    did(history, GET, (0, 7, None))
    assert broken(history, SUMS) == []
    read = did(history, GET, (0, 11, None))
    assert broken(history, SUMS) == [(read,)]


def test_half_of_a_partial_update() -> None:
    history = new_history()
    whole = did(history, put(1, 1))
    update = did(history, Upsert(TABLE, 0, (0, None, 2), (0, 2)))
    read = did(history, GET, (0, None, 2))
    assert broken(history) == [(whole, read)] or broken(history) == [(whole, update, read)]


def test_a_lower_version_replaces_a_higher_one() -> None:
    history = new_history()
    newer = did(history, put(1, 5))
    did(history, put(2, 4))
    read = did(history, GET, (0, 2, 4))
    assert broken(history, Versioned(2)) == [(newer, read)]


def test_a_later_row_replaces_the_first() -> None:
    history = new_history()
    first = did(history, put(1))
    did(history, put(2))
    read = did(history, GET, (0, 2, None))
    assert broken(history, FirstRow()) == [(first, read)]


def test_a_delete_comes_back() -> None:
    history = new_history()
    did(history, put(1))
    delete = did(history, Delete(TABLE, 0))
    read = did(history, GET, (0, 1, None))
    assert broken(history) == [(delete, read)]


def test_a_row_survives_the_drop_of_its_partition() -> None:
    history = new_history()
    did(history, put(1))
    drop = did(history, Clear(TABLE))
    assert broken(history) == []
    read = did(history, GET, (0, 1, None))
    assert broken(history) == [(drop, read)]


@settings(max_examples=15, deadline=None)
@given(seed=seeds)
def test_a_stale_read_in_a_long_history_is_found_with_few_calls(seed: int) -> None:
    """Two writes that are done, and behind them a read of the first."""
    history = KeyWorld(seed, Replacing(), keys=2).run(100)
    did(history, put(-1))
    written = did(history, put(-2))
    read = did(history, GET, (0, -1, None))
    (core,) = broken(history)
    assert core[-2:] == (written, read)
    assert len(core) <= 4  # the bound of steps may leave in what could go


def test_the_report_shows_the_core_and_what_was_beside_it() -> None:
    history = new_history()
    did(history, put(1))
    beside = history.begin("other", put(3))
    did(history, put(2))
    did(history, GET, (0, 1, None))
    history.end(beside, fate=Fate.UNKNOWN, error="TimeoutError: no answer")
    (found,) = broken_keys(history, lambda _: Replacing())
    core, around = found.text(history).split("beside them:")
    assert "t[0]: no order explains" in core
    assert "Upsert(table='t', key=0, row=(0, 2, None))" in core
    assert "-> (0, 1, None)" in core
    assert "TimeoutError: no answer" in around


def test_a_search_that_takes_too_long_is_undecided() -> None:
    history = new_history()
    for number in range(20):
        history.end(history.begin(f"c{number}", put(1 << number)), fate=Fate.UNKNOWN)
    did(history, GET, (0, -1, None))
    (found,) = broken_keys(history, lambda _: SUMS, steps_max=1_000)
    assert (found.verdict, found.core) == (Verdict.UNDECIDED, ())
    assert "undecided" in found.text(history)


def test_many_unknown_writes_are_no_burden() -> None:
    history = new_history()
    for number in range(50):
        history.end(history.begin("c", put(number)), fate=Fate.UNKNOWN)
        did(history, put(-number))
        did(history, GET, (0, -number, None))
    did(history, GET, (0, 17, None))
    (found,) = broken_keys(history, lambda _: Replacing(), steps_max=10_000) or [None]
    assert found is None
    did(history, GET, (0, 50, None))
    (found,) = broken_keys(history, lambda _: Replacing(), steps_max=30_000)
    assert found.verdict is Verdict.BROKEN


def test_latest_moments() -> None:
    """Those of calls without an end, and of clients that are closed."""
    history = new_history()
    call = history.begin("c", put(1))
    assert deadline(call, {}) == inf
    assert deadline(call, {"c": 5}) == 5
    history.end(call, fate=Fate.FAILED)
    assert deadline(call, {}) == NEVER
