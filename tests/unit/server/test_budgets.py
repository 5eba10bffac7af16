"""Memory shared by all connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fluss.doors import clock, replaced
from fluss.server.net.budgets import PASS_S, RESPONSE_BYTES_MIN, FrameShare, RequestBudget, ResponseBudget, Turns


class Frames:
    """Large frames of a budget of 100 bytes; what was granted later, in its order."""

    def __init__(self, bytes_max: int = 100) -> None:
        self._soon: list[Callable[[], None]] = []
        self.budget = RequestBudget(bytes_max, self._soon.append)
        self.granted: list[FrameShare] = []

    def begin(self, size_bytes: int, address: str = "192.0.2.1") -> FrameShare:
        share = FrameShare(address, size_bytes, lambda: self.granted.append(share))
        return share

    def fill(self) -> FrameShare:
        """A frame that holds everything."""
        share = self.begin(100, "192.0.2.9")
        self.budget._hold(share, 100)
        return share

    def end(self, share: FrameShare) -> None:
        self.budget.end(share)
        self.settle()

    def settle(self) -> None:
        while self._soon:
            self._soon.pop(0)()


def test_a_frame_holds_what_it_asked_for_and_not_its_size() -> None:
    frames = Frames()
    announced = [frames.begin(100) for _ in range(50)]
    assert all(frames.budget.grow(share, 1) for share in announced)
    assert frames.budget.used_bytes == 50
    assert frames.budget.grow(frames.begin(20), 20)


def test_however_many_frames_stand_still_the_next_finds_room() -> None:
    frames = Frames(100_000)
    for _ in range(30):
        share = frames.begin(100_000)
        wanted_bytes = 64
        while wanted_bytes < 50_000 and frames.budget._fits(share, wanted_bytes):
            assert frames.budget.grow(share, wanted_bytes)
            wanted_bytes *= 2
    assert frames.budget.used_bytes <= 75_000
    assert frames.budget.grow(frames.begin(500), 500)


def test_an_address_leaves_room_to_the_others() -> None:
    frames = Frames()
    greedy = [frames.begin(100) for _ in range(20)]
    for share in greedy:
        frames.budget.grow(share, 3)
    assert [frames.budget.grow(share, 15) for share in greedy].count(False) == 18
    # One has a place of its own and one beside; the others wait, as would one more of this address.
    assert sum(share.held_bytes for share in greedy) <= 75
    assert not frames.budget.grow(frames.begin(10), 10)
    assert frames.budget.grow(frames.begin(20, "192.0.2.2"), 20)


def test_frames_that_are_half_there_finish_one_after_the_other() -> None:
    frames = Frames()
    shares = [frames.begin(size) for size in (90, 80, 70, 60)]
    for share in shares:
        assert frames.budget.grow(share, 15)
    # None may have twice as much now but the first, which gets all; the others wait.
    assert [frames.budget.grow(share, 45) for share in shares] == [True, False, False, False]
    assert shares[0].missing_bytes == 0
    frames.end(shares[0])
    waiting = [share for share in shares[1:] if share not in frames.granted]
    assert frames.granted
    while waiting:
        frames.end(frames.granted[-1])
        waiting = [share for share in waiting if share not in frames.granted]
    for share in frames.granted:
        frames.end(share)
    assert frames.budget.used_bytes == 0
    assert not frames.budget._used_by_address


def test_a_short_frame_finishes_before_long_ones() -> None:
    frames = Frames()
    frames.fill()
    first, long, short = frames.begin(80), frames.begin(70), frames.begin(20)
    assert frames.budget.grow(first, 10)
    assert not frames.budget.grow(long, 10)
    assert not frames.budget.grow(short, 10)
    frames.end(first)
    assert frames.granted == [short]
    frames.end(short)
    assert frames.granted == [short, long]


def test_the_oldest_frame_is_not_passed_over_for_ever() -> None:
    frames = Frames()
    frames.fill()
    first, long = frames.begin(1), frames.begin(90)
    assert frames.budget.grow(first, 1)
    assert not frames.budget.grow(long, 10)
    current = first
    for _ in range(10):
        short = frames.begin(5)
        assert not frames.budget.grow(short, 5)
        frames.end(current)
        current = frames.granted[-1]
    assert long in frames.granted


def test_a_frame_that_ends_while_it_waits_is_forgotten() -> None:
    frames = Frames()
    frames.fill()
    first, gone, last = frames.begin(50), frames.begin(40), frames.begin(60)
    frames.budget.grow(first, 10)
    frames.budget.grow(gone, 10)
    frames.budget.grow(last, 10)
    frames.end(gone)
    frames.end(first)
    assert frames.granted == [last]
    frames.end(last)
    assert frames.budget.used_bytes == 100


def test_released_bytes_let_waiting_frames_go_on() -> None:
    frames = Frames()
    full = frames.fill()
    lane, waiting = frames.begin(50), frames.begin(50)
    assert frames.budget.grow(lane, 1)
    assert (frames.budget.used_bytes, frames.budget.exceeded) == (150, False)
    assert not frames.budget.grow(waiting, 10)
    frames.budget.end(full)
    assert not frames.granted, "not within the release"
    frames.settle()
    assert frames.granted == [waiting]


def test_no_frame_gets_more_than_there_is_while_requests_are_executed() -> None:
    frames = Frames()
    frames.budget.add(90)
    frame = frames.begin(50)
    assert not frames.budget.grow(frame, 20)
    frames.budget.release(50)
    frames.settle()
    assert frames.granted == [frame]
    assert frames.budget.used_bytes <= 100


def test_responses_shrink_when_clients_do_not_read() -> None:
    budget = ResponseBudget(100 * RESPONSE_BYTES_MIN)
    allowances = []
    for _ in range(40):
        allowances.append(budget.allowance_bytes())
        budget.add(allowances[-1])
    assert allowances == sorted(allowances, reverse=True)
    assert allowances[-1] == RESPONSE_BYTES_MIN
    assert budget.unsent_bytes <= 110 * RESPONSE_BYTES_MIN + 40 * RESPONSE_BYTES_MIN
    budget.release(budget.unsent_bytes)
    assert budget.allowance_bytes() == allowances[0]


async def test_a_pass_of_turns_ends_when_its_time_is_over() -> None:
    """However many wait: between two passes the loop looks at its sockets."""
    now_s, taken = 0.0, 0

    def take_turn() -> None:
        nonlocal now_s, taken
        now_s += PASS_S / 2
        taken += 1

    with replaced(clock, monotonic=lambda: now_s):
        turns = Turns(asyncio.get_running_loop())
        for _ in range(10):
            turns.wait(take_turn)
        for passes in range(1, 6):
            await asyncio.sleep(0)
            assert taken == 2 * passes
