"""Rot in one file: no wrong row, no row missing without an error that names the file, no number or id twice."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss.formats.batches.log_batch import parse_header, stamp
from fluss.storage.store import Storage
from tests.crash.rot import RotRun, ServerRotRun, Verdict, work_directory
from tests.crash.rot_damage import LAST_SEGMENT, SEALED_SEGMENT, Damage, kinds
from tests.crash.rot_directory import LOG, RotTemplate, log_batch, options
from tests.crash.rot_oracle import Examination, examine
from tests.kit.directory_image import DirectoryImage
from tests.kit.rows import Row

SEEDS = 40
TEMPLATES = 4
FULL_SEEDS = 5_000
FULL_CHUNKS = 20
SERVER_SEEDS = 3
FULL_SERVER_SEEDS = 200


@pytest.fixture(autouse=True)
def no_logs(caplog: pytest.LogCaptureFixture) -> None:
    """Each damage is logged many times: thousands of lines with a failure that says all by itself."""
    caplog.set_level(logging.CRITICAL + 1, "fluss")


@pytest.fixture(scope="module")
def rot() -> Iterator[RotRun]:
    with work_directory() as directory:
        yield RotRun(directory, TEMPLATES)


@pytest.fixture
def place(rot: RotRun) -> Path:
    """For a copy, where syncs take no time."""
    return rot.directory / "copy"


def check(verdicts: list[Verdict]) -> None:
    failed = [str(verdict) for verdict in verdicts if verdict.problems]
    assert not failed, f"{len(failed)} of {len(verdicts)} seeds failed\n" + "\n".join(failed[:10])


def examined(root: Path, template: RotTemplate, image: DirectoryImage, damage: Damage | None = None) -> Examination:
    image.write(root)
    try:
        return asyncio.run(examine(root, template, image, damage))
    finally:
        shutil.rmtree(root)


def test_one_damage_to_one_file(rot: RotRun, seed: int) -> None:
    check([rot.verdict(number) for number in range(seed, seed + SEEDS)])


def test_one_damage_under_a_server() -> None:
    with work_directory() as directory:
        run = ServerRotRun(directory, templates=1)
        check([run.verdict(number) for number in range(SERVER_SEEDS)])


@pytest.mark.parametrize("ending", ["killed", "stopped"])
def test_without_damage_all_is_as_it_was(place: Path, rot: RotRun, ending: str) -> None:
    """No error is taken for right where nothing is wrong."""
    template = rot.template(0)
    found = examined(place, template, getattr(template, ending))
    assert not found.problems
    assert not found.errors


def test_a_wrong_row_is_noticed(place: Path, rot: RotRun) -> None:
    """The check can fail: another row with a good checksum, which no storage can tell, does not pass."""
    template = rot.template(0)
    content = next(content for content in template.known.logs if content.table == LOG)
    bucket = f"tables/{content.bucket.table_id}/{content.bucket.bucket_id}/"
    path = next(name for name in kinds(template.stopped)[LAST_SEGMENT] if name.startswith(bucket))
    data = template.stopped.files[path].data
    old = parse_header(data)
    rows = [Row(77, number) for number in range(old.record_count)]
    forged = log_batch(rows, old.writer_id, old.batch_sequence)
    stamp(forged, 0, old.base_offset, old.commit_timestamp_ms)
    damage = Damage(path, LAST_SEGMENT, "forgery", "", bytes(forged) + data[old.size_bytes :])
    found = examined(place, template, template.stopped, damage)
    assert any(f"another batch at offset {old.base_offset}" in problem for problem in found.problems)


def test_a_missing_error_is_noticed(place: Path, rot: RotRun) -> None:
    """The check can fail: an error does not excuse what is wrong in a bucket whose files are whole."""
    template = rot.template(0)
    content = next(content for content in template.known.logs if content.table == LOG)
    bucket = f"tables/{content.bucket.table_id}/{content.bucket.bucket_id}/"
    path = min(name for name in kinds(template.killed)[SEALED_SEGMENT] if name.startswith(bucket))
    elsewhere = next(name for name in kinds(template.killed)[LAST_SEGMENT] if not name.startswith(bucket))
    image = DirectoryImage(dict(template.killed.files), template.killed.directories)
    whole = image.files[path]
    image.files[path] = whole._replace(data=whole.data[:-1] + bytes([whole.data[-1] ^ 1]))
    damage = Damage(elsewhere, LAST_SEGMENT, "append", "", template.killed.files[elsewhere].data + b"\0")
    found = examined(place, template, image, damage)
    assert any("another file is damaged" in problem for problem in found.problems)


def test_a_restored_backup_gives_out_no_writer_id_again(place: Path, rot: RotRun) -> None:
    """Clients outlive it: whoever gets the id of one of them is taken for it."""
    for number in range(TEMPLATES):
        template = rot.template(number)
        template.earlier[0].write(place)
        try:
            found = asyncio.run(new_writer_ids(place, 2 * len(template.known.writer_ids)))
        finally:
            shutil.rmtree(place)
        assert not found & template.known.writer_ids


async def new_writer_ids(root: Path, count: int) -> set[int]:
    storage = await Storage.open(options(root))
    try:
        return {storage.catalog.next_writer_id() for _ in range(count)}
    finally:
        await storage.close()


@pytest.mark.full
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("chunk", range(FULL_CHUNKS))
def test_five_thousand_seeds(chunk: int) -> None:
    count = FULL_SEEDS // FULL_CHUNKS
    with work_directory() as directory:
        whole = RotRun(directory)
        check([whole.verdict(number) for number in range(chunk * count, (chunk + 1) * count)])


@pytest.mark.full
@pytest.mark.timeout(3_600)
def test_two_hundred_seeds_under_a_server() -> None:
    with work_directory() as directory:
        run = ServerRotRun(directory)
        check([run.verdict(number) for number in range(FULL_SERVER_SEEDS)])
