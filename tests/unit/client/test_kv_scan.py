"""Current rows by ScanKv, from a server whose answers the test decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.client import ClientCore
from fluss.client.current.changes import ChangesCore
from fluss.client.current.current_rows import CurrentRows
from fluss.client.runtime import run
from fluss.client.scan import table_read
from fluss.client.table import TableCore
from fluss.formats.rows.values import ValueCodec, encode_value_batch
from fluss.model.config import Config
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError, TimeoutError
from fluss.model.paths import TableBucket
from fluss.model.predicates import col
from fluss.model.schema import Schema
from fluss.protocol import messages_pb2 as pb
from tests.kit.scripted import PATH, TABLE_ID, Cut, ScriptedServer, Silence

SCAN_KV = 1061
ROWS = 10
ROWS_PER_ANSWER = 3
TABLE = TableDescriptor(Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), ["id"]), bucket_count=2)

Trouble = Callable[[int], None]
"""Called with the number of the call of a scan; may raise."""


class ScanError(Exception):
    """Answer with this code in the answer's own field."""

    def __init__(self, error_code: int) -> None:
        super().__init__(error_code)
        self.error_code = error_code


class KvServer(ScriptedServer):
    """Has ten rows per bucket, given out three at a time."""

    def __init__(self) -> None:
        super().__init__(TABLE)
        self.handlers[SCAN_KV] = self.scan
        self.scans: dict[bytes, tuple[int, int]] = {}
        """By id: bucket, next row."""
        self.opened = 0
        self.closed: list[bytes] = []
        self.closing = threading.Event()
        self.trouble: Trouble = lambda _: None
        self.reverse = False

    def values(self, bucket: int, start: int) -> list[bytes]:
        ids = list(range(100 * bucket, 100 * bucket + ROWS))
        ids = (ids[::-1] if self.reverse else ids)[start : start + ROWS_PER_ANSWER]
        codec = ValueCodec({1: TABLE.schema})
        batch = pa.record_batch({"id": ids, "name": [f"n{i}" for i in ids]}, schema=codec.arrow_schema)
        return [value for value in codec.encode(batch) if value is not None]

    def scan(self, request: pb.ScanKvRequest) -> pb.ScanKvResponse:
        if request.close_scanner:
            self.closed.append(request.scanner_id)
            self.closing.set()
            return pb.ScanKvResponse()
        try:
            self.trouble(request.call_seq_id)
        except ScanError as error:
            return pb.ScanKvResponse(error_code=error.error_code, error_message="as told")
        answer = pb.ScanKvResponse()
        if request.HasField("bucket_scan_req"):
            self.opened += 1
            scanner_id, bucket, start = str(self.opened).encode(), request.bucket_scan_req.bucket_id, 0
            answer.log_offset = 7000 + bucket
        else:
            scanner_id = request.scanner_id
            bucket, start = self.scans[scanner_id]
        assert request.call_seq_id == start // ROWS_PER_ANSWER
        assert request.batch_size_bytes > 0
        self.scans[scanner_id] = (bucket, start + ROWS_PER_ANSWER)
        answer.scanner_id = scanner_id
        answer.records = bytes(encode_value_batch(self.values(bucket, start)))
        answer.has_more_results = start + ROWS_PER_ANSWER < ROWS
        return answer


@pytest.fixture
def server() -> Iterator[KvServer]:
    with KvServer() as running:
        assert isinstance(running, KvServer)
        yield running


@pytest.fixture
def client(server: KvServer) -> Iterator[ClientCore]:
    settings = {"bootstrap.servers": server.address, "request-timeout-ms": "3000"}
    connected = run(ClientCore.connect(Config(settings)))
    yield connected
    run(connected.close())


@pytest.fixture
def table(client: ClientCore) -> TableCore:
    return run(client.table(PATH))


def once(error: Exception, call: int = 1) -> Trouble:
    """Fail one call."""
    left = [error]

    def fail(number: int) -> None:
        if number == call and left:
            raise left.pop()

    return fail


