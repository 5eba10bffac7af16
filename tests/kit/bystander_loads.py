"""The loads beside which the bystander is timed, each in a process of its own.

A load makes what it needs in `prepare`, which is not timed, and works in `run`: until a time has come, or until its one
large piece of work is done. `share` makes it smaller for short tests.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, repeat
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

import fluss.sync as fluss
from fluss.client.admin import make_backup
from fluss.client.runtime import run
from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from fluss.testing.processes import parse_address
from tests.kit.bystander_watch import DATABASE
from tests.kit.child import serve
from tests.kit.wire import ConnectionLostError, Wire

USER, PASSWORD = "bystander", "right password"
COLUMNS = pa.schema([("id", pa.int64()), ("text", pa.string())])
PARTED = pa.schema([("part", pa.string()), ("id", pa.int64()), ("text", pa.string())])
ROW_BYTES = 100
SLICE_S = 0.02
GIANTS = DRIPPERS = 50
FLOODERS, FLOOD_REQUESTS = 20, 50
BOTS = 24
CLIENTS = 8


class Load(ABC):
    """One kind of work for the server."""

    title: ClassVar[str]
    settings: ClassVar[dict[str, int]] = {}  # of fluss.toml
    question: ClassVar[str] = "lookups"  # of the bystander
    is_restarted: ClassVar[bool] = False  # the server is killed and started between `prepare` and `run`
    has_logins: ClassVar[bool] = False
    seconds_max: ClassVar[float | None] = None  # for its work
    has_slow_syncs: ClassVar[bool] = False  # of the table whose id `prepare` returns

    def __init__(self, address: str, folder: Path, share: float) -> None:
        self.address = address
        self.folder = folder
        self.share = share
        self.random = random.Random(0)

    def connect(self) -> None:
        options = login_options() if self.has_logins else {}
        self.connection = fluss.connect(self.address, **options)
        self.admin = self.connection.get_admin()

    def sized(self, number: int) -> int:
        return max(1, int(number * self.share))

    def table(self, name: str, columns: pa.Schema, keys: list[str] | None = None, **options: Any) -> Any:
        path = fluss.TablePath(DATABASE, name)
        self.admin.create_table(path, fluss.TableDescriptor(fluss.Schema(columns, primary_keys=keys or []), **options))
        return self.connection.get_table(path)

    def prepare(self) -> int | None:
        """Make tables and rows; may return the id of a table."""
        return None

    @abstractmethod
    def run(self, until_s: float) -> str:
        """Work, and say what was done."""


def rows(first: int, number: int) -> pa.Table:
    """With texts that are hardly smaller when compressed."""
    chance = random.Random(first)
    texts = chance.randbytes(number * ROW_BYTES // 2).hex()
    cut = [texts[at : at + ROW_BYTES] for at in range(0, len(texts), ROW_BYTES)]
    return pa.table([pa.array(range(first, first + number), pa.int64()), cut], schema=COLUMNS)


def login_options() -> dict[str, str]:
    login = {"mechanism": "PLAIN", "username": USER, "password": PASSWORD}
    return {"security_protocol": "sasl", **{f"security_sasl_{key}": value for key, value in login.items()}}


def passing(until_s: float) -> Iterator[int]:
    """Numbers, while there is time."""
    for number in count():
        if time.monotonic() >= until_s:
            return
        yield number


class BulkLog(Load):
    title = "bulk load of a log table"

    def prepare(self) -> None:
        self.log = self.table("bulk", COLUMNS, bucket_count=4)
        self.batch = rows(0, 20_000)

    def run(self, until_s: float) -> str:
        with self.log.new_append().create_writer() as writer:
            for number in passing(until_s):
                writer.write_arrow(self.batch)
                if number % 5 == 4:
                    writer.flush()
        return f"{(number + 1) * 20_000:,} rows"


class BulkKeys(Load):
    title = "bulk load of a primary-key table"

    def prepare(self) -> None:
        self.keyed = self.table("bulk_keys", COLUMNS, ["id"], bucket_count=4)
        self.batches = [rows(self.random.randrange(500_000), 20_000) for _ in range(10)]

    def run(self, until_s: float) -> str:
        with self.keyed.new_upsert().create_writer() as writer:
            for number in passing(until_s):
                writer.write_arrow(self.batches[number % 10])
                writer.flush()
        return f"{(number + 1) * 20_000:,} rows"


class ManyPartitions(Load):
    title = "one row to each of 1,000 partitions"
    seconds_max: ClassVar[float | None] = 20.0
    PARTITIONS = 1_000

    def prepare(self) -> None:
        self.parted = self.table("parted", PARTED, ["part", "id"], partition_keys=["part"])
        self.names = [f"p{number}" for number in range(self.sized(self.PARTITIONS))]
        for name in self.names:
            self.admin.create_partition(self.parted.table_path, {"part": name})

    def run(self, until_s: float) -> str:
        began_s = time.monotonic()
        with self.parted.new_upsert().create_writer() as writer:
            for name in self.names:
                writer.upsert([name, 1, "x" * ROW_BYTES])
        return f"{len(self.names):,} partitions in {time.monotonic() - began_s:.1f} s"


class DropPartitions(ManyPartitions):
    title = "drop of 1,000 partitions, one by one"
    seconds_max = None

    def prepare(self) -> None:
        super().prepare()
        # A few at a time: to fill them is not what is measured.
        with self.parted.new_upsert().create_writer() as writer:
            for first in range(0, len(self.names), 20):
                for name in self.names[first : first + 20]:
                    writer.upsert([name, 1, "x" * ROW_BYTES])
                writer.flush()

    def run(self, until_s: float) -> str:
        began_s = time.monotonic()
        self.drop()
        return f"{len(self.names):,} partitions in {time.monotonic() - began_s:.1f} s"

    def drop(self) -> None:
        for name in self.names:
            self.admin.drop_partition(self.parted.table_path, {"part": name})


class DropTable(DropPartitions):
    title = "drop of a table with 1,000 partitions"

    def drop(self) -> None:
        files = self.folder / "data" / "tables" / str(self.parted.get_table_info().table_id)
        assert files.exists(), files
        self.admin.drop_table(self.parted.table_path)
        # Its files go when the call has been answered.
        while files.exists():
            time.sleep(SLICE_S)


class Snapshots(Load):
    title = "snapshots of 32 buckets every second"
    settings: ClassVar[dict[str, int]] = {"kv.snapshot.interval-ms": 1_000}

    def prepare(self) -> None:
        self.keyed = self.table("snapshots", COLUMNS, ["id"], bucket_count=32)
        self.writer = self.keyed.new_upsert().create_writer()
        for first in range(0, self.sized(400_000), 20_000):
            self.writer.write_arrow(rows(first, 20_000))
            self.writer.flush()

    def run(self, until_s: float) -> str:
        for number in passing(until_s):
            self.writer.write_arrow(rows(number * 1_000, 1_000))
            self.writer.flush()
            time.sleep(0.2)
        return f"{number + 1} rounds of 1,000 rows"


class Retention(Load):
    title = "retention of 32 logs with many segments"
    settings: ClassVar[dict[str, int]] = {"log.segment.file-size": 1 << 16, "log.retention.check-interval-ms": 500}

    def prepare(self) -> None:
        properties = {"table.log.arrow.compression.type": "NONE", "table.log.ttl": "2 s"}
        # By size, too: retention by time is careful with clocks.
        kept = {"log.retention.size-bytes": str(1 << 17)}
        self.log = self.table("expiring", COLUMNS, bucket_count=32, properties=properties, custom_properties=kept)
        self.batch = rows(0, 2_000)

    def run(self, until_s: float) -> str:
        appended = 0
        with self.log.new_append().create_writer() as writer:
            for _ in passing(until_s):
                writer.write_arrow(self.batch)
                writer.flush()
                appended += self.batch.num_rows
        return f"{appended:,} rows"


class Opening(Load):
    title = "opening and recovery of 96 buckets after a kill"
    is_restarted = True
    BUCKETS = 96

    def prepare(self) -> None:
        self.keyed = self.table("opened", COLUMNS, ["id"], bucket_count=self.BUCKETS)
        self.log = self.table("opened_log", COLUMNS, bucket_count=self.BUCKETS)
        with self.keyed.new_upsert().create_writer() as upserts, self.log.new_append().create_writer() as appends:
            for first in range(0, self.sized(1_000_000), 20_000):
                batch = rows(first, 20_000)
                upserts.write_arrow(batch)
                upserts.flush()
                if first % 100_000 == 0:
                    appends.write_arrow(batch)
                    appends.flush()

    def run(self, until_s: float) -> str:
        began_s = time.monotonic()
        found = self.keyed.new_lookup().create_lookuper().lookup_many([[n] for n in range(2_000)])
        assert found["text"].null_count == 0
        offsets = self.admin.list_offsets(self.log.table_path, list(range(self.BUCKETS)), fluss.OffsetSpec.latest())
        assert sum(offsets.values()) > 0
        return f"{self.sized(1_000_000):,} keys in {time.monotonic() - began_s:.1f} s"


class Backups(Load):
    title = "backups"

    def prepare(self) -> None:
        log = self.table("backed_up", COLUMNS, bucket_count=8, properties={"table.log.arrow.compression.type": "NONE"})
        keyed = self.table("backed_up_keys", COLUMNS, ["id"], bucket_count=8)
        with log.new_append().create_writer() as appends, keyed.new_upsert().create_writer() as upserts:
            for first in range(0, self.sized(2_000_000), 20_000):
                appends.write_arrow(rows(first, 20_000))
                if first < 400_000:
                    upserts.write_arrow(rows(first, 20_000))
                appends.flush()

    def run(self, until_s: float) -> str:
        for number in passing(until_s):
            target = self.folder / f"backup-{number}"
            status = run(make_backup(self.connection._core.cluster, str(target), lambda _: None))
            shutil.rmtree(target)
        return f"{number + 1} of {status.bytes_total / 1e6:.0f} MB"


class HostileFrames(Load):
    title = "hostile frames: announced and idle, dripping, garbage"

    def prepare(self) -> None:
        self.header = frames.request_header(api_keys.PRODUCE_LOG.key, 0, 1, frames.FRAME_SIZE_BYTES_MAX - 8)

    def run(self, until_s: float) -> str:
        with contextlib.ExitStack() as stack:
            for _ in range(GIANTS):
                stack.enter_context(Wire(self.address)).send_bytes(self.header + bytes(1_000))
            drippers = [stack.enter_context(Wire(self.address)) for _ in range(DRIPPERS)]
            for number in passing(until_s):
                for wire in drippers:
                    with contextlib.suppress(ConnectionLostError):
                        wire.send_bytes(self.header[:4] if number == 0 else b"\0")
                for _ in range(10):
                    self._send_garbage()
        return f"{GIANTS} idle, {DRIPPERS} dripping, {(number + 1) * 10:,} of garbage"

    def _send_garbage(self) -> None:
        with contextlib.suppress(ConnectionLostError), Wire(self.address) as wire:
            wire.send_bytes(self.random.randbytes(self.random.randrange(1, 20_000)))


class HostileFramesAppends(HostileFrames):
    title = "the same, beside appends of 100 KB"
    question = "appends"


class MetadataFlood(Load):
    title = "metadata floods: 20 x 50 requests of 4,096 buckets"
    BUCKETS = 4_096

    def prepare(self) -> None:
        self.table("wide", COLUMNS, bucket_count=self.BUCKETS)
        path = pb.PbTablePath(database_name=DATABASE, table_name="wide")
        self.body = pb.MetadataRequest(table_path=[path]).SerializeToString()

    def run(self, until_s: float) -> str:
        answered = 0
        for _ in passing(until_s):
            with contextlib.ExitStack() as stack:
                wires = [stack.enter_context(Wire(self.address, timeout_s=120)) for _ in range(FLOODERS)]
                for wire in wires:
                    frame = wire.frame(api_keys.METADATA.key, self.body)[1]
                    with contextlib.suppress(ConnectionLostError):
                        wire.send_bytes(frame * FLOOD_REQUESTS)
                # The other half goes away without its answers.
                answered += sum(self._receive(wire) for wire in wires[::2])
        return f"{answered:,} answered"

    def _receive(self, wire: Wire) -> int:
        received = 0
        with contextlib.suppress(ConnectionLostError):
            for _ in range(FLOOD_REQUESTS):
                wire.receive()
                received += 1
        return received


class LoginBots(Load):
    title = "24 bots that guess a user's password"
    has_logins = True

    def run(self, until_s: float) -> str:
        guesses = [0] * BOTS
        threads = [threading.Thread(target=self._guess, args=(n, guesses, until_s)) for n in range(BOTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return f"{sum(guesses):,} guesses"

    def _guess(self, bot: int, guesses: list[int], until_s: float) -> None:
        token = f"\0{USER}\0guess {bot}".encode()
        body = pb.AuthenticateRequest(protocol="PLAIN", token=token).SerializeToString()
        frame = frames.request_header(api_keys.AUTHENTICATE.key, 0, 1, len(body)) + body
        for _ in passing(until_s):
            try:
                # Strangers: each has an address of its own.
                source = (f"127.0.1.{bot + 1}", 0)
                with socket.create_connection(parse_address(self.address), 1.0, source_address=source) as stream:
                    stream.sendall(frame)
                    stream.recv(1_000)
                    guesses[bot] += 1
            except OSError:
                time.sleep(SLICE_S)


class LoginBotsLogins(LoginBots):
    title = "the same, beside logins with the right password"
    question = "logins"


class SlowDisk(Load):
    title = "syncs of another table take 1 s"
    settings: ClassVar[dict[str, int]] = {"log.segment.file-size": 1 << 18, "kv.snapshot.interval-ms": 1_000}
    has_slow_syncs = True

    def prepare(self) -> int:
        properties = {"table.log.arrow.compression.type": "NONE"}
        self.keyed = self.table("slow", COLUMNS, ["id"], bucket_count=4, properties=properties)
        with self.keyed.new_upsert().create_writer() as writer:
            writer.write_arrow(rows(0, 20_000))
        return int(self.keyed.get_table_info().table_id)

    def run(self, until_s: float) -> str:
        with self.keyed.new_upsert().create_writer() as writer:
            for number in passing(until_s):
                writer.write_arrow(rows(number * 100, 2_000))
                writer.flush()
        return f"{(number + 1) * 2_000:,} rows"


class LargeLookups(Load):
    title = "8 clients that look up 10,000 keys at a time"
    KEYS = 200_000

    def prepare(self) -> None:
        self.keyed = self.table("looked_up", COLUMNS, ["id"], bucket_count=4)
        with self.keyed.new_upsert().create_writer() as writer:
            writer.write_arrow(rows(0, self.sized(self.KEYS)))

    def run(self, until_s: float) -> str:
        with ThreadPoolExecutor(CLIENTS) as clients:
            found = sum(clients.map(self._look_up, repeat(until_s, CLIENTS)))
        return f"{found:,} rows"

    def _look_up(self, until_s: float) -> int:
        found = 0
        with fluss.connect(self.address) as connection:
            lookuper = connection.get_table(self.keyed.table_path).new_lookup().create_lookuper()
            for number in passing(until_s):
                keys = random.Random(number).sample(range(self.sized(self.KEYS)), self.sized(10_000))
                found += len(lookuper.lookup_many([[key] for key in keys]))
        return found


LOADS: dict[str, type[Load]] = {
    "bulk-log": BulkLog,
    "bulk-keys": BulkKeys,
    "partitions": ManyPartitions,
    "snapshots": Snapshots,
    "retention": Retention,
    "opening": Opening,
    "drop-partitions": DropPartitions,
    "drop-table": DropTable,
    "backups": Backups,
    "hostile-frames": HostileFrames,
    "hostile-appends": HostileFramesAppends,
    "metadata": MetadataFlood,
    "bots": LoginBots,
    "bots-logins": LoginBotsLogins,
    "slow-disk": SlowDisk,
    "large-lookups": LargeLookups,
}


class Worker:
    """Commands of the process."""

    def __init__(self) -> None:
        self._load: Load | None = None

    def prepare(self, name: str, address: str, folder: str, share: float) -> int | None:
        self._load = LOADS[name](address, Path(folder), share)
        self._load.connect()
        return self._load.prepare()

    def run(self, seconds: float) -> dict[str, Any]:
        """What was done, or why not, and the processor time that it took here."""
        assert self._load is not None, "not prepared"
        cpu_s = time.process_time()
        return {
            "did": _told(lambda: self._load.run(time.monotonic() + seconds)),  # type: ignore[union-attr]
            "cpu_s": time.process_time() - cpu_s,
        }

    def burn(self, share: float, seconds: float) -> None:
        """Take this share of a core, in small slices, as the control of a load."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            slice_ends_s = time.monotonic() + SLICE_S
            begun_s = time.thread_time()
            while time.thread_time() - begun_s < share * SLICE_S:
                pass
            time.sleep(max(0.0, slice_ends_s - time.monotonic()))


def _told(work: Callable[[], str]) -> str:
    try:
        return work()
    except Exception as error:
        return f"FAILED: {type(error).__name__}: {' '.join(str(error).split())[:200]}"


if __name__ == "__main__":
    serve(Worker())
