"""Whether the calls of each key fit into one order that everybody could have seen: linearizability.

The search is that of Wing and Gong with Lowe's memory of configurations, as Porcupine does it: keys are searched one by
one, for calls of different keys never contradict each other. A configuration is which calls have had their effect, and
the row then. Three things keep it small where outcomes are unknown:

* A read that fits the row takes its place at once: it changes nothing, so no order is lost by that.
* A write that need not have happened is not tried where it changes nothing, or nothing sees it before it is written
  over.
* A doubtful write that had no effect by its end is left out there.

What can't be ordered is made small before it is shown. To leave out a read, or to doubt a write, makes a history easier
to order; the calls of which none can be relaxed that way contradict each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final, NamedTuple

from fluss.testing.sim.history import NEVER, Clear, ClientCall, Delete, Fate, Get, History, Row, Upsert, deadline
from fluss.testing.sim.models import RegisterModel

STEPS_MAX: Final = 1_000_000
# To make what is broken small, in all and at least for each try.
_CORE_STEPS_MAX: Final = 200_000
_CORE_STEPS_MIN: Final = 20_000
# Of so many keys; a store that breaks its word breaks it often, and people read the first reports.
_CORES_MAX: Final = 3


class Verdict(Enum):
    FITS = "fits"
    BROKEN = "broken"
    UNDECIDED = "undecided"


class _Step(NamedTuple):
    """A call that is to be ordered."""

    call: ClientCall
    is_read: bool
    is_required: bool
    latest: float


@dataclass(frozen=True)
class BrokenKey:
    """A key whose calls can't be ordered, and the fewest of them that contradict each other."""

    table: str
    key: Hashable
    verdict: Verdict
    core: tuple[ClientCall, ...]
    """Empty when the search took too long, and of all keys but the first ones"""

    def text(self, history: History) -> str:
        """A report for a person: the core, then all calls of the key in its time."""
        if not self.core:
            what = "no order explains its calls" if self.verdict is Verdict.BROKEN else "undecided, too many orders"
            return f"{self.table}[{self.key!r}]: {what}"
        first = min(call.began for call in self.core)
        last = max(call.ended or call.began for call in self.core)
        around = [
            call
            for call in calls_by_key(history)[self.table, self.key]
            if call not in self.core and call.began <= last and (call.ended or inf) >= first
        ]
        parts = [f"{self.table}[{self.key!r}]: no order explains", history.text(self.core)]
        return "\n".join([*parts, "beside them:", history.text(around)] if around else parts)


def broken_keys(
    history: History, model_of: Callable[[str], RegisterModel], steps_max: int = STEPS_MAX
) -> list[BrokenKey]:
    """All keys whose calls do not fit into one order; `model_of` has the rules of a table by its name."""
    closed = history.closed()
    found: list[BrokenKey] = []
    for (table, key), calls in calls_by_key(history).items():
        model, steps = model_of(table), _steps_of(calls, closed)
        search = _Search(steps, model, steps_max)
        verdict = search.run()
        if verdict is Verdict.BROKEN:
            core = _core(steps, model, search.steps) if len(found) < _CORES_MAX else ()
            found.append(BrokenKey(table, key, verdict, core))
        elif verdict is Verdict.UNDECIDED:
            found.append(BrokenKey(table, key, verdict, ()))
    return found


def calls_by_key(history: History) -> dict[tuple[str, Hashable], list[ClientCall]]:
    """The calls of each key in the order in which they began; a cleared table clears all of its keys."""
    found: dict[tuple[str, Hashable], list[ClientCall]] = {}
    clears: dict[str, list[ClientCall]] = {}
    for call in history.of(Upsert, Delete, Get):
        found.setdefault((call.action.table, call.action.key), []).append(call)
    for call in history.of(Clear):
        clears.setdefault(call.action.table, []).append(call)
    for (table, _), calls in found.items():
        if table in clears:
            calls += clears[table]
            calls.sort(key=lambda call: call.began)
    return found


def _steps_of(calls: Iterable[ClientCall], closed: dict[str, int]) -> list[_Step]:
    """Without reads that gave nothing and writes that did nothing."""
    steps = []
    for call in calls:
        is_read, is_done = isinstance(call.action, Get), call.fate is Fate.DONE
        latest = deadline(call, closed)
        if latest != NEVER and (is_done or not is_read):
            steps.append(_Step(call, is_read, is_done, latest))
    return steps


class _Frame(NamedTuple):
    """A configuration with what is still to be tried in it."""

    row: Row | None
    done: int
    open: int
    """Required calls that are not ordered yet"""
    lifted: list[int]
    """Calls that were taken out of the list to get here"""
    choices: list[int]
    """Calls that may be next, the likeliest last; `-1 - number`: a doubtful one that had no effect"""


