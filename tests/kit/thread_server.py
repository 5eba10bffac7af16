"""A server in a thread and a client of raw sockets, which knows nothing of this package's own client."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa
from google.protobuf.message import Message

from fluss.formats.arrow.payload import Codec, Compression, encode
from fluss.formats.batches.log_batch import BatchHeader, encode_batch, verify_crc, walk
from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from fluss.server.config import ServerConfig
from fluss.server.net.limits import Limits
from fluss.server.net.logins import Authenticator
from fluss.server.server import Server
from fluss.storage.log.group_commit import THREADS

TIMEOUT_S = 20.0
SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string()), ("score", pa.float64())])
COLUMNS = [("id", "INTEGER"), ("name", "STRING"), ("score", "DOUBLE")]
MIB = 1 << 20

T = TypeVar("T")
Resp = TypeVar("Resp", bound=Message)


class WireError(Exception):
    """An error response."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class RunningServer:
    """A real server on a free port, on an event loop of its own."""

    def __init__(
        self,
        data_dir: Path,
        *,
        uvloop: bool = True,
        limits: Limits | None = None,
        authenticator: Authenticator | None = None,
        **settings: Any,
    ) -> None:
        self._authenticator = authenticator
        self.config = replace(ServerConfig(data_dir, port=0, limits=limits or Limits()), **settings)
        self._uvloop = uvloop
        self._started: Future[tuple[asyncio.AbstractEventLoop, Server]] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stop: asyncio.Event

    def __enter__(self) -> RunningServer:
        self._thread.start()
        self.loop, self.server = self._started.result(TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the server did not stop"

    @property
    def address(self) -> tuple[str, int]:
        return self.server.address.host, self.server.address.port

    def connect(self) -> Wire:
        return Wire(*self.address)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(TIMEOUT_S)

    def look(self, question: Callable[[], T]) -> T:
        """Ask something on the server's loop."""

        async def ask() -> T:
            return question()

        return self.run(ask())

    def _run(self) -> None:
        factory = None
        if self._uvloop:
            import uvloop

            factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = Server(self.config, self._authenticator)
        try:
            await server.start()
        except BaseException as error:
            self._started.set_exception(error)
            return
        self._started.set_result((asyncio.get_running_loop(), server))
        await self._stop.wait()
        await server.stop()


class Wire:
    """One connection that sends what it is told to."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), TIMEOUT_S)
        self._next_id = 1

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send_raw(self, api_key: int, body: bytes, version: int = 0) -> int:
        """Send a request and return its id."""
        request_id = self._next_id
        self._next_id += 1
        self.socket.sendall(frames.request_header(api_key, version, request_id, len(body)) + body)
        return request_id

    def send(self, api: api_keys.Api[Any, Any], request: Message) -> int:
        return self.send_raw(api.key, request.SerializeToString())

    def receive(self) -> frames.Response:
        """The next response, whichever it is."""
        length = int.from_bytes(self._exactly(frames.LENGTH_SIZE_BYTES), "big")
        return frames.parse_response(memoryview(self._exactly(length)))

    def receive_error(self, request_id: int) -> WireError:
        response = self.receive()
        assert response.kind == frames.ERROR, bytes(response.body)
        assert response.request_id == request_id
        error = pb.ErrorResponse.FromString(bytes(response.body))
        return WireError(error.error_code, error.error_message)

    def receive_answer(self, request_id: int, api: api_keys.Api[Any, Resp]) -> Resp:
        """The next response, which must be for this request; raises WireError for an error."""
        response = self.receive()
        assert response.request_id == request_id
        if response.kind == frames.ERROR:
            error = pb.ErrorResponse.FromString(bytes(response.body))
            raise WireError(error.error_code, error.error_message)
        assert response.kind == frames.SUCCESS
        answer = api.response.FromString(bytes(response.body))
        assert answer.IsInitialized()
        return answer

    def call(self, api: api_keys.Api[Any, Resp], request: Message) -> Resp:
        return self.receive_answer(self.send(api, request), api)

    def is_closed_by_server(self) -> bool:
        """True at the end of the stream; waits for it, and fails when something comes."""
        try:
            rest = self.socket.recv(1)
        except ConnectionResetError:
            return True
        assert rest == b"", "the server sent more"
        return True

    def _exactly(self, size_bytes: int) -> bytes:
        received = bytearray()
        while len(received) < size_bytes:
            part = self.socket.recv(min(size_bytes - len(received), MIB))
            if not part:
                raise EOFError(f"closed after {len(received)} of {size_bytes} bytes")
            received += part
        return bytes(received)


class StalledSyncs:
    """Keeps all sync threads of a server's storage busy."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._release = threading.Event()

    def __enter__(self) -> None:
        pool = self._server.server.context.storage._commit._pool
        entered = threading.Barrier(THREADS + 1)

        def stall() -> None:
            entered.wait(10)
            self._release.wait(30)

        for _ in range(THREADS):
            pool.submit(stall)
        entered.wait(10)

    def __exit__(self, *_: object) -> None:
        self._release.set()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.01)


