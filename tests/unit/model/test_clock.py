"""The clock that distrusts the wall clock, with both of its sources in the test's hand."""

from __future__ import annotations

import logging
import time

import pytest

from fluss.model.clock import ABSENCE_MS_MAX, SETTLE_MS, STEP_MS_MAX, Clock, ClockNote, elapsed_ms, wall_clock_ms

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
YEARS_MS = 50 * 365 * DAY_MS
BOOT = "one run of the system"
JUMPS = (8 * DAY_MS, -8 * DAY_MS, YEARS_MS, -YEARS_MS, STEP_MS_MAX + 1, -STEP_MS_MAX - 1)


class World:
    """A machine: its wall clock, and the time since it was started."""

    def __init__(self, boot: str = BOOT) -> None:
        self.wall_ms = NOW_MS
        self.elapsed_ms = 5_000
        self.boot = boot

    def pass_by(self, span_ms: int) -> None:
        self.wall_ms += span_ms
        self.elapsed_ms += span_ms

    def clock(self, note: ClockNote | None = None, settle_ms: int = SETTLE_MS) -> Clock:
        return Clock(
            settle_ms, wall_ms=lambda: self.wall_ms, elapsed_ms=lambda: self.elapsed_ms, boot=self.boot, note=note
        )

    def settled(self) -> Clock:
        clock = self.clock()
        self.pass_by(SETTLE_MS)
        assert clock.expiry_ms() == self.wall_ms
        return clock