def ids(found: pa.Table) -> list[int]:
    numbers: list[int] = found["id"].to_pylist()
    return numbers


def poll(changes: ChangesCore) -> pa.Table:
    found = run(changes.poll(3_000))
    changes.taken()
    return found


def test_all_buckets_with_their_offsets(table: TableCore, server: KvServer) -> None:
    found, offsets = run(table.read())
    assert ids(found) == [*range(10), *range(100, 110)]
    assert offsets == {TableBucket(TABLE_ID, 0): 7000, TableBucket(TABLE_ID, 1): 7001}
    assert found.schema == table.arrow_schema
    assert server.closed == []  # scans that were read to their end are over


def test_projection_and_filter(table: TableCore) -> None:
    found, _ = run(table.read([1], (col("id") >= 8) & (col("id") < 102)))
    assert found.to_pydict() == {"name": ["n8", "n9", "n100", "n101"]}


@pytest.mark.parametrize(
    "error",
    [
        ScanError(ErrorCode.SCANNER_EXPIRED),
        ScanError(ErrorCode.UNKNOWN_SCANNER_ID),
        ScanError(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        Cut(),
    ],
    ids=["expired", "unknown", "moved", "cut"],
)
def test_a_lost_scan_begins_again(table: TableCore, server: KvServer, error: Exception) -> None:
    server.trouble = once(error, call=2)
    found, offsets = run(table.read())
    assert ids(found) == [*range(10), *range(100, 110)]
    assert set(offsets.values()) == {7000, 7001}
    assert server.opened > 2


def test_too_many_scanners_are_waited_for(table: TableCore, server: KvServer) -> None:
    server.trouble = once(ScanError(ErrorCode.TOO_MANY_SCANNERS), call=0)
    assert len(ids(run(table.read())[0])) == 2 * ROWS


def test_a_scan_that_is_lost_over_and_over_ends(table: TableCore, server: KvServer) -> None:
    def fail(call: int) -> None:
        if call == 2:
            raise ScanError(ErrorCode.SCANNER_EXPIRED)

    server.trouble = fail
    with pytest.raises(FlussError, match="as told"):
        run(table.read())
    assert server.opened >= table_read.LOST_SCANS_MAX


def test_a_scan_that_never_begins_ends_in_time(table: TableCore, server: KvServer) -> None:
    def fail(_: int) -> None:
        raise ScanError(ErrorCode.TOO_MANY_SCANNERS)

    server.trouble = fail
    with pytest.raises(FlussError, match="as told"):
        run(table.read())


def test_rows_out_of_order_are_refused(table: TableCore, server: KvServer) -> None:
    server.reverse = True
    with pytest.raises(CorruptDataError, match="order of keys"):
        run(table.read())


def test_a_reader_that_stops_closes_its_scan(table: TableCore, server: KvServer) -> None:
    changes = table.changes()
    run(changes.start("snapshot"))
    assert poll(changes)["id"].to_pylist() == [0, 1, 2]
    position = changes.position
    assert [(item.offset, item.after_key) for item in position.buckets] == [(7000, b"\x02"), (None, None)]
    changes.close()
    assert server.closing.wait(10)
    assert server.closed == [b"1"]


def test_rows_up_to_the_key_of_a_position_are_left_out(client: ClientCore, table: TableCore) -> None:
    rows = CurrentRows(client.cluster, table.info)

    async def read(after_key: bytes | None) -> list[Any]:
        opened = await rows.open(TableBucket(TABLE_ID, 0), None, after_key)
        found: list[Any] = []
        while (batch := await opened.next()) is not None:
            found += batch["id"].to_pylist()
        return found

    assert run(read(b"\x04")) == [5, 6, 7, 8, 9]
    assert run(read(b"\x05")) == [6, 7, 8, 9]
    assert run(read(b"\x09")) == []


def test_a_server_that_says_nothing(table: TableCore, server: KvServer) -> None:
    def fail(_: int) -> None:
        raise Silence

    server.trouble = fail
    with pytest.raises(TimeoutError):
        run(table.read())
