"""What logs promise, compared with what was read of them: rows that stay where they are, once, in order, in time.

`Logs` gathers everything that anybody read of each bucket: by polls, and by the last look at what is stored. Each check
is a method that yields what is wrong.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import inf
from typing import Final, NamedTuple

from fluss.testing.sim.history import (
    NEVER,
    Append,
    Bucket,
    ClientCall,
    Fate,
    History,
    Offsets,
    Poll,
    Record,
    Staged,
    Subscribe,
    Upsert,
    deadline,
    shown,
)

_NEW_ROWS: Final = ("+A", "+I", "+U")


class Violation(NamedTuple):
    """A promise that was broken, and the calls that prove it."""

    kind: str
    text: str
    calls: tuple[ClientCall, ...] = ()


class Content(NamedTuple):
    """What a bucket has in the end: what its offsets from `start` to before `end` have."""

    start: int
    end: int
    records: Sequence[Record]
    has_gaps: bool = False
    """Whether offsets may have no record: a put that changes nothing takes one"""


@dataclass
class _Origin:
    """Where a row comes from; of a staged row all attempts together."""

    calls: list[ClientCall]
    place: int
    """Among the rows of its call"""
    latest: float

    @property
    def began(self) -> int:
        return self.calls[0].began

    @property
    def began_s(self) -> float:
        return self.calls[0].began_s

    @property
    def is_done(self) -> bool:
        return any(call.fate is Fate.DONE for call in self.calls)

    @property
    def done_at(self) -> float:
        return min((call.ended or inf for call in self.calls if call.fate is Fate.DONE), default=inf)

    @property
    def table(self) -> str:
        return str(self.calls[0].action.table)


@dataclass
class Logs:
    """Everything that is known of the logs of a run."""

    history: History
    contents: Mapping[Bucket, Content]
    kept_s: Mapping[str, float] = field(default_factory=dict)
    """For how long a table keeps rows at least; a table that is not here removes none"""
    origins: dict[int, _Origin] = field(default_factory=dict)
    known: dict[Bucket, dict[int, Record]] = field(default_factory=dict)
    """By offset: what was first read there"""
    _conflicts: list[Violation] = field(default_factory=list)

    def __post_init__(self) -> None:
        closed = self.history.closed()
        for call in self.history.of(Append, Staged, Upsert):
            action, latest = call.action, deadline(call, closed)
            for place, number in enumerate(_ids(action)):
                origin = self.origins.get(number)
                if origin is None:
                    self.origins[number] = _Origin([call], place, latest)
                else:
                    origin.calls.append(call)
                    origin.latest = max(origin.latest, latest)
        for origin in self.origins.values():
            origin.latest = min(origin.latest, origin.done_at)
        for poll in self.history.of(Poll):
            self._take(poll.action.bucket, poll.result or (), (poll,))
        for bucket, content in self.contents.items():
            self._take(bucket, content.records, ())

    def _take(self, bucket: Bucket, records: Iterable[Record], by: tuple[ClientCall, ...]) -> None:
        known = self.known.setdefault(bucket, {})
        for record in records:
            before = known.setdefault(record.offset, record)
            if before != record:
                text = f"{shown(bucket)}: offset {record.offset} was {shown(before)} and is {shown(record)}"
                self._conflicts.append(Violation("offset reused", text, by))

    def _new_rows(self, bucket: Bucket) -> Iterator[tuple[Record, _Origin]]:
        """Records that are rows as somebody wrote them, in the order of the log."""
        for _, record in sorted(self.known.get(bucket, {}).items()):
            origin = None if record.id is None else self.origins.get(record.id)
            if origin is not None and record.change in _NEW_ROWS:
                yield record, origin

    def violations(self) -> list[Violation]:
        """All of them."""
        found = [*self._conflicts, *self._lost(), *self._doubled()]
        for bucket in self.known:
            found += [*self._strange(bucket), *self._disordered(bucket), *self._late(bucket), *self._young(bucket)]
        for bucket, content in self.contents.items():
            found += self._holes(bucket, content)
        return [*found, *self._readers(), *self._ends()]

    def _holes(self, bucket: Bucket, content: Content) -> Iterator[Violation]:
        """Offsets are dense, unique, and in order; what was read is still there."""
        offsets = [record.offset for record in content.records]
        if any(later <= earlier for earlier, later in pairwise(offsets)):
            yield Violation("offsets", f"{shown(bucket)}: offsets do not grow: {shown(tuple(offsets))}")
        if offsets and not content.start <= min(offsets) <= max(offsets) < content.end:
            yield Violation("offsets", f"{shown(bucket)}: {shown(tuple(offsets))} lie outside of its log")
        if not content.has_gaps and len(offsets) != content.end - content.start:
            text = f"{shown(bucket)}: {len(offsets)} records for the offsets {content.start} to {content.end - 1}"
            yield Violation("offsets", text)
        missing = set(self.known[bucket]) - set(offsets)
        for offset in sorted(offset for offset in missing if offset >= content.start):
            text = f"{shown(bucket)}: {shown(self.known[bucket][offset])} was read and is gone"
            yield Violation("lost", text)

    def _lost(self) -> Iterator[Violation]:
        """Whatever was acknowledged is stored, unless it can have been removed from the log's beginning."""
        present = {record.id for known in self.known.values() for record in known.values()}
        for number, origin in self.origins.items():
            if origin.is_done and number not in present and not self._may_be_removed(origin):
                yield Violation("lost", f"row {number} was acknowledged and is not there", tuple(origin.calls))

    def _may_be_removed(self, origin: _Origin) -> bool:
        """Whether the row is old enough, and some log that has lost its beginning may have had it there."""
        if self.history.now() - origin.began_s < self._kept_s(origin.table):
            return False
        for bucket, content in self.contents.items():
            if bucket.table == origin.table and content.start > 0:
                first = next((kept for record, kept in self._new_rows(bucket) if record.offset >= content.start), None)
                if first is None or first.latest >= origin.began:
                    return True
        return False

    def _strange(self, bucket: Bucket) -> Iterator[Violation]:
        """A row was written by somebody, to this table, and not refused."""
        for record in self.known[bucket].values():
            if record.id is None:
                continue
            origin = self.origins.get(record.id)
            if origin is None or origin.table != bucket.table:
                yield Violation("strange", f"{shown(bucket)}: {shown(record)} was not written to this table")
            elif origin.latest == NEVER:
                text = f"{shown(bucket)}: {shown(record)} was surely not stored, its writer was told"
                yield Violation("stored after failure", text, tuple(origin.calls))

    def _doubled(self) -> Iterator[Violation]:
        """A row is stored once."""
        places: dict[int | None, tuple[Bucket, int]] = {}
        for bucket in self.known:
            for record, origin in self._new_rows(bucket):
                place = (bucket, record.offset)
                before, at = places.setdefault(record.id, place)
                if (before, at) != place:
                    text = f"row {record.id} is at {shown(before)}:{at} and at {shown(bucket)}:{record.offset}"
                    yield Violation("doubled", text, tuple(origin.calls))

    def _kept_s(self, table: str) -> float:
        return self.kept_s.get(table, inf)

    def _young(self, bucket: Bucket) -> Iterator[Violation]:
        """The beginning of a log goes only when it is old enough, by the time of the run and not by any clock."""
        asked = [call for call in self.history.of(Offsets) if call.action.bucket == bucket and call.fate is Fate.DONE]
        starts = [(call.result[0], call.ended_s or 0.0) for call in asked]
        if bucket in self.contents:
            starts.append((self.contents[bucket].start, self.history.now()))
        for start, seen_s in starts:
            for record, origin in self._new_rows(bucket):
                age_s = seen_s - origin.began_s
                if record.offset < start and age_s < self._kept_s(bucket.table):
                    text = f"{shown(bucket)}: {shown(record)} was removed when it was {age_s:g} s old at most"
                    yield Violation("removed early", text, tuple(origin.calls))
                    return

    def _disordered(self, bucket: Bucket) -> Iterator[Violation]:
        """The rows of one writer lie in the order in which it took them, but those that may come at any later time."""
        last: dict[tuple[str, int], tuple[int, int, int]] = {}
        for record, origin in self._new_rows(bucket):
            call = origin.calls[0]
            if not isinstance(call.action, Append) or call.fate is Fate.UNKNOWN:
                continue
            writer, place = (call.client, call.action.writer), (call.began, origin.place, record.id or 0)
            if place < (before := last.get(writer, place)):
                text = f"{shown(bucket)}: row {record.id} of {call.client} lies behind its later row {before[2]}"
                yield Violation("order", text, (call,))
            last[writer] = max(place, before)

    def _late(self, bucket: Bucket) -> Iterator[Violation]:
        """A row is stored before its call ends, or was reported as failed, or its client is closed.

        Of a row behind another that was begun later it is known that it was stored later still.
        """
        newest: _Origin | None = None
        for record, origin in self._new_rows(bucket):
            if newest is not None and NEVER < origin.latest < newest.began:
                is_told = origin.calls[-1].fate is Fate.DONE
                text = f"{shown(bucket)}: {shown(record)} was stored behind a row that was begun when " + (
                    "it was acknowledged" if is_told else "its client had given up or was closed"
                )
                kind = "order" if is_told else "stored after close"
                yield Violation(kind, text, (*origin.calls, newest.calls[0]))
            if newest is None or origin.began > newest.began:
                newest = origin

    def _readers(self) -> Iterator[Violation]:
        """A reader gets every record from where it began, once, in order, and none before it was written."""
        at: dict[tuple[str, Bucket, int], int | None] = {}
        offsets = {bucket: sorted(known) for bucket, known in self.known.items()}
        for call in self.history.of(Subscribe, Poll):
            action = call.action
            reader = (call.client, action.bucket, action.reader)
            if isinstance(action, Subscribe):
                at[reader] = action.offset if action.offset >= 0 else None
                continue
            for record in call.result or ():
                expected = at.get(reader)
                if expected is not None and record.offset < expected:
                    text = f"{call.client} got {shown(record)} of {shown(action.bucket)}, it was at {expected}"
                    yield Violation("read twice", text, (call,))
                elif expected is not None:
                    yield from self._skipped(call, expected, record.offset, offsets[action.bucket])
                yield from self._foreseen(call, record)
                at[reader] = record.offset + 1

    def _skipped(self, call: ClientCall, expected: int, got: int, offsets: Sequence[int]) -> Iterator[Violation]:
        """Nothing is left out, but what was removed."""
        bucket = call.action.bucket
        start = self.contents[bucket].start if bucket in self.contents else 0
        begin = bisect_left(offsets, max(expected, start))
        left_out = offsets[begin : bisect_left(offsets, got)]
        if left_out:
            text = f"{call.client} went from {expected} to {got} of {shown(bucket)} without {shown(tuple(left_out))}"
            yield Violation("read lost", text, (call,))

    def _foreseen(self, call: ClientCall, record: Record) -> Iterator[Violation]:
        origin = None if record.id is None else self.origins.get(record.id)
        if origin is not None and call.ended is not None and origin.began > call.ended:
            yield Violation(
                "from the future", f"{shown(record)} was read before it was written", (call, origin.calls[0])
            )

    def _ends(self) -> Iterator[Violation]:
        """Start and end of a log never go back; the end is behind whatever was acknowledged or read before."""
        told = self._told_ends()
        asked = [call for call in self.history.of(Offsets) if call.fate is Fate.DONE]
        last = [(bucket, inf, (content.start, content.end), ()) for bucket, content in self.contents.items()]
        for bucket, began, ends, calls in [*((c.action.bucket, c.began, c.result, (c,)) for c in asked), *last]:
            of_bucket = told.get(bucket, [])
            at = bisect_left(of_bucket, began, key=lambda entry: entry[0])
            start, end = of_bucket[at - 1][1:] if at else (0, 0)
            if ends[0] < start or ends[1] < end:
                text = f"{shown(bucket)} goes from {ends[0]} to {ends[1]}, before from {start} to {end}"
                yield Violation("stale", text, calls)

    def _told_ends(self) -> dict[Bucket, list[tuple[float, int, int]]]:
        """How far each log is known to go from some moments on: the moment, the start, the end."""
        found: dict[Bucket, list[tuple[float, int, int]]] = {bucket: [] for bucket in self.known}
        for call in self.history.of(Offsets, Poll):
            if call.fate is Fate.DONE and call.ended is not None and call.result:
                ends = call.result if isinstance(call.action, Offsets) else (0, call.result[-1].offset + 1)
                found.setdefault(call.action.bucket, []).append((call.ended, *ends))
        for bucket in self.known:
            rows = ((origin.done_at, 0, record.offset + 1) for record, origin in self._new_rows(bucket))
            found[bucket] += (row for row in rows if row[0] != inf)
        for bucket, told in found.items():
            found[bucket] = list(accumulate(sorted(told), _farther))
        return found


def _farther(before: tuple[float, int, int], told: tuple[float, int, int]) -> tuple[float, int, int]:
    return told[0], max(before[1], told[1]), max(before[2], told[2])


def _ids(action: Append | Staged | Upsert) -> tuple[int, ...]:
    if isinstance(action, Upsert):
        return () if action.id is None else (action.id,)
    return action.ids