def test_a_start_waits_an_hour() -> None:
    world = World()
    clock = world.clock()
    for _ in range(3):
        assert clock.expiry_ms() is None
        assert clock.now_ms() == world.wall_ms
        world.pass_by(SETTLE_MS // 3)
    assert clock.expiry_ms() == world.wall_ms


@pytest.mark.parametrize("jump_ms", JUMPS)
def test_a_jump_stops_expiry_and_moves_no_stamps(jump_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    clock = world.settled()
    world.wall_ms += jump_ms
    for _ in range(59):
        assert clock.expiry_ms() is None
        assert clock.now_ms() == world.wall_ms - jump_ms
        world.pass_by(60_000)
    assert caplog.text.count("kill -USR1") == 1
    assert ("ahead of" if jump_ms > 0 else "behind") in caplog.text
    # It went back as it came.
    world.wall_ms -= jump_ms
    assert clock.expiry_ms() == clock.now_ms() == world.wall_ms


@pytest.mark.parametrize("jump_ms", JUMPS)
def test_a_time_that_is_kept_for_an_hour_counts(jump_ms: int) -> None:
    world = World()
    clock = world.settled()
    world.wall_ms += jump_ms
    assert clock.expiry_ms() is None
    world.pass_by(SETTLE_MS - 1)
    assert clock.expiry_ms() is None
    world.pass_by(1)
    assert clock.expiry_ms() == clock.now_ms() == world.wall_ms


@pytest.mark.parametrize("jump_ms", JUMPS)
def test_an_operator_confirms_it(jump_ms: int) -> None:
    world = World()
    clock = world.clock()
    world.wall_ms += jump_ms
    assert clock.expiry_ms() is None
    clock.confirm()
    assert clock.expiry_ms() == clock.now_ms() == world.wall_ms
    world.wall_ms += 2 * DAY_MS
    assert clock.expiry_ms() is None


def test_the_hour_begins_anew_with_each_jump() -> None:
    world = World()
    clock = world.settled()
    for _ in range(5):
        world.wall_ms += DAY_MS
        assert clock.expiry_ms() is None
        world.pass_by(SETTLE_MS - 1)
        assert clock.expiry_ms() is None
    assert clock.now_ms() == world.wall_ms - 5 * DAY_MS


def test_small_steps_are_none_and_do_not_add_up_within_the_hour() -> None:
    world = World()
    clock = world.settled()
    for _ in range(100):
        world.wall_ms += STEP_MS_MAX
        assert clock.expiry_ms() == world.wall_ms
        world.pass_by(SETTLE_MS)
        assert clock.expiry_ms() == world.wall_ms
    # A clock that runs too fast gets no further in an hour.
    world.wall_ms += STEP_MS_MAX
    assert clock.expiry_ms() is not None
    world.wall_ms += 1
    assert clock.expiry_ms() is None


def test_a_clock_that_jumps_all_the_time_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    world = World()
    clock = world.settled()
    for number in range(1_000):
        world.wall_ms += DAY_MS if number % 2 else -DAY_MS
        world.pass_by(10)
        clock.now_ms()
    assert len(caplog.records) == 1


def test_suspends_are_no_jump() -> None:
    # The clock that it is compared with counts in suspends; this machine can at least tell which one it is.
    if hasattr(time, "CLOCK_BOOTTIME"):
        assert abs(elapsed_ms() - time.clock_gettime(time.CLOCK_BOOTTIME) * 1_000) < 60_000
    assert abs(wall_clock_ms() - time.time() * 1_000) < 60_000


def test_without_settling_the_wall_clock_is_taken_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    clock = world.clock(settle_ms=0)
    for jump_ms in JUMPS:
        world.wall_ms += jump_ms
        assert clock.expiry_ms() == clock.now_ms() == world.wall_ms
    assert not caplog.records


# --- from one run of a server to the next


def test_short_runs_add_up_to_the_hour() -> None:
    world = World()
    note = world.clock().note
    for _ in range(6):
        world.pass_by(SETTLE_MS // 6)
        clock = world.clock(note)
        note = clock.note
    assert clock.expiry_ms() == world.wall_ms
    # From then on, a start need not wait.
    world.pass_by(DAY_MS)
    assert world.clock(note).expiry_ms() == world.wall_ms


@pytest.mark.parametrize("jump_ms", JUMPS)
def test_a_jump_between_two_runs_is_seen(jump_ms: int) -> None:
    world = World()
    note = world.settled().note
    world.wall_ms += jump_ms
    world.pass_by(20_000)
    clock = world.clock(note)
    assert clock.expiry_ms() is None
    assert clock.now_ms() == world.wall_ms - jump_ms
    world.wall_ms -= jump_ms
    assert clock.expiry_ms() == world.wall_ms


def test_after_a_restart_of_the_system_a_start_waits() -> None:
    before = World()
    note = before.settled().note
    world = World("another run")
    world.wall_ms = before.wall_ms + DAY_MS
    clock = world.clock(note)
    assert (clock.now_ms(), clock.expiry_ms()) == (world.wall_ms, None)
    world.pass_by(SETTLE_MS)
    assert clock.expiry_ms() == world.wall_ms


def test_time_does_not_go_back_with_a_restart_of_the_system(caplog: pytest.LogCaptureFixture) -> None:
    before = World()
    note = before.settled().note
    world = World("another run")
    world.wall_ms = 1_000  # the battery of its clock is empty
    clock = world.clock(note)
    assert (clock.now_ms(), clock.expiry_ms()) == (before.wall_ms, None)
    assert "behind what it should show" in caplog.text
    world.pass_by(60_000)
    assert clock.now_ms() == before.wall_ms + 60_000
    # A time server sets it; that it is right is known an hour later.
    world.wall_ms = before.wall_ms + DAY_MS
    assert clock.expiry_ms() is None
    world.pass_by(SETTLE_MS)
    assert clock.expiry_ms() == world.wall_ms


def test_a_clock_that_is_far_ahead_at_a_start_is_named(caplog: pytest.LogCaptureFixture) -> None:
    before = World()
    note = before.settled().note
    world = World("another run")
    world.wall_ms = before.wall_ms + ABSENCE_MS_MAX
    world.clock(note)
    assert not caplog.records
    world.wall_ms += 1
    assert world.clock(note).expiry_ms() is None
    assert "180.0 d later than when this directory was used last" in caplog.text


def test_a_note_of_another_machine_says_nothing_of_the_difference() -> None:
    note = World("another machine").settled().note._replace(ahead_ms=0)
    world = World()
    world.pass_by(2 * SETTLE_MS)
    assert world.clock(note).now_ms() == world.wall_ms
    unknown = World("")
    unknown.pass_by(2 * SETTLE_MS)
    # Where the system does not say which run it is, two may look alike.
    assert unknown.clock(note._replace(boot="")).expiry_ms() is None


def test_changes_are_told() -> None:
    world = World()
    clock = world.clock()
    told: list[ClockNote] = []
    clock.on_change = lambda: told.append(clock.note)
    world.pass_by(SETTLE_MS - 1)
    clock.expiry_ms()
    assert not told
    world.pass_by(1)
    clock.expiry_ms()
    assert [note.is_settled for note in told] == [True]
