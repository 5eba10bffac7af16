"""Backups of a server under load: restored they are a prefix of every bucket; a killed one is refused."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

import fluss
import fluss.sync
from fluss.client.admin import make_backup
from fluss.client.runtime import run
from fluss.storage import failpoints
from fluss.storage.backup import files
from fluss.storage.backup.files import BackupManifest
from fluss.storage.backup.restore import check, restore
from fluss.storage.failpoints import STEPS, Site
from fluss.testing import FlussServer
from tests.crash.fail_point_hits import BACKUP_HITS
from tests.crash.servers import new_server

LOG: Final = fluss.TablePath("fluss", "log")
ROWS: Final = fluss.TablePath("fluss", "rows")
FIELDS: Final = pa.schema([("id", pa.int64()), ("turn", pa.int64()), ("text", pa.string())])
BUCKETS: Final = 2
KEYS: Final = 40
ROWS_PER_TURN: Final = 20
TURNS_FIRST: Final = 15  # written before the backup
DEATH_S_MAX: Final = 60.0
PATIENT_MS: Final = 60_000
GIVE_UP_MS: Final = 8_000  # of clients whose server will be killed


class Load:
    """Appends rows and upserts them, until it is stopped or the server is gone; counts what was acknowledged."""

    def __init__(self, address: str, give_up_ms: int = PATIENT_MS) -> None:
        self.address = address
        self._give_up_ms = give_up_ms
        self.turns = 0  # acknowledged
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: BaseException | None = None

    def create(self) -> None:
        with fluss.sync.connect(self.address) as connection:
            admin = connection.get_admin()
            few = {"log.retention.size-bytes": "60000"}  # retention is at work all the time
            log = fluss.TableDescriptor(fluss.Schema(FIELDS), bucket_count=BUCKETS, bucket_keys=["id"])
            keyed = fluss.Schema(FIELDS, primary_keys=["id"])
            rows = fluss.TableDescriptor(keyed, bucket_count=BUCKETS, custom_properties=few)
            admin.create_table(LOG, log)
            admin.create_table(ROWS, rows)

    def start(self) -> None:
        self._thread.start()

    def await_turns(self, turns: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.turns >= turns or not self._thread.is_alive(), DEATH_S_MAX)
        assert self.turns >= turns, self.error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(DEATH_S_MAX)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with fluss.sync.connect(
                self.address, request_timeout_ms=self._give_up_ms, writer_delivery_timeout_ms=self._give_up_ms
            ) as connection:
                appends = connection.get_table(LOG).new_append().create_writer()
                upserts = connection.get_table(ROWS).new_upsert().create_writer()
                while not self._stop.is_set():
                    batch = turn(self.turns)
                    appends.write_arrow(batch)
                    upserts.write_arrow(batch)
                    appends.flush()
                    upserts.flush()
                    with self._changed:
                        self.turns += 1
                        self._changed.notify_all()
        except fluss.FlussError as error:
            self.error = error
        finally:
            with self._changed:
                self._changed.notify_all()


def turn(number: int) -> pa.Table:
    ids = [(number * 7 + at) % KEYS for at in range(ROWS_PER_TURN)]
    return pa.table({"id": ids, "turn": [number] * len(ids), "text": ["x" * 50] * len(ids)}, FIELDS)


def back_up(address: str, target: Path, give_up_ms: int = PATIENT_MS) -> None:
    with fluss.sync.connect(address, request_timeout_ms=give_up_ms) as connection:
        run(make_backup(connection._core.cluster, str(target), lambda _: None))


def check_restored(directory: Path, manifest: BackupManifest, turns_acked: int) -> None:
    """All that was acknowledged before is there, each bucket ends where it should, and rows are what changes leave."""
    with FlussServer(directory) as server, fluss.sync.connect(server.bootstrap_servers) as connection:
        admin = connection.get_admin()
        ends = {(found.bucket.table_id, found.bucket.bucket_id): found.end_offset for found in manifest.buckets}
        for path in (LOG, ROWS):
            table_id = admin.get_table_info(path).table_id
            latest = admin.list_offsets(path, list(range(BUCKETS)), fluss.OffsetSpec.latest())
            assert latest == {bucket: ends.get((table_id, bucket), 0) for bucket in range(BUCKETS)}
        log = connection.get_table(LOG).new_scan().to_arrow().to_pylist()
        turns = max(row["turn"] for row in log) + 1
        assert turns >= turns_acked
        by_turn: dict[int, list[int]] = {}
        for row in log:
            by_turn.setdefault(row["turn"], []).append(row["id"])
        for number in range(turns - 1):
            # The last one may be there in part: it was being written.
            assert sorted(by_turn[number]) == sorted(turn(number)["id"].to_pylist())
        rows = {row["id"]: row["turn"] for row in connection.get_table(ROWS).new_scan().to_arrow().to_pylist()}
        newest = {key: max(number for number in range(turns_acked) if key in ids_of(number)) for key in rows}
        assert all(rows[key] >= newest[key] for key in newest)
        lookuper = connection.get_table(ROWS).new_lookup().create_lookuper()
        assert {key: lookuper.lookup({"id": key})["turn"] for key in list(rows)[:5]} == {
            key: rows[key] for key in list(rows)[:5]
        }
        writer = connection.get_table(ROWS).new_upsert().create_writer()
        writer.upsert({"id": 1, "turn": 10**6, "text": "after"})
        writer.flush()
        assert lookuper.lookup({"id": 1})["turn"] == 10**6


def ids_of(number: int) -> list[int]:
    ids: list[int] = turn(number)["id"].to_pylist()
    return ids


def restored(target: Path) -> tuple[Path, BackupManifest]:
    manifest = files.read(target)
    check(target, manifest)
    directory = target.with_name(target.name + ".restored") / "data"
    directory.parent.mkdir()
    restore(target, manifest, directory)
    return directory, manifest


def test_under_load(tmp_path: Path) -> None:
    with new_server(tmp_path / "source") as server:
        load = Load(server.bootstrap_servers)
        load.create()
        load.start()
        moments = []
        for number in range(2):
            load.await_turns(TURNS_FIRST * (number + 1))
            moments.append(load.turns)
            back_up(server.bootstrap_servers, tmp_path / f"backup{number}")
        load.stop()
        assert load.error is None
        assert "Traceback" not in server.log_file.read_text()
    for number, turns_acked in enumerate(moments):
        check_restored(*restored(tmp_path / f"backup{number}"), turns_acked)


def kill_at(directory: Path, name: str, count: int) -> None:
    spec = f"{name}:{count}"
    print(f"fail point {spec}")
    target = directory / "backup"
    with new_server(directory / "source", env={failpoints.ENVIRONMENT_VARIABLE: spec}) as server:
        load = Load(server.bootstrap_servers, GIVE_UP_MS)
        load.create()
        load.start()
        load.await_turns(TURNS_FIRST)
        turns_acked = load.turns
        with pytest.raises(fluss.FlussError):
            back_up(server.bootstrap_servers, target, GIVE_UP_MS)
        server.process._popen.wait(DEATH_S_MAX)
        assert server.process.returncode == -signal.SIGKILL, f"{spec} was not reached"
        load.stop()
        is_whole = (target / files.NAME).exists()
        if is_whole:
            assert name.startswith(Site.BACKUP_FINISH) or name.startswith(Site.BACKUP_HOLD)
            check_restored(*restored(target), turns_acked)
        else:
            with pytest.raises(fluss.FlussError, match="not a finished backup"):
                files.read(target)
        # The source is fine, holds no links, and can be backed up.
        server.env = {}
        server.start()
        assert not (server.data_dir / "server.backup").exists()
        back_up(server.bootstrap_servers, directory / "second")
    check_restored(*restored(directory / "second"), turns_acked)


@pytest.mark.parametrize("site", BACKUP_HITS)
def test_killed_at_a_step_of(tmp_path: Path, chance: random.Random, site: Site) -> None:
    kill_at(tmp_path, f"{site}.{chance.choice(STEPS[site])}", chance.randint(1, BACKUP_HITS[site]))


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [f"{site}.{step}" for site in BACKUP_HITS for step in STEPS[site]])
def test_killed_at(tmp_path: Path, chance: random.Random, name: str) -> None:
    most = next(count for site, count in BACKUP_HITS.items() if name in {f"{site}.{step}" for step in STEPS[site]})
    for count in sorted({1, most, chance.randint(1, most)}):
        kill_at(tmp_path / str(count), name, count)
