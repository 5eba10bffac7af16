"""Many clients of primary-key tables, floods of upserts, a follower that stopped: served within the memory promised."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import fluss.aio
import fluss.sync
from fluss.formats.batches.kv_batch import encode_header, encode_records
from fluss.formats.rows.codecs import CompactedFormat
from fluss.formats.rows.keys import KeyEncoder
from fluss.protocol import api_keys
from fluss.testing import FlussServer
from tests.adversity import upsert_flood
from tests.adversity.crowd import BUDGET_EXCESS, CLIENTS, FLOOD_WRITERS, READER_GROWTH_BYTES_MAX, flood, server
from tests.kit.memory import MIB, Memory
from tests.kit.wire import put_request

__all__ = ["server"]

PATH = fluss.TablePath("fluss", "crowd")
SCHEMA = fluss.Schema(pa.schema([("id", pa.int64()), ("blob", pa.binary())]), ["id"])
UNCOMPRESSED = {"table.log.arrow.compression.type": "NONE"}
STORES_BYTES = 32 * MIB
BUDGET_BYTES = 64 * MIB
STORE_BYTES = 3 * MIB  # of a store that is open, besides its rows
WRITER_BYTES = 3 * MIB // 2  # of a writer of the client: it keeps the buffers that it gathers rows in
LOOKUPS_PER_CLIENT = 20


def make_table(address: str, buckets: int = 1) -> int:
    with fluss.sync.connect(address) as connection:
        descriptor = fluss.TableDescriptor(SCHEMA, bucket_count=buckets, properties=UNCOMPRESSED)
        connection.get_admin().create_table(PATH, descriptor)
        return int(connection.get_admin().get_table_info(PATH).table_id)


def kv_batch(number: int, size_bytes: int) -> bytes:
    key = KeyEncoder(SCHEMA.columns[:1]).encode_row([number])
    row = CompactedFormat(SCHEMA.columns).encode_row([number, b"x" * size_bytes])
    records = encode_records(pa.array([key]), pa.array([row]))
    return bytes(encode_header(records, schema_id=1, record_count=1) + records)


async def test_two_hundred_clients_look_up(server: FlussServer) -> None:
    """Each with connections of its own: each upserts rows and finds them, alone and many at a time."""
    make_table(server.bootstrap_servers, buckets=4)
    all_connected = asyncio.Barrier(CLIENTS)

    async def client(number: int) -> None:
        async with fluss.aio.connect(server.bootstrap_servers) as connection:
            table = await connection.get_table(PATH)
            await all_connected.wait()
            own = [number + CLIENTS * row for row in range(LOOKUPS_PER_CLIENT)]
            writer = table.new_upsert().create_writer()
            for key in own:
                writer.upsert([key, str(key).encode()])
            await writer.flush()
            lookuper = table.new_lookup().create_lookuper()
            expected = [{"id": key, "blob": str(key).encode()} for key in own]
            assert [await lookuper.lookup([key]) for key in own] == expected
            assert (await lookuper.lookup_many([[key] for key in own])).to_pylist() == expected

    async with asyncio.timeout(120):
        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    with fluss.sync.connect(server.bootstrap_servers) as connection:
        ids = connection.get_table(PATH).new_scan().project([0]).to_arrow()["id"].to_pylist()
    assert sorted(ids) == list(range(CLIENTS * LOOKUPS_PER_CLIENT))


@pytest.mark.parametrize("row_bytes", [128 << 10, 5 * MIB], ids=["small", "large"])
def test_a_flood_of_puts_stays_within_the_budget(tmp_path: Path, row_bytes: int) -> None:
    """Writers that send without waiting for answers: what the server holds of it is bounded, whoever they are."""
    settings = tmp_path / "fluss.toml"
    settings.write_text(
        f'"kv.memory-bytes" = {STORES_BYTES}\n'
        f"[limits]\nframe_bytes_max = {16 * MIB}\nrequest_bytes_total_max = {BUDGET_BYTES}\n"
    )
    with FlussServer(tmp_path / "data", args=["--config", str(settings)]) as server:
        table_id = make_table(server.bootstrap_servers, buckets=FLOOD_WRITERS)
        requests = [put_request(table_id, 0, kv_batch(number, row_bytes)) for number in range(FLOOD_WRITERS)]
        for bucket, request in enumerate(requests):
            request.buckets_req[0].bucket_id = bucket
        bodies = [request.SerializeToString() for request in requests]
        flood(server.bootstrap_servers, api_keys.PUT_KV.key, bodies[:1], 1)
        with Memory(server.pid) as memory:
            flood(server.bootstrap_servers, api_keys.PUT_KV.key, bodies, 256 * MIB // FLOOD_WRITERS // row_bytes + 1)
        allowed_bytes = (BUDGET_BYTES + STORES_BYTES) * BUDGET_EXCESS + FLOOD_WRITERS * STORE_BYTES
        assert memory.growth_bytes < allowed_bytes
        server.process.check_running()
        assert "Traceback" not in server.log_file.read_text()


def test_many_writers_of_one_client_stay_within_its_budget(server: FlussServer) -> None:
    make_table(server.bootstrap_servers, buckets=4)
    command = [sys.executable, "-m", upsert_flood.__name__, server.bootstrap_servers, PATH.table_name]
    done = subprocess.run([*command, str(FLOOD_WRITERS)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    print(done.stdout)
    growth_bytes = int(done.stdout.split()[-1])
    assert growth_bytes < upsert_flood.BUFFER_BYTES * BUDGET_EXCESS + FLOOD_WRITERS * WRITER_BYTES
    with fluss.sync.connect(server.bootstrap_servers) as connection:
        rows = connection.get_table(PATH).new_scan().project([0]).to_arrow().num_rows
    assert rows == FLOOD_WRITERS * upsert_flood.ROWS_PER_WRITER


@pytest.mark.parametrize(
    "written_bytes",
    [128 * MIB, pytest.param(4096 * MIB, marks=[pytest.mark.full, pytest.mark.timeout(3_600)])],
    ids=["short", "gigabytes"],
)
def test_a_stopped_follower_costs_little_and_delays_nobody(tmp_path: Path, written_bytes: int) -> None:
    """A reader of changes that polls no more, while rows are updated again and again."""
    settings = tmp_path / "fluss.toml"
    settings.write_text(f'"kv.memory-bytes" = {STORES_BYTES}\n')
    args = ["--config", str(settings), "--durability", "os"]
    with FlussServer(tmp_path / "data", args=args) as server:
        make_table(server.bootstrap_servers)
        block = pa.table({"id": range(32), "blob": [b"x" * (64 << 10)] * 32})
        with fluss.sync.connect(server.bootstrap_servers) as connection:
            table = connection.get_table(PATH)
            writer = table.new_upsert().create_writer()
            for _ in range(8):
                writer.write_arrow(block)
                writer.flush()
            with (
                table.changes(start="snapshot") as changes,
                Memory(server.pid) as memory,
                Memory(os.getpid()) as own_memory,
            ):
                while not changes.poll(10_000).num_rows:
                    pass
                slowest_s = 0.0
                for _ in range(written_bytes // block.nbytes):
                    began = time.monotonic()
                    writer.write_arrow(block)
                    writer.flush()
                    slowest_s = max(slowest_s, time.monotonic() - began)
            print(f"slowest write of {block.nbytes / MIB:.0f} MiB: {slowest_s:.2f} s")
            assert slowest_s < 10
        assert memory.growth_bytes < READER_GROWTH_BYTES_MAX + STORES_BYTES
        assert own_memory.growth_bytes < 2 * READER_GROWTH_BYTES_MAX
