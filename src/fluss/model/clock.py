"""The server's clock: the only way to the wall clock for what is stamped, and for what is removed by its age.

A wall clock may be wrong. Within one run of the system a second clock can't be set by anybody: it counts from the
start of the system, through suspends. So a jump is a change of the difference between the two. A time server that
slews moves both alike; a step of a few seconds counts as none.

After a jump it is not known which time is right. Until that is clear, time goes on as if there had been no jump, and
nothing is removed by its age. The new time is taken when it was kept for an hour, or when an operator confirms it; the
old one, as soon as the clock shows it again. A clock may also be wrong at a start, and nothing here would show it: so
a first time, too, counts only after an hour. `ClockNote` carries the difference of the clocks to the next start, so
servers that run for minutes come to trust the clock, and a jump between two runs is seen.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from fluss.doors import clock

_log = logging.getLogger(__name__)

SETTLE_MS: Final = 60 * 60 * 1_000
NO_SETTLING: Final = 0
# Time servers step by fractions of a second, leap seconds by one. What is removed this much too early was due anyway;
# and as the difference is taken anew only once it has settled, steps can't add up to more than this in that time.
STEP_MS_MAX: Final = 10_000
# A directory that nobody used for so long is rare, a clock that far ahead is not.
ABSENCE_MS_MAX: Final = 180 * 24 * 60 * 60 * 1_000
_WARNING_GAP_MS: Final = 60_000
# While the wall clock is within so much of where the two agreed, it is far from a jump: a second reading can be spared.
_LOOK_MS: Final = 1_000
_NS_PER_MS: Final = 1_000_000


def wall_clock_ms() -> int:
    """Milliseconds since 1970, by a clock that may be wrong."""
    return clock.wall_ns() // _NS_PER_MS


def elapsed_ms() -> int:
    """Milliseconds since some moment before this process began, by a clock that nobody sets."""
    return clock.elapsed_ns() // _NS_PER_MS


class ClockNote(NamedTuple):
    """What one run of a server tells the next one of the clock."""

    boot: str  # the run of the system; empty if that is not known
    ahead_ms: int  # how far the wall clock is ahead of the elapsed time
    since_ms: int  # the elapsed time from which on that was so
    is_settled: bool
    time_ms: int  # when this was noted


class _Jump(NamedTuple):
    ahead_ms: int
    since_ms: int


class Clock:
    """Used on the loop. With `settle_ms=0` the wall clock is trusted, whatever it shows."""

    def __init__(
        self,
        settle_ms: int = SETTLE_MS,
        *,
        wall_ms: Callable[[], int] = wall_clock_ms,
        elapsed_ms: Callable[[], int] = elapsed_ms,
        boot: str = "",
        note: ClockNote | None = None,
    ) -> None:
        self._settle_ms = settle_ms
        self._wall_ms = wall_ms
        self._elapsed_ms = elapsed_ms
        self._boot = boot
        self._looked_ms = self._look_ms_next = 0  # between these, the wall clock is as it was
        self._warned_ms: int | None = None
        self._jump: _Jump | None = None
        self.on_change: Callable[[], None] | None = None  # what a note says has changed
        self._is_settled = settle_ms == NO_SETTLING
        self._since_ms = elapsed_ms()
        self._ahead_ms = wall_ms() - self._since_ms
        if note is not None and not self._is_settled:
            self._go_on_from(note)
        self.now_ms()

    def now_ms(self) -> int:
        """The time to stamp with: the wall clock's, or what it would be if it had not jumped."""
        wall_ms = self._wall_ms()
        return wall_ms if self._looked_ms <= wall_ms < self._look_ms_next else self._look(wall_ms)

    def _look(self, wall_ms: int) -> int:
        """Compare both clocks."""
        self._look_ms_next = 0
        elapsed_ms = self._elapsed_ms()
        ahead_ms = wall_ms - elapsed_ms
        if -STEP_MS_MAX <= ahead_ms - self._ahead_ms <= STEP_MS_MAX:
            if self._jump is not None:
                self._jumped_back()
            if elapsed_ms - self._since_ms >= self._settle_ms:
                self._settle(ahead_ms, elapsed_ms)
            self._looked_ms, self._look_ms_next = wall_ms, wall_ms + _LOOK_MS
            return wall_ms
        if self._is_confirmed(ahead_ms, elapsed_ms):
            return wall_ms
        return self._ahead_ms + elapsed_ms

    def expiry_ms(self) -> int | None:
        """The time by which age is judged; None while the clock is in doubt, so that nothing goes by its age."""
        now_ms = self._look(self._wall_ms())
        return now_ms if self._is_settled and self._jump is None else None

    def confirm(self) -> None:
        """Take the wall clock as it is: an operator says that it is right."""
        elapsed_ms = self._elapsed_ms()
        self._take(self._wall_ms() - elapsed_ms, elapsed_ms)
        _log.info("the clock was confirmed; what is too old is removed from now on")

    @property
    def note(self) -> ClockNote:
        """What the next run should know."""
        now_ms = self._look(self._wall_ms())
        return ClockNote(self._boot, self._ahead_ms, self._since_ms, self._is_settled, now_ms)

    def _go_on_from(self, note: ClockNote) -> None:
        is_same_run = bool(self._boot) and note.boot == self._boot and note.since_ms <= self._since_ms
        differs_ms = abs(self._ahead_ms - note.ahead_ms)
        if is_same_run and (note.is_settled or differs_ms <= STEP_MS_MAX):
            self._ahead_ms, self._since_ms, self._is_settled = note.ahead_ms, note.since_ms, note.is_settled
            return
        passed_ms = self._ahead_ms + self._since_ms - note.time_ms
        if passed_ms < -STEP_MS_MAX:
            # Time does not go back. It goes on from what was known last.
            self._ahead_ms -= passed_ms
        elif passed_ms > ABSENCE_MS_MAX:
            _log.warning(
                "the clock is %s later than when this directory was used last. If that is wrong, set the clock now: in "
                "%s, what is too old by it will be removed",
                _span(passed_ms),
                _span(self._settle_ms),
            )

    def _settle(self, ahead_ms: int, elapsed_ms: int) -> None:
        """The time was kept for long enough; small steps within it are taken over."""
        self._ahead_ms, self._since_ms = ahead_ms, elapsed_ms
        self._is_settled = True
        self._changed()

    def _jumped_back(self) -> None:
        _log.info("the clock shows again what it did before it jumped")
        self._jump = None

    def _is_confirmed(self, ahead_ms: int, elapsed_ms: int) -> bool:
        """Whether a time that the clock jumped to was kept for long enough."""
        jump = self._jump
        if jump is None or not -STEP_MS_MAX <= ahead_ms - jump.ahead_ms <= STEP_MS_MAX:
            jump = self._jump = _Jump(ahead_ms, elapsed_ms)
            if self._settle_ms:
                self._warn(ahead_ms - self._ahead_ms, elapsed_ms)
        if elapsed_ms - jump.since_ms < self._settle_ms:
            return False
        self._take(ahead_ms, elapsed_ms)
        if self._settle_ms:
            _log.warning("the clock has kept its new time for %s, which counts from now on", _span(self._settle_ms))
        return True

    def _take(self, ahead_ms: int, elapsed_ms: int) -> None:
        self._jump = None
        self._settle(ahead_ms, elapsed_ms)

    def _warn(self, jumped_ms: int, elapsed_ms: int) -> None:
        if self._warned_ms is not None and elapsed_ms - self._warned_ms < _WARNING_GAP_MS:
            return  # a clock that jumps all the time
        self._warned_ms = elapsed_ms
        _log.warning(
            "the clock is %s %s what it should show. Nothing is removed by its age, and rows are stamped as if it had "
            "not jumped, until it has kept its time for %s. If it is right now, say so with 'kill -USR1 %d'; if not, "
            "set it",
            _span(abs(jumped_ms)),
            "ahead of" if jumped_ms > 0 else "behind",
            _span(self._settle_ms),
            os.getpid(),
        )

    def _changed(self) -> None:
        if self.on_change is not None and self._settle_ms:
            self.on_change()


def _span(span_ms: int) -> str:
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if span_ms >= unit_ms:
            return f"{span_ms / unit_ms:.1f} {unit}"
    return f"{span_ms} ms"
