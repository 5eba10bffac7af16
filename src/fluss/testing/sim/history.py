"""A recorded history: what clients asked for, when, and what they were told.

Calls begin and end in one order, that of their numbers; simulated times, of which many are the same, are for people and
for bounds. A history has no clock of its own and is used by one thread.

    history = History(loop.time)
    call = history.begin("c1", Append("orders", (17, 18)))
    history.end(call)
    print(history.text(history.calls))
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

NEVER: Final = -1
Value: TypeAlias = int | float | str | None
Row: TypeAlias = tuple[Value, ...]
"""A row with all columns that its table has in the end; those added later are None before."""


class Fate(IntEnum):
    """What a client knows of a call."""

    UNKNOWN = 0
    """Nothing: it may take effect at any later time, until its client is closed, or never."""
    DONE = 1
    FAILED = 2
    """It surely had no effect and will have none."""
    DOUBTFUL = 3
    """It may have had its effect before this was reported. Later it will have none."""


class Bucket(NamedTuple):
    """A bucket of a table; one of a partition of a table has the name `table/partition`."""

    table: str
    number: int = 0


class Record(NamedTuple):
    """What a reader gets for an offset."""

    offset: int
    id: int | None = None
    """The number of the row that its writer gave it; None where rows are merged"""
    change: str = "+A"
    key: Hashable = None
    row: Row | None = None


class Append(NamedTuple):
    """Rows for a log table, each with a number that nobody else uses; who tries again by hand uses new numbers."""

    table: str
    ids: tuple[int, ...]
    writer: int = 0


class Upsert(NamedTuple):
    table: str
    key: Hashable
    row: Row
    columns: tuple[int, ...] = ()
    """Of a partial update; none: the row is whole"""
    overwrite: bool = False
    """Past the merge engine"""
    id: int | None = None
    """The number that the row has among its values, as in `Append`; only if its change has to be in the changelog"""


class Delete(NamedTuple):
    table: str
    key: Hashable
    columns: tuple[int, ...] = ()
    overwrite: bool = False


class Get(NamedTuple):
    """A lookup, or a key's part of a scan; its result is a row or None."""

    table: str
    key: Hashable


class Clear(NamedTuple):
    """A drop of a table or partition, after which the name may be used again."""

    table: str


class Subscribe(NamedTuple):
    """A reader goes to an offset, or to the earliest one if that is negative."""

    bucket: Bucket
    reader: int
    offset: int


class Poll(NamedTuple):
    """A read by the reader of this number of the same client; its result is a tuple of records."""

    bucket: Bucket
    reader: int = 0


class Offsets(NamedTuple):
    """A question for the earliest and the latest offset; its result is both."""

    bucket: Bucket


class Staged(NamedTuple):
    """A commit of a batch of a query; attempts after lost answers are calls of their own."""

    table: str
    query: str
    batch: int
    ids: tuple[int, ...]


class Tier(NamedTuple):
    """A registration of the offset up to which the lake has a bucket."""

    bucket: Bucket
    offset: int


class LakeEnd(NamedTuple):
    """A question for the registered offset; its result is the offset, or None."""

    bucket: Bucket


class Issue(NamedTuple):
    """Something that gives out a number which nobody gets again: writer ids, table ids, auto-increment columns."""

    space: str


class Close(NamedTuple):
    """The end of a client. It counts however the call ended: nothing of the client may be stored behind it."""


class Administer(NamedTuple):
    """Anything else that has to end: schema changes, new partitions, retention, snapshots, backups."""

    what: str
    subject: str = ""


Action: TypeAlias = (
    Append
    | Upsert
    | Delete
    | Get
    | Clear
    | Subscribe
    | Poll
    | Offsets
    | Staged
    | Tier
    | LakeEnd
    | Issue
    | Close
    | Administer
)
_ActionT = TypeVar("_ActionT", bound=tuple[Any, ...])


@dataclass(slots=True, eq=False)
class ClientCall:
    """One call of one client; its history changes it."""

    client: str
    action: Any  # an Action: a union of fourteen would have to be narrowed wherever it is used
    began: int
    began_s: float
    ended: int | None = None
    ended_s: float | None = None
    fate: Fate = Fate.UNKNOWN
    result: Any = None
    error: str = ""

    def __str__(self) -> str:
        ended = "" if self.ended_s is None else f"{self.ended_s:.6f}"
        fate = "open" if self.ended is None else self.fate.name.lower()
        told = self.error or ("" if self.result is None else f"-> {shown(self.result)}")
        text = f"{self.began_s:14.6f} {ended:>14} {self.client:<6} {fate:<8} {shown(self.action)} {told}"
        return text.rstrip()


