"""Rot, by seed: a data directory after a kill, a stop or a start, one damage to one of its files, and the verdict.

    python -m tests.crash.rot --seeds 0:5000 [--server] [--no-ledger]

prints each failure with what replays it, a table of what was damaged how, and adds a line to the ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from tests.crash.ledger import record
from tests.crash.rot_client import examine_by_client
from tests.crash.rot_damage import Damage, draw
from tests.crash.rot_directory import Builder, RotTemplate
from tests.crash.rot_oracle import examine
from tests.crash.rot_server import ServerTemplate, build

SUITE, SERVER_SUITE = "rot", "rot-server"
TEMPLATES: Final = 24
SERVER_TEMPLATES: Final = 6
KILLED, STOPPED, RUNNING = "kill", "stop", "start"
_ENDINGS: Final = (KILLED, STOPPED, KILLED, STOPPED, RUNNING)
SEED_S_MAX: Final = 60
SERVER_SEED_S_MAX: Final = 180
_MEMORY_DIRECTORY: Final = Path("/dev/shm")


class Verdict(NamedTuple):
    seed: int
    ending: str
    damage: Damage
    problems: list[str]
    errors: list[str]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, after a {self.ending}: {self.damage}", *self.problems[:6]]
        return "\n    ".join(line[:600] for line in lines)


class RotRun:
    """Seeds with the templates they share, below one directory."""

    def __init__(self, directory: Path, templates: int = TEMPLATES) -> None:
        self.directory = directory
        self._template_count = templates
        self._templates: dict[int, RotTemplate] = {}

    def template(self, number: int) -> RotTemplate:
        if number not in self._templates:
            root = self.directory / f"template-{number}"
            self._templates[number] = asyncio.run(Builder(root, number).run())
            shutil.rmtree(root)
        return self._templates[number]

    def verdict(self, seed: int) -> Verdict:
        """Damage and use one copy."""
        chance = random.Random(seed)
        template = self.template(chance.randrange(self._template_count))
        ending = chance.choice(_ENDINGS)
        image = template.stopped if ending == STOPPED else template.killed
        damage = draw(chance, image, template.earlier, under_way=ending == RUNNING)
        root = self.directory / f"seed-{seed}"
        image.write(root)
        try:
            with _time_limit(SEED_S_MAX):
                found = asyncio.run(examine(root, template, image, damage, damage_later=ending == RUNNING))
            return Verdict(seed, ending, damage, found.problems, found.errors)
        except Exception as error:
            return Verdict(seed, ending, damage, [f"the examination ended with {error!r}"], [])
        finally:
            shutil.rmtree(root, ignore_errors=True)


class ServerRotRun:
    """The same with a server process and its clients."""

    def __init__(self, directory: Path, templates: int = SERVER_TEMPLATES) -> None:
        self.directory = directory
        self._template_count = templates
        self._templates: dict[int, ServerTemplate] = {}

    def template(self, number: int) -> ServerTemplate:
        if number not in self._templates:
            place = self.directory / f"template-{number}"
            self._templates[number] = build(place, kill=_is_killed(number))
            shutil.rmtree(place)
        return self._templates[number]

    def verdict(self, seed: int) -> Verdict:
        """Damage one copy, and start a server over it."""
        chance = random.Random(seed)
        number = chance.randrange(self._template_count)
        template, ending = self.template(number), KILLED if _is_killed(number) else STOPPED
        damage = draw(chance, template.image, template.earlier)
        place = self.directory / f"seed-{seed}"
        place.mkdir()
        template.image.write(place / "data")
        damage.apply(place / "data")
        try:
            with _time_limit(SERVER_SEED_S_MAX):
                found = examine_by_client(place, template, damage)
            return Verdict(seed, ending, damage, found.problems, found.errors)
        except Exception as error:
            return Verdict(seed, ending, damage, [f"the examination ended with {error!r}"], [])
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _is_killed(number: int) -> bool:
    return number % 2 == 0


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def ring(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def work_directory() -> Iterator[Path]:
    """In memory where that is possible: a kill does not ask the disk."""
    parent = _MEMORY_DIRECTORY if _MEMORY_DIRECTORY.is_dir() else None
    path = Path(tempfile.mkdtemp(prefix="rot-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Summary:
    """Verdicts by kind of file, damage and ending."""

    def __init__(self) -> None:
        self.failures = 0
        self._rows: Counter[tuple[str, str, str]] = Counter()
        self._failed: Counter[tuple[str, str, str]] = Counter()
        self._refused: Counter[tuple[str, str, str]] = Counter()

    def add(self, verdict: Verdict) -> None:
        key = (verdict.damage.kind, verdict.damage.how, verdict.ending)
        self._rows[key] += 1
        self._failed[key] += bool(verdict.problems)
        self._refused[key] += bool(verdict.errors)
        self.failures += bool(verdict.problems)

    def print(self) -> None:
        print(f"{'file':26} {'damage':8} {'after':6} {'seeds':>6} {'refused':>8} {'FAILED':>7}")
        for key in sorted(self._rows):
            kind, how, ending = key
            counts = f"{self._rows[key]:>6} {self._refused[key]:>8} {self._failed[key] or '':>7}"
            print(f"{kind:26} {how:8} {ending:6} {counts}")


def run(first: int, end: int, *, server: bool) -> Summary:
    """All seeds from `first` to before `end`."""
    summary = Summary()
    started_s = time.monotonic()
    with work_directory() as directory:
        seeds = ServerRotRun(directory) if server else RotRun(directory)
        for seed in range(first, end):
            verdict = seeds.verdict(seed)
            summary.add(verdict)
            if verdict.problems:
                print(verdict, flush=True)
    summary.print()
    print(f"{end - first} seeds, {summary.failures} failures, {time.monotonic() - started_s:.0f} s")
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:5000", help="FIRST:END, the end not included")
    parser.add_argument("--server", action="store_true", help="through a server process and its clients")
    parser.add_argument("--no-ledger", action="store_true")
    arguments = parser.parse_args()
    first, end = map(int, arguments.seeds.split(":"))
    logging.disable(logging.CRITICAL)
    summary = run(first, end, server=arguments.server)
    if not arguments.no_ledger:
        record(SERVER_SUITE if arguments.server else SUITE, first, end - 1, summary.failures)
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main())
