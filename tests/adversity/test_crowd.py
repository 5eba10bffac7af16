"""Many clients at once, a reader that stopped, a flood of writes: all served, within the memory that was promised."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import fluss.aio
import fluss.sync
from fluss.formats.arrow.payload import Codec, Compression, encode
from fluss.formats.batches.log_batch import encode_batch
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.limits import Limits
from fluss.testing import FlussServer
from tests.adversity.crowd import BUDGET_EXCESS, CLIENTS, FLOOD_WRITERS, READER_GROWTH_BYTES_MAX, flood, server
from tests.kit.memory import MIB, Memory
from tests.kit.wire import Wire, produce_request

__all__ = ["server"]  # a fixture

ROWS_PER_CLIENT = 20
PATH = fluss.TablePath("fluss", "crowd")
SCHEMA = pa.schema([("id", pa.int64()), ("blob", pa.binary())])
UNCOMPRESSED = {"table.log.arrow.compression.type": "NONE"}


def make_table(address: str, buckets: int = 1) -> int:
    with fluss.sync.connect(address) as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=buckets, properties=UNCOMPRESSED)
        connection.get_admin().create_table(PATH, descriptor)
        return int(connection.get_admin().get_table_info(PATH).table_id)


async def test_two_hundred_clients_at_once(server: FlussServer) -> None:
    """Each with connections of its own, all connected at the same time, each writes and reads back."""
    make_table(server.bootstrap_servers, buckets=4)
    all_connected = asyncio.Barrier(CLIENTS)

    async def client(number: int) -> None:
        async with fluss.aio.connect(server.bootstrap_servers) as connection:
            table = await connection.get_table(PATH)
            await all_connected.wait()
            if number == 0:
                assert len(psutil.Process(server.pid).net_connections()) >= CLIENTS
            await all_connected.wait()
            writer = table.new_append().create_writer()
            for row in range(ROWS_PER_CLIENT):
                writer.append([number * ROWS_PER_CLIENT + row, b"x" * 100])
            await writer.flush()
            scanner = await table.new_scan().create_record_batch_log_scanner()
            await asyncio.to_thread(scanner.subscribe_buckets, dict.fromkeys(range(4), fluss.EARLIEST_OFFSET))
            ids = (await scanner.to_arrow())["id"].to_pylist()
            own = {number * ROWS_PER_CLIENT + row for row in range(ROWS_PER_CLIENT)}
            assert own <= set(ids)
            assert len(ids) == len(set(ids))

    async with asyncio.timeout(120):
        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    with fluss.sync.connect(server.bootstrap_servers) as connection:
        offsets = connection.get_admin().list_offsets(PATH, list(range(4)), fluss.OffsetSpec.latest())
    assert sum(offsets.values()) == CLIENTS * ROWS_PER_CLIENT


@pytest.mark.parametrize(
    "written_bytes",
    [256 * MIB, pytest.param(4096 * MIB, marks=[pytest.mark.full, pytest.mark.timeout(1_800)])],
    ids=["short", "gigabytes"],
)
def test_a_stopped_reader_costs_little_and_delays_nobody(server: FlussServer, written_bytes: int) -> None:
    """One scanner of the API that polls no more, and raw ones that ask for all they may and take no answer."""
    table_id = make_table(server.bootstrap_servers)
    block = pa.table({"id": range(64), "blob": [b"x" * (64 << 10)] * 64}, schema=SCHEMA)
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(fluss.sync.connect(server.bootstrap_servers))
        table = connection.get_table(PATH)
        writer = table.new_append().create_writer()
        for _ in range(8):
            writer.write_arrow(block)
        writer.flush()
        memory = stack.enter_context(Memory(server.pid))
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
        assert scanner.poll_arrow(10_000).num_rows
        for _ in range(2):
            wire = stack.enter_context(Wire(server.bootstrap_servers))
            for offset in range(0, 512, 8):
                wire.send(api_keys.FETCH_LOG.key, fetch_request(table_id, offset).SerializeToString())
        slowest_s = 0.0
        for _ in range(written_bytes // block.nbytes):
            began = time.monotonic()
            writer.write_arrow(block)
            writer.flush()
            slowest_s = max(slowest_s, time.monotonic() - began)
        print(f"slowest write of {block.nbytes / MIB:.0f} MiB: {slowest_s:.2f} s")
        assert slowest_s < 10
    assert memory.growth_bytes < READER_GROWTH_BYTES_MAX


def fetch_request(table_id: int, offset: int) -> pb.FetchLogRequest:
    request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=16 * MIB, max_wait_ms=100, min_bytes=1)
    table = request.tables_req.add(table_id=table_id, projection_pushdown_enabled=False)
    table.buckets_req.add(bucket_id=0, fetch_offset=offset, max_fetch_bytes=16 * MIB)
    return request


@pytest.mark.parametrize("batch_bytes", [256 << 10, 7 * MIB], ids=["small", "large"])
def test_a_write_flood_stays_within_the_budget(tmp_path: Path, batch_bytes: int) -> None:
    """Writers that send without waiting for answers: what the server holds of it is bounded, whoever they are."""
    budget_bytes = 64 * MIB
    settings = tmp_path / "fluss.toml"
    settings.write_text(f"[limits]\nframe_bytes_max = {16 * MIB}\nrequest_bytes_total_max = {budget_bytes}\n")
    # Synced: then a write takes time, and the flood has something to pile up at.
    with FlussServer(tmp_path / "data", args=["--config", str(settings)]) as server:
        table_id = make_table(server.bootstrap_servers, buckets=FLOOD_WRITERS)
        batch = wire_batch(batch_bytes)
        with Wire(server.bootstrap_servers) as wire:
            for bucket in range(FLOOD_WRITERS):
                assert not wire.produce(table_id, bucket, wire_batch(1_000)).error_code
        with Memory(server.pid) as memory:
            bodies = [produce_request(table_id, n, batch).SerializeToString() for n in range(FLOOD_WRITERS)]
            flood(server.bootstrap_servers, api_keys.PRODUCE_LOG.key, bodies, 512 * MIB // FLOOD_WRITERS // batch_bytes)
        assert memory.growth_bytes < budget_bytes * BUDGET_EXCESS
        server.process.check_running()
    assert Limits().request_bytes_total_max == 256 * MIB


def wire_batch(size_bytes: int) -> bytes:
    rows = pa.record_batch([[1], [b"x" * size_bytes]], schema=SCHEMA)
    return bytes(encode_batch(encode(rows, Codec(Compression.NONE)), schema_id=1, record_count=1))
