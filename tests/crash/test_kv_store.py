"""A store that crashed, lost power or was damaged: with the log it becomes exactly what it should be, or says no."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fluss.storage.kv.store import DamagedKvStoreError
from tests.crash import kv_workload
from tests.crash.kv_workload import READY, Bucket, Truth, check_recovered, rows_of
from tests.crash.traced_disk import Disk, can_trace, read_trace, traced

ROOT = Path(__file__).parents[2]
KILLS = 8
FULL_KILLS = 50
MOMENT_S_MAX = 0.6
ENDLESS = 1_000_000
LOSSES = 25
FULL_LOSSES = 400
TRACED_BATCHES = 120
BATCHES = 60
MANIFEST_CUT_STEP = 7


def start(directory: Path, seed: int, batches: int, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, "-m", kv_workload.__name__, str(directory), str(seed), str(batches)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def kill_and_recover(directory: Path, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    lost = 0
    for _ in range(kills):
        with start(directory, seed, ENDLESS) as child:
            assert child.stdout is not None
            assert child.stdout.readline().strip() == READY
            time.sleep(chance.uniform(0, MOMENT_S_MAX))
            child.kill()
            assert child.wait() == -signal.SIGKILL
        bucket = Bucket(directory, seed)
        store = bucket.recover()
        assert not bucket.reasons
        lost += bucket.log_end - store.state.covered_offset
        check_recovered(bucket, store)
        store.close()
    assert lost, "nothing ever had to be replayed: the kills prove nothing"


def test_kills(tmp_path: Path, seed: int) -> None:
    kill_and_recover(tmp_path, seed, KILLS)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_many_kills(tmp_path: Path, seed: int) -> None:
    kill_and_recover(tmp_path, seed, FULL_KILLS)


def lose_power(directory: Path, seed: int, losses: int) -> None:
    """Play what the disk may hold after a loss of power at random moments of a run that was watched."""
    chance = random.Random(seed)
    live, trace = directory / "live", directory / "trace"
    with start(live, seed, TRACED_BATCHES, traced(trace)) as child:
        assert child.wait() == 0
    calls = read_trace(trace)
    whole = Disk(live)
    whole.play(calls)
    assert whole.listing() == sorted(path for path in live.rglob("*")), "the trace was not understood"
    for loss in range(losses):
        step = chance.randrange(len(calls))
        disk = Disk(live)
        disk.play(calls[:step])
        image = directory / f"image-{loss}"
        disk.write_image(image, chance)
        bucket = Bucket(image, seed)
        try:
            store = bucket.recover()
        except Exception as error:
            error.add_note(f"power lost after step {step}: {image}")
            raise
        # Only a store that was still being made may be found unfit, or one whose manifest has a torn, unsynced end.
        for reason in bucket.reasons:
            assert "MANIFEST" in reason or (bucket.log_end == 0 and "no CURRENT" in reason), (step, bucket.reasons)
        check_recovered(bucket, store)
        store.close()
        shutil.rmtree(image)


# Not among the default tests: a machine without strace must be able to run those.
@pytest.mark.full
def test_power_loss(tmp_path: Path, seed: int) -> None:
    assert can_trace(), "install strace to run this test"
    lose_power(tmp_path, seed, LOSSES)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_many_power_losses(tmp_path: Path, seed: int) -> None:
    assert can_trace(), "install strace to run this test"
    lose_power(tmp_path, seed, FULL_LOSSES)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    """A bucket whose log no longer has its beginning, with two checkpoints and a closed store."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"rows are made from seed {seed}")
    bucket = Bucket(tmp_path_factory.mktemp("made"), seed)
    bucket.run(BATCHES)
    store = bucket.recover()
    for _ in range(2):
        bucket.run_one(store)
        bucket.checkpoint(store)
    bucket.run_one(store)
    store.close()
    assert bucket.log_start > 0
    assert len(bucket.checkpoints) == 2
    return bucket


@pytest.fixture
def bucket(made: Bucket, tmp_path: Path) -> Bucket:
    shutil.copytree(made.directory, tmp_path / "tables" / "1" / "0")
    return Bucket(tmp_path, made.truth.seed)


def largest(path: Path, pattern: str) -> Path:
    return max(path.glob(pattern), key=lambda file: file.stat().st_size)


def cut(path: Path, size_bytes: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size_bytes)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def empty(path: Path, kept: str | None = None) -> None:
    for file in path.iterdir():
        if file.suffix != kept:
            file.unlink()