class Moment(NamedTuple):
    """Something that happened to a run at a time, such as a fault."""

    number: int
    time_s: float
    name: str


class Sample(NamedTuple):
    """A figure and its bound: memory, a budget, descriptors."""

    time_s: float
    name: str
    value: float
    limit: float


@dataclass
class History:
    """All calls of a run in the order in which they began, its faults, its figures."""

    now: Callable[[], float]
    calls: list[ClientCall] = field(default_factory=list)
    faults: list[Moment] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    _events: int = 0

    def begin(self, client: str, action: Action) -> ClientCall:
        """Note a call before it is made."""
        call = ClientCall(client, action, self._next(), self.now())
        self.calls.append(call)
        return call

    def end(self, call: ClientCall, result: Any = None, fate: Fate = Fate.DONE, error: object = "") -> None:
        """Note what came of a call as soon as its client knows it."""
        assert call.ended is None, f"a call ended twice: {call}"
        call.ended, call.ended_s = self._next(), self.now()
        call.fate, call.result, call.error = fate, result, str(error)

    def fault(self, name: str) -> None:
        """Note that something was broken, or is whole again."""
        self.faults.append(Moment(self._next(), self.now(), name))

    def sample(self, name: str, value: float, limit: float) -> None:
        self.samples.append(Sample(self.now(), name, value, limit))

    def of(self, *kinds: type[_ActionT]) -> list[ClientCall]:
        """The calls of some kinds."""
        return [call for call in self.calls if isinstance(call.action, kinds)]

    def closed(self) -> dict[str, int]:
        """When each client's close returned."""
        return {call.client: call.ended for call in self.of(Close) if call.ended is not None}

    def as_restored(self, backup: ClientCall, restored: ClientCall | None = None) -> History:
        """What a backup that was made by a call, and put in place by another, may know.

        What ended before the backup began is in it, what began after its end is not, the rest may be. Calls that began
        after it was put in place come behind; without such a call there are none.
        """
        assert backup.ended is not None
        behind = inf if restored is None or restored.ended is None else restored.ended
        calls = []
        for call in self.calls:
            if call.began > behind:
                calls.append(call)
            elif call.began < backup.ended:
                calls.append(_as_known(call, backup.began, backup.ended))
        return replace(self, calls=calls)

    def text(self, calls: Iterable[ClientCall]) -> str:
        """Calls as a table, with the faults between them: times of begin and end, client, fate, what it was."""
        chosen = list(calls)
        if not chosen:
            return ""
        first, last = min(call.began for call in chosen), max(call.ended or call.began for call in chosen)
        lines = [(call.began, str(call)) for call in chosen]
        lines += [(mark.number, f"{mark.time_s:14.6f} {'':>14} {'':<6} fault    {mark.name}") for mark in self.faults]
        return "\n".join(line for number, line in sorted(lines) if first <= number <= last)

    def _next(self) -> int:
        self._events += 1
        return self._events


def _as_known(call: ClientCall, began: int, ended: int) -> ClientCall:
    """A call as somebody knows it who looks between two moments."""
    if call.ended is not None and call.ended < began:
        return call
    if call.fate is Fate.FAILED:
        return call
    # Whether it is there is not known; behind the end it is not.
    return replace(call, ended=ended, fate=Fate.DOUBTFUL, result=None)


def deadline(call: ClientCall, closed: dict[str, int]) -> float:
    """The last moment at which a call may take effect; `NEVER` if it may not at all."""
    if call.fate is Fate.FAILED:
        return NEVER
    if call.ended is not None and call.fate is Fate.DONE:
        return call.ended
    if isinstance(call.action, Staged):
        return inf  # what was decided is carried out by the server, whoever is gone
    if call.ended is not None and call.fate is Fate.DOUBTFUL:
        return call.ended
    end = closed.get(call.client, inf)
    return end if end > call.began else inf


_SHOWN_MAX: Final = 6


def shown(value: Any) -> str:
    """Text of an action or a result; the middle of what is long is left out."""
    if isinstance(value, Bucket):
        return f"{value.table}.{value.number}"
    if hasattr(value, "_asdict"):
        fields = [
            f"{name}={shown(part)}"
            for name, part in value._asdict().items()
            if part is not None and part is not False and part != ()
        ]
        return f"{type(value).__name__}({', '.join(fields)})"
    if isinstance(value, tuple) and len(value) > _SHOWN_MAX:
        parts = ", ".join(map(shown, value[: _SHOWN_MAX - 1]))
        return f"({parts}, ... {shown(value[-1])}: {len(value)})"
    if isinstance(value, tuple) and any(isinstance(part, tuple) for part in value):
        return f"({', '.join(map(shown, value))})"
    return repr(value)
