"""All promises that a history is held to; `violations` is empty when they were kept.

Logs have a module of their own, and keys, whose calls have to fit into one order. The others are here: a table is the
fold of its changelog, batches of a query are stored once, a number is given out once, figures keep their bounds, and
behind the last fault everything ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from fluss.testing.sim.history import (
    Bucket,
    ClientCall,
    Fate,
    History,
    Issue,
    LakeEnd,
    Record,
    Row,
    Staged,
    Tier,
    shown,
)
from fluss.testing.sim.linearizability import STEPS_MAX, Verdict, broken_keys
from fluss.testing.sim.logs import Content, Logs, Violation
from fluss.testing.sim.models import RegisterModel, Replacing

ENDS_WITHIN_S: Final = 60.0
_TEXTS_MAX: Final = 20


@dataclass(frozen=True)
class Rules:
    """What the tables of a run promise."""

    models: Mapping[str, RegisterModel] = field(default_factory=dict)
    """Of primary-key tables with a merge engine"""
    kept_s: Mapping[str, float] = field(default_factory=dict)
    """For how long a table keeps rows at least; a table that is not here removes none"""
    ends_within_s: float = ENDS_WITHIN_S
    steps_max: int = STEPS_MAX

    def model_of(self, table: str) -> RegisterModel:
        return self.models.get(table) or Replacing()


def violations(
    history: History,
    contents: Mapping[Bucket, Content],
    tables: Mapping[str, Mapping[Hashable, Row]] | None = None,
    rules: Rules | None = None,
) -> list[Violation]:
    """All broken promises; `contents` and `tables` are what is stored in the end."""
    rules = rules or Rules()
    logs = Logs(history, contents, rules.kept_s)
    found = logs.violations()
    for broken in broken_keys(history, rules.model_of, rules.steps_max):
        kind = "undecided" if broken.verdict is Verdict.UNDECIDED else "not linearizable"
        found.append(Violation(kind, broken.text(history), broken.core))
    for table, rows in (tables or {}).items():
        found += unfolded(table, rows, contents)
    found += [*staged_wrongly(history, logs), *issued_twice(history), *forgotten_lake_ends(history)]
    return [*found, *above_bounds(history), *unended(history, rules.ends_within_s)]


def check(
    history: History,
    contents: Mapping[Bucket, Content],
    tables: Mapping[str, Mapping[Hashable, Row]] | None = None,
    rules: Rules | None = None,
) -> None:
    """Raise AssertionError with the violations, if there are any."""
    found = violations(history, contents, tables, rules)
    if found:
        raise AssertionError(report(history, found))


def report(history: History, found: Iterable[Violation]) -> str:
    """The first violations, each with its calls."""
    every = list(found)
    parts = [f"{len(every)} broken promises, the first are:"]
    for violation in every[:_TEXTS_MAX]:
        parts.append(f"{violation.kind}: {violation.text}")
        if violation.calls and violation.kind != "not linearizable":
            parts.append(history.text(violation.calls))
    return "\n".join(parts)


def fold(records: Iterable[Record]) -> tuple[dict[Hashable, Row], list[str]]:
    """The rows that changes leave, and the changes that do not fit those before them."""
    rows: dict[Hashable, Row] = {}
    wrong: list[str] = []
    before: Record | None = None  # the first half of an update
    for record in records:
        row = rows.get(record.key)
        if before is not None and (record.change, record.key) != ("+U", before.key):
            wrong.append(f"{shown(before)} has no second half")
        before = record if record.change == "-U" else None
        fits = row is None if record.change == "+I" else record.change == "+U" or row == record.row
        if not fits:
            wrong.append(f"{shown(record)} does not fit {row}")
        if record.change == "-D":
            rows.pop(record.key, None)
        elif record.row is not None:
            rows[record.key] = record.row
    return rows, [*wrong, *([f"{shown(before)} has no second half"] if before else [])]


def unfolded(table: str, rows: Mapping[Hashable, Row], contents: Mapping[Bucket, Content]) -> Iterator[Violation]:
    """A table is the fold of its changelog. Not of one that has lost its beginning."""
    folded: dict[Hashable, Row] = {}
    for bucket, content in contents.items():
        if bucket.table != table:
            continue
        if content.start > 0:
            return
        of_bucket, wrong = fold(content.records)
        for text in wrong:
            yield Violation("changelog", f"{shown(bucket)}: {text}")
        folded |= of_bucket
    for key in sorted(folded.keys() | rows.keys(), key=repr):
        if folded.get(key) != rows.get(key):
            text = f"{table}[{key!r}] is {rows.get(key)}, its changelog leaves {folded.get(key)}"
            yield Violation("changelog", text)


def staged_wrongly(history: History, logs: Logs) -> Iterator[Violation]:
    """A batch of a query is stored once and whole, if it was; an earlier one is not taken for done behind a later."""
    attempts: dict[tuple[str, str, int], list[ClientCall]] = {}
    for call in history.of(Staged):
        attempts.setdefault(call.action[:3], []).append(call)
    present = {record.id for known in logs.known.values() for record in known.values()}
    for (table, query, batch), calls in attempts.items():
        stored = [call for call in calls if call.action.ids and present.issuperset(call.action.ids)]
        some = {number for call in calls for number in call.action.ids} & present
        name = f"batch {batch} of query {query} to {table}"
        told = [call for call in calls if call.fate is Fate.DONE]
        # Rows that nobody finds may have been removed: `Logs` says whether they are lost.
        if some and not any(some == set(call.action.ids) for call in stored):
            yield Violation("commit", f"{name} is stored in part, or more than once: {sorted(some)}", tuple(calls))
        for call in told:
            if some and not some.issuperset(call.action.ids):
                yield Violation("commit", f"{name} was acknowledged with rows that are not stored", (call,))
            later = next(_done_before(history, call, (table, query), batch), None)
            if later is not None and not any((other.ended or inf) < later.began for other in calls):
                text = f"{name} came first behind batch {later.action.batch}, and was taken"
                yield Violation("commit", text, (later, call))


def _done_before(history: History, call: ClientCall, query: tuple[str, str], batch: int) -> Iterator[ClientCall]:
    """Later batches that were acknowledged before a call began."""
    for other in history.of(Staged):
        is_later = other.action[:2] == query and other.action.batch > batch
        if is_later and other.fate is Fate.DONE and (other.ended or inf) < call.began:
            yield other


def issued_twice(history: History) -> Iterator[Violation]:
    """What is given out once is not given out again."""
    given: dict[tuple[str, object], ClientCall] = {}
    for call in history.of(Issue):
        if call.fate is Fate.DONE:
            before = given.setdefault((call.action.space, call.result), call)
            if before is not call:
                yield Violation("issued twice", f"{call.action.space}: {call.result}", (before, call))


def forgotten_lake_ends(history: History) -> Iterator[Violation]:
    """What is registered of the lake stays, and nobody reads what was not."""
    for call in history.of(LakeEnd):
        if call.fate is not Fate.DONE:
            continue
        tiered = [other for other in history.of(Tier) if other.action.bucket == call.action.bucket]
        least = max((_offset(o) for o in tiered if o.fate is Fate.DONE and (o.ended or inf) < call.began), default=-1)
        most = max(
            (_offset(o) for o in tiered if o.fate is not Fate.FAILED and o.began < (call.ended or 0)), default=-1
        )
        found = -1 if call.result is None else call.result
        if not least <= found <= most:
            text = f"{shown(call.action.bucket)}: the lake ends at {call.result}, {least} was registered"
            yield Violation("lake", text, (call,))


def _offset(call: ClientCall) -> int:
    return int(call.action.offset)


def above_bounds(history: History) -> Iterator[Violation]:
    """Figures keep their bounds."""
    for sample in history.samples:
        if sample.value > sample.limit:
            text = f"{sample.name} is {sample.value:g} at {sample.time_s:.6f} s, {sample.limit:g} at most"
            yield Violation("bound", text)


def unended(history: History, within_s: float = ENDS_WITHIN_S) -> Iterator[Violation]:
    """Behind the last fault everything ends."""
    last_s = max((mark.time_s for mark in history.faults), default=-inf)
    for call in history.calls:
        due_s = max(last_s, call.began_s) + within_s
        if call.ended_s is None or call.ended_s > due_s:
            ended = "never ended" if call.ended_s is None else f"ended {call.ended_s - due_s:g} s too late"
            yield Violation("not ended", f"{shown(call.action)} of {call.client} {ended}", (call,))