DAMAGES: dict[str, Callable[[Path, random.Random], object]] = {
    "manifest cut": lambda kv, chance: cut(m := largest(kv, "MANIFEST-*"), chance.randrange(m.stat().st_size)),
    "manifest flipped": lambda kv, chance: flip(m := largest(kv, "MANIFEST-*"), chance.randrange(m.stat().st_size)),
    "manifest gone": lambda kv, _: largest(kv, "MANIFEST-*").unlink(),
    "current cut": lambda kv, chance: cut(kv / "CURRENT", chance.randrange(16)),
    "current gone": lambda kv, _: (kv / "CURRENT").unlink(),
    "rows cut": lambda kv, chance: cut(s := largest(kv, "*.sst"), chance.randrange(s.stat().st_size)),
    "rows gone": lambda kv, _: largest(kv, "*.sst").unlink(),
    "all but rows gone": lambda kv, _: empty(kv, kept=".sst"),
    "all gone": lambda kv, _: empty(kv),
    "store gone": lambda kv, _: shutil.rmtree(kv),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_is_rebuilt_or_still_good(bucket: Bucket, chance: random.Random, damage: str) -> None:
    DAMAGES[damage](bucket.path, chance)
    store = bucket.recover()
    check_recovered(bucket, store)
    store.close()


DAMAGES_OF_CHECKPOINTS = {
    **DAMAGES,
    "rows flipped": lambda kv, chance: flip(s := largest(kv, "*.sst"), chance.randrange(s.stat().st_size)),
}


@pytest.mark.parametrize("damage", DAMAGES_OF_CHECKPOINTS)
def test_the_older_checkpoint_helps_when_the_newer_is_damaged_too(
    bucket: Bucket, chance: random.Random, damage: str
) -> None:
    empty(bucket.path)
    DAMAGES_OF_CHECKPOINTS[damage](bucket.checkpoints[0], chance)
    store = bucket.recover()
    check_recovered(bucket, store)
    store.close()


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_manifest_cut_anywhere(made: Bucket, tmp_path: Path) -> None:
    """It opens as of an older state that the log has, or not at all; a checkpoint helps then."""
    for cut_at in range(0, largest(made.path, "MANIFEST-*").stat().st_size, MANIFEST_CUT_STEP):
        directory = tmp_path / str(cut_at)
        shutil.copytree(made.directory, directory / "tables" / "1" / "0")
        bucket = Bucket(directory, made.truth.seed)
        cut(largest(bucket.path, "MANIFEST-*"), cut_at)
        store = bucket.recover()
        check_recovered(bucket, store)
        store.close()
        shutil.rmtree(directory)


def test_nothing_left_to_build_from_is_an_error_that_changes_nothing(bucket: Bucket) -> None:
    for path in (bucket.path, *bucket.checkpoints):
        (path / "CURRENT").unlink()
    before = sorted(path for path in bucket.directory.rglob("*"))
    with pytest.raises(DamagedKvStoreError, match=rf"tables/1/0/kv: .* log begins at {bucket.log_start}"):
        bucket.recover()
    assert sorted(path for path in bucket.directory.rglob("*")) == before


def test_a_store_ahead_of_its_log_gives_way_to_a_checkpoint(bucket: Bucket) -> None:
    """The log has lost its end, as it may in a power loss when it is not synced."""
    newest = int(bucket.checkpoints[0].name.split("-")[1])
    cut(bucket.directory / "log", newest * 8)
    with pytest.raises(DamagedKvStoreError, match="the log has lost rows"):
        bucket.recover()
    store = bucket.recover(log_may_lack_rows=True)
    assert store.state.covered_offset == newest
    check_recovered(bucket, store)
    store.close()


def test_a_damaged_block_is_an_error_when_it_is_read_and_the_store_can_be_rebuilt(bucket: Bucket) -> None:
    file = largest(bucket.path, "*.sst")
    flip(file, file.stat().st_size // 2)
    store = bucket.recover()
    with pytest.raises(DamagedKvStoreError, match=r"tables/1/0/kv: .*checksum"):
        rows_of(store)
    with pytest.raises(DamagedKvStoreError, match=r"tables/1/0/kv: .*checksum"):
        store.get_many([b"key-%d" % key for key in range(kv_workload.KEYS)])
    store.close()
    store = bucket.recover(trust_live=False)
    check_recovered(bucket, store)
    store.close()


def test_a_log_with_its_beginning_makes_a_store_from_nothing(tmp_path: Path, seed: int) -> None:
    made = Bucket(tmp_path, seed)
    made.run(5)
    (made.path / "CURRENT").unlink()
    for checkpoint in made.checkpoints:
        kv_workload.remove(checkpoint)
    (made.directory / "log_start").unlink(missing_ok=True)
    store = made.recover()
    assert store.state == Truth(seed).state
    check_recovered(made, store)
    store.close()