class _Search:
    """The search for an order of the calls of one key.

    Begins and ends of calls are nodes of a doubly linked list in the order of time; ordered calls are taken out of it,
    and put in again by going back.
    """

    def __init__(self, steps: Sequence[_Step], model: RegisterModel, steps_max: int) -> None:
        self._steps = steps
        self._model = model
        self._steps_max = steps_max
        self.steps = 0
        events = [(float(step.call.began), number) for number, step in enumerate(steps)]
        # What may happen at any later time has no end.
        events += [(step.latest, ~number) for number, step in enumerate(steps) if step.latest != inf]
        events.sort()
        self._events: list[int] = [number for _, number in events]
        count = self._end = len(events)
        # The last place is both before the first and behind the last node.
        self._next, self._before = [*range(1, count + 1), 0], [count, *range(count)]
        self._nodes: list[list[int]] = [[] for _ in steps]
        for node, number in enumerate(self._events):
            self._nodes[max(number, ~number)].append(node)

    def run(self) -> Verdict:
        required = sum(step.is_required for step in self._steps)
        seen: set[tuple[int, Row | None]] = set()
        stack: list[_Frame] = [self._enter(None, 0, required, [], sees_all=True)]
        while stack[-1].open:
            frame = stack[-1]
            if not frame.choices:
                self._put_back(frame.lifted)
                stack.pop()
                if not stack:
                    return Verdict.BROKEN
                continue
            self.steps += 1
            if self.steps > self._steps_max:
                return Verdict.UNDECIDED
            entered = self._choose(frame, frame.choices.pop(), seen)
            if entered is not None:
                stack.append(entered)
        return Verdict.FITS

    def _choose(self, frame: _Frame, choice: int, seen: set[tuple[int, Row | None]]) -> _Frame | None:
        """The configuration behind a choice, unless it was there before."""
        number = max(choice, ~choice)
        step = self._steps[number]
        row = frame.row if choice < 0 else self._model.apply(frame.row, step.call.action)
        done = frame.done | 1 << number
        is_needless = choice >= 0 and not step.is_required and row == frame.row
        if is_needless or (done, row) in seen:
            return None
        seen.add((done, row))
        self._lift(number)
        return self._enter(row, done, frame.open - step.is_required, [number], sees_all=choice < 0 or step.is_required)

    def _enter(self, row: Row | None, done: int, open_count: int, lifted: list[int], *, sees_all: bool) -> _Frame:
        """Order the reads that fit, then list what may be next."""
        while (read := self._fitting_read(row)) is not None:
            self._lift(read)
            lifted.append(read)
            done |= 1 << read
            open_count -= 1
            sees_all = True
        return _Frame(row, done, open_count, lifted, self._choices(row, sees_all=sees_all) if open_count else [])

    def _fitting_read(self, row: Row | None) -> int | None:
        node = self._next[self._end]
        while node != self._end and (number := self._events[node]) >= 0:
            step = self._steps[number]
            if step.is_read and step.call.result == row:
                return int(number)
            node = self._next[node]
        return None

    def _choices(self, row: Row | None, *, sees_all: bool) -> list[int]:
        """`sees_all`: the write before need have happened, or was seen; otherwise it is not to be written over."""
        required: list[int] = []
        optional: list[int] = []
        left_out: list[int] = []
        node = self._next[self._end]
        while node != self._end:
            number = self._events[node]
            step = self._steps[max(number, ~number)]
            if number < 0:
                if not step.is_required:
                    left_out.append(number)
                break
            if not step.is_read and (sees_all or not self._model.is_blind(step.call.action)):
                (required if step.is_required else optional).append(number)
            node = self._next[node]
        required.reverse()
        return [*optional, *left_out, *required]

    def _lift(self, number: int) -> None:
        following, before = self._next, self._before
        for node in self._nodes[number]:
            following[before[node]], before[following[node]] = following[node], before[node]

    def _put_back(self, lifted: list[int]) -> None:
        following, before = self._next, self._before
        for number in reversed(lifted):
            for node in reversed(self._nodes[number]):
                following[before[node]] = before[following[node]] = node


def _core(steps: list[_Step], model: RegisterModel, steps_used: int) -> tuple[ClientCall, ...]:
    """The fewest calls that can't be ordered, as far as that can be found out; `steps_used` to find that they can't."""
    left = max(_CORE_STEPS_MAX, steps_used)

    def is_broken(some: list[_Step]) -> bool:
        nonlocal left
        search = _Search(some, model, min(left, 2 * steps_used + _CORE_STEPS_MIN))
        verdict = search.run()
        left = max(0, left - search.steps)
        return verdict is Verdict.BROKEN

    # The shortest beginning of the history that is broken: up to the end of some call.
    ends = sorted(step.latest for step in steps if step.is_required)
    at = bisect_left(ends, True, key=lambda end: is_broken(_until(steps, end)))
    kept = _until(steps, ends[min(at, len(ends) - 1)])
    # Reads first: a write that has to be there says more than a read that saw it.
    for relax in (_without_reads, _relaxed):
        kept = _fewest(kept, relax, is_broken)
    return tuple(step.call for step in kept if step.is_required)


def _fewest(
    steps: list[_Step], relax: Callable[[list[_Step]], list[_Step]], is_broken: Callable[[list[_Step]], bool]
) -> list[_Step]:
    """Relax whatever leaves the rest broken: large parts first, then smaller ones."""
    size = len(steps)
    while size:
        start = 0
        while start < len(steps):
            part = relax(steps[start : start + size])
            rest = [*steps[:start], *part, *steps[start + size :]]
            if rest != steps and is_broken(rest):
                steps, start = rest, start + len(part)
            else:
                start += size
        size //= 2
    return steps


def _until(steps: Iterable[_Step], end: float) -> list[_Step]:
    """The history as it was known at the end of some call: what ended later may or may not have had its effect."""
    known = [step if step.latest <= end else _relaxed_late(step) for step in steps if step.call.began < end]
    return [step for step in known if step is not None]


def _relaxed_late(step: _Step) -> _Step | None:
    return None if step.is_read else step._replace(is_required=False, latest=inf)


def _without_reads(steps: list[_Step]) -> list[_Step]:
    return [step for step in steps if not step.is_read]


def _relaxed(steps: list[_Step]) -> list[_Step]:
    return [step._replace(is_required=False) for step in steps if not step.is_read]
