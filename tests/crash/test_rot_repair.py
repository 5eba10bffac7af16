"""Repairs of damaged data directories: said before what is lost, and no more than that is lost."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fluss.storage import failpoints
from fluss.storage.damage.survey import CatalogDamage, LogDamage, MovableDamage, SnapshotDamage, survey
from fluss.storage.failpoints import NAMES, FailPointError
from tests.crash.rot import Verdict, work_directory
from tests.crash.rot_damage import (
    LAKE_OFFSETS,
    LAST_CHANGELOG,
    LAST_SEGMENT,
    OLD,
    SEALED_CHANGELOG,
    SEALED_SEGMENT,
    STAGED_ROWS,
    Damage,
    kinds,
)
from tests.crash.rot_directory import RotTemplate
from tests.crash.rot_repair import RepairRun, repair
from tests.kit.directory_image import DirectoryImage

SEEDS = 10
FULL_SEEDS = 2_000
FULL_CHUNKS = 10


@pytest.fixture(autouse=True)
def no_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "fluss")


@pytest.fixture(scope="module")
def run() -> Iterator[RepairRun]:
    with work_directory() as directory:
        yield RepairRun(directory, 2)


def check(verdicts: list[Verdict]) -> None:
    failed = [str(verdict) for verdict in verdicts if verdict.problems]
    assert not failed, f"{len(failed)} of {len(verdicts)} seeds failed\n" + "\n".join(failed[:10])


def changed(image: DirectoryImage, kind: str, change: Callable[[bytes], bytes | None], at: int = 0) -> Damage:
    """A damage to a file of a kind."""
    path = kinds(image)[kind][at]
    return Damage(path, kind, "test", "", change(image.files[path].data))


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def length_gone(data: bytes) -> bytes:
    """The first batch says that it takes more than the file has."""
    return data[:11] + b"\x7f" + data[12:]


WAYS: dict[str, Callable[[bytes], bytes | None]] = {
    "flipped": flipped,
    "length": length_gone,
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda _: b"",
    "missing": lambda _: None,
    "longer": lambda data: data + bytes(100),
}


@pytest.mark.parametrize("kind", [LAST_SEGMENT, SEALED_SEGMENT, LAST_CHANGELOG, SEALED_CHANGELOG])
@pytest.mark.parametrize("way", WAYS)
def test_a_log(run: RepairRun, kind: str, way: str) -> None:
    """Whatever becomes of a segment, after a kill."""
    template = run.template(0)
    assert run.problems_of(template, template.killed, [changed(template.killed, kind, WAYS[way])]) == []


@pytest.mark.full
@pytest.mark.parametrize("kind", [LAST_SEGMENT, SEALED_SEGMENT, LAST_CHANGELOG, SEALED_CHANGELOG])
@pytest.mark.parametrize("way", WAYS)
def test_every_log(run: RepairRun, kind: str, way: str) -> None:
    """Of each bucket, after a kill and after a stop."""
    template = run.template(0)
    for image in (template.killed, template.stopped):
        for at in range(len(kinds(image)[kind])):
            assert run.problems_of(template, image, [changed(image, kind, WAYS[way], at)]) == []


@pytest.mark.parametrize("kind", ["catalog.db", "store sst", "snapshot sst", STAGED_ROWS, LAKE_OFFSETS, "marks"])
def test_other_files(run: RepairRun, kind: str) -> None:
    template = run.template(1)
    assert run.problems_of(template, template.stopped, [changed(template.stopped, kind, flipped)]) == []


def test_bytes_behind_a_manifest(run: RepairRun) -> None:
    """RocksDB alone would read them for ever, and the server with it."""
    template = run.template(0)
    image = template.stopped
    assert run.problems_of(template, image, [changed(image, "store MANIFEST", lambda data: data + data[-101:])]) == []


def old_catalog(template: RotTemplate) -> list[Damage]:
    return [
        Damage(name, name, OLD, "", template.earlier[0].files[name].data)
        for name in ("catalog.db", "catalog.db-wal")
        if name in template.earlier[0].files
    ]


def test_an_old_catalog(run: RepairRun) -> None:
    """It is taken as it is; its ids go on behind those that were used."""
    template = run.template(0)
    assert run.problems_of(template, template.killed, old_catalog(template)) == []


def test_many_damages_at_once(run: RepairRun) -> None:
    template = run.template(0)
    image = template.killed
    damages = [
        changed(image, SEALED_SEGMENT, flipped),
        changed(image, SEALED_SEGMENT, lambda _: None, 1),
        changed(image, LAST_CHANGELOG, length_gone),
        changed(image, "store sst", flipped),
        changed(image, STAGED_ROWS, flipped),
    ]
    assert run.problems_of(template, image, damages) == []


def test_damages_by_seed(run: RepairRun, seed: int) -> None:
    check([run.verdict(number) for number in range(seed, seed + SEEDS)])


@pytest.mark.full
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("chunk", range(FULL_CHUNKS))
def test_two_thousand_seeds(chunk: int) -> None:
    count = FULL_SEEDS // FULL_CHUNKS
    with work_directory() as directory:
        whole = RepairRun(directory)
        check([whole.verdict(number) for number in range(chunk * count, (chunk + 1) * count)])


def damaged_directory(run: RepairRun, root: Path) -> None:
    template = run.template(0)
    image = template.killed
    image.write(root)
    for damage in (
        changed(image, SEALED_SEGMENT, flipped),
        changed(image, LAST_SEGMENT, lambda _: None),
        changed(image, "snapshot sst", flipped),
        changed(image, STAGED_ROWS, flipped),
        *old_catalog(template),
    ):
        damage.apply(root)


def test_what_is_said(run: RepairRun) -> None:
    root = run.directory / "said"
    damaged_directory(run, root)
    found = survey(root)
    kinds_found = {type(damage) for damage in found.damages}
    assert {CatalogDamage, LogDamage, MovableDamage, SnapshotDamage} <= kinds_found
    for damage in found.damages:
        assert damage.subject
        assert damage.text
        assert damage.repair
        assert (root / damage.path.parent).exists()
    (missing,) = [damage for damage in found.damages if "is missing" in damage.text and "log" in damage.path.suffix]
    assert missing.loss.endswith(f"to {missing.check.end_offset - 1}")  # type: ignore[attr-defined]
    shutil.rmtree(root)


def test_too_many_offsets_are_not_filled(run: RepairRun) -> None:
    root, image = run.directory / "filled", run.template(0).stopped
    image.write(root)
    changed(image, LAST_SEGMENT, lambda _: None).apply(root)
    (damage,) = survey(root, fill_offsets_max=1).damages
    assert not damage.repair
    assert "--fill-max allows 1" in damage.advice
    shutil.rmtree(root)


REPAIR_POINTS = [name for name in NAMES if name.startswith("repair.")]


@pytest.mark.parametrize("point", [*REPAIR_POINTS, "marks.write.before_write", "catalog.commit.after_commit"])
@pytest.mark.parametrize("count", [1, *(pytest.param(count, marks=pytest.mark.full) for count in (2, 3, 5, 8, 13))])
def test_an_interrupted_repair_is_finished_by_the_next(run: RepairRun, point: str, count: int) -> None:
    """And nothing more is lost than the first one said."""
    root = run.directory / "interrupted"
    damaged_directory(run, root)
    lost = _lost(root)
    failpoints.arm(f"{point}:{count}:raise")
    try:
        repair(root, survey(root))
        assert count > 1, f"{point} is never passed"
    except FailPointError:
        pass
    finally:
        failpoints.disarm()
    assert _lost(root) <= lost
    repair(root, survey(root))
    left = survey(root)
    assert left.damages == []
    assert left.size_bytes > 0
    _check_kept(root)
    shutil.rmtree(root)


@pytest.mark.parametrize(
    "point", ["repair.replace.torn_write", "repair.keep.after_rename", "catalog.commit.after_commit"]
)
def test_a_killed_repair_is_finished_by_the_next(run: RepairRun, point: str) -> None:
    """The command itself: a killed process closes no file and no database."""
    root = run.directory / "killed"
    damaged_directory(run, root)
    lost = _lost(root)
    command = [sys.executable, "-m", "fluss", "repair", str(root), "--apply"]
    env = {**os.environ, failpoints.ENVIRONMENT_VARIABLE: f"{point}:1:kill"}
    killed = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert _lost(root) <= lost
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert survey(root).damages == []
    _check_kept(root)
    shutil.rmtree(root)


def _lost(root: Path) -> set[tuple[str, int]]:
    """All offsets that are said to be lost."""
    return {
        (damage.subject, offset)
        for damage in survey(root).damages
        if isinstance(damage, LogDamage)
        for hole in damage.check.holes
        for offset in range(hole.offset, hole.end_offset)
    }


def _check_kept(root: Path) -> None:
    """What was replaced is in `lost`, and nothing half done is left."""
    kept = [path for path in (root / "lost").rglob("*") if path.is_file()]
    assert any(path.name.endswith(".log") for path in kept)
    assert not [name for _, _, names in os.walk(root / "tables") for name in names if name.endswith(".log.tmp")]
