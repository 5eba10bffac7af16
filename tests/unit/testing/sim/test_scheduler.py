"""Simulated threads: one runs at a time, whose turn it is comes from the seed, and time leaps when nobody can run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from fluss.testing.sim import waiting
from fluss.testing.sim.scheduler import Scheduler, SimProcess, SimThread, StuckError, Trace
from fluss.testing.sim.waiting import SimCondition, SimEvent, SimLock, SimLoop, SimPool


def scheduler_of(seed: int = 1) -> Scheduler:
    scheduler = Scheduler(seed, Trace())
    scheduler.adopt(SimProcess("test", "here"))
    return scheduler


def started(scheduler: Scheduler, run: Callable[[], object], process: SimProcess | None = None) -> SimThread:
    thread = SimThread(scheduler, process or scheduler.main.process, "some", run)
    thread.start()
    return thread


def order(seed: int) -> list[int]:
    """In which order some threads get their turns."""
    scheduler = scheduler_of(seed)
    turns: list[int] = []

    def run(number: int) -> None:
        for _ in range(3):
            turns.append(number)
            scheduler.switch()

    for thread in [started(scheduler, lambda number=number: run(number)) for number in range(4)]:  # type: ignore[misc]
        thread.join()
    return turns


def test_turns_come_from_the_seed() -> None:
    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(5)}) > 1


def test_hours_pass_when_nobody_can_run() -> None:
    scheduler = scheduler_of()
    woken: list[str] = []
    late = started(scheduler, lambda: (scheduler.sleep(7_200), woken.append("late")))
    started(scheduler, lambda: (scheduler.sleep(3_600), woken.append("early")))
    late.join()
    assert woken == ["early", "late"]
    assert 7_200 <= scheduler.seconds() < 7_201


def test_a_lock_is_held_by_one() -> None:
    scheduler = scheduler_of()
    lock, inside = SimLock(scheduler), []

    def run() -> None:
        with lock:
            inside.append(1)
            scheduler.sleep(1)
            inside.pop()

    threads = [started(scheduler, run) for _ in range(3)]
    scheduler.sleep(0.5)
    assert len(inside) == 1
    assert not lock.acquire(timeout=0.1)
    for thread in threads:
        thread.join()
    assert lock.acquire(blocking=False)


def test_conditions_and_events_wake_and_time_out() -> None:
    scheduler = scheduler_of()
    condition, event = SimCondition(scheduler), SimEvent(scheduler)
    seen: list[bool] = []

    def run() -> None:
        with condition:
            seen.append(condition.wait(10))
        seen.append(event.wait(1))

    thread = started(scheduler, run)
    scheduler.sleep(1)
    with condition:
        condition.notify_all()
    thread.join()
    assert seen == [True, False]


def test_a_pool_has_so_many_threads() -> None:
    scheduler = scheduler_of()
    pool = SimPool(scheduler, 2, "some")
    futures: list[Future[None]] = [pool.submit(scheduler.sleep, 1) for _ in range(4)]
    waiting.wait(scheduler, futures)
    assert 2 <= scheduler.seconds() < 2.1
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(print)


def test_a_loop_is_woken_by_threads_and_by_time() -> None:
    scheduler = scheduler_of()
    pool = SimPool(scheduler, 1, "some")

    async def main() -> float:
        await asyncio.get_running_loop().run_in_executor(pool, scheduler.sleep, 5)
        await asyncio.sleep(60)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=lambda: SimLoop(scheduler)) as runner:
        assert 65 <= runner.run(main()) < 65.1


def test_who_is_killed_does_nothing_more() -> None:
    scheduler = scheduler_of()
    process, ended, done = SimProcess("victim", "there"), [], []
    process.at_end.append(lambda: ended.append(1))

    def run() -> None:
        try:
            scheduler.sleep(1)
        finally:
            done.append(1)

    started(scheduler, run, process)
    scheduler.sleep(0.5)
    scheduler.kill(process)
    scheduler.sleep(5)
    assert (ended, done) == ([1], [])


def test_a_thread_can_kill_its_own_process() -> None:
    scheduler = scheduler_of()
    process, done = SimProcess("victim", "there"), []
    started(scheduler, lambda: (scheduler.kill(process), done.append(1)), process)
    scheduler.sleep(1)
    assert (process.is_alive, done) == (False, [])


def test_nobody_waits_for_ever_unnoticed() -> None:
    scheduler = scheduler_of()
    with pytest.raises(StuckError):
        SimEvent(scheduler).wait()