# --- messages


def path(table: str = "t", database: str = "fluss") -> pb.PbTablePath:
    return pb.PbTablePath(database_name=database, table_name=table)


def descriptor(columns: list[tuple[str, str]] | None = None, **overrides: Any) -> bytes:
    """A table descriptor as a client sends it."""
    fields = [
        {"name": name, "data_type": {"type": kind}, "id": number}
        for number, (name, kind) in enumerate(columns or COLUMNS)
    ]
    value: dict[str, Any] = {
        "version": 1,
        "schema": {"version": 1, "columns": fields, "highest_field_id": len(fields) - 1},
        "partition_key": [],
        "properties": {"table.log.arrow.compression.type": "NONE"},
        "custom_properties": {},
        **overrides,
    }
    return json.dumps(value).encode()


def create_table(wire: Wire, name: str = "t", buckets: int = 1, **overrides: Any) -> int:
    """Make a table of SCHEMA; returns its id."""
    table_json = descriptor(bucket_count=buckets, bucket_key=[], **overrides)
    wire.call(
        api_keys.CREATE_TABLE,
        pb.CreateTableRequest(table_path=path(name), table_json=table_json, ignore_if_exists=False),
    )
    return wire.call(api_keys.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path(name))).table_id


def rows(count: int = 3, start: int = 0) -> pa.RecordBatch:
    ids = list(range(start, start + count))
    columns = [pa.array(ids, pa.int32()), pa.array([f"n{i}" for i in ids]), pa.array([i / 2 for i in ids])]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def batch(count: int = 3, *, start: int = 0, writer_id: int = -1, sequence: int = -1, schema_id: int = 1) -> bytearray:
    payload = encode(rows(count, start), Codec(Compression.NONE))
    return encode_batch(payload, schema_id=schema_id, record_count=count, writer_id=writer_id, batch_sequence=sequence)


def produce_request(
    table_id: int, *buckets: tuple[int, bytes | bytearray], acks: int = -1, timeout_ms: int = 10_000
) -> pb.ProduceLogRequest:
    request = pb.ProduceLogRequest(acks=acks, table_id=table_id, timeout_ms=timeout_ms)
    for bucket_id, records in buckets:
        request.buckets_req.add(bucket_id=bucket_id, records=bytes(records))
    return request


def produce(wire: Wire, table_id: int, records: bytes | bytearray, bucket: int = 0, acks: int = -1) -> int:
    """Append one batch; returns its base offset, or raises the bucket's error."""
    response = wire.call(api_keys.PRODUCE_LOG, produce_request(table_id, (bucket, records), acks=acks))
    (entry,) = response.buckets_resp
    assert entry.bucket_id == bucket
    if entry.HasField("error_code"):
        raise WireError(entry.error_code, entry.error_message)
    return entry.base_offset


def fetch_request(
    table_id: int,
    *buckets: tuple[int, int],
    max_bytes: int = 16 * MIB,
    bucket_bytes: int = MIB,
    max_wait_ms: int | None = None,
    min_bytes: int | None = None,
    projection: list[int] | None = None,
) -> pb.FetchLogRequest:
    """`buckets` are (bucket id, fetch offset)."""
    request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=max_bytes)
    if max_wait_ms is not None:
        request.max_wait_ms = max_wait_ms
    if min_bytes is not None:
        request.min_bytes = min_bytes
    table = request.tables_req.add(table_id=table_id, projection_pushdown_enabled=projection is not None)
    table.projected_fields.extend(projection or [])
    for bucket_id, offset in buckets:
        table.buckets_req.add(bucket_id=bucket_id, fetch_offset=offset, max_fetch_bytes=bucket_bytes)
    return request


def fetch(wire: Wire, table_id: int, offset: int = -2, bucket: int = 0, **options: Any) -> pb.PbFetchLogBucketResponse:
    """Fetch one bucket; raises its error."""
    response = wire.call(api_keys.FETCH_LOG, fetch_request(table_id, (bucket, offset), **options))
    return checked_bucket(response, bucket)


def checked_bucket(response: pb.FetchLogResponse, bucket: int = 0) -> pb.PbFetchLogBucketResponse:
    entries = [entry for table in response.tables_resp for entry in table.buckets_resp if entry.bucket_id == bucket]
    (entry,) = entries
    if entry.HasField("error_code"):
        raise WireError(entry.error_code, entry.error_message)
    assert entry.HasField("high_watermark")
    assert entry.HasField("records")
    return entry


def headers(records: bytes, *, projected: bool = False) -> list[BatchHeader]:
    """Headers of whole and valid batches with dense offsets; a projection leaves the checksum as it was."""
    found: list[BatchHeader] = []
    size_bytes = 0
    for position, header in walk(records):
        if not projected:
            verify_crc(records, position, header)
        assert not found or header.base_offset == found[-1].next_offset
        found.append(header)
        size_bytes += header.size_bytes
    assert size_bytes == len(records)
    return found
