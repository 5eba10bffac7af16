"""A primary-key table of one bucket through raw requests: what a batch holds and when it is sent is up to the test."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa

import fluss
import fluss.sync
from fluss import ErrorCode
from fluss.formats.arrow import payload
from fluss.formats.batches.kv_batch import encode_header, encode_records
from fluss.formats.batches.log_batch import verify_crc, walk
from fluss.formats.rows import codecs
from fluss.formats.rows.keys import primary_key_encoder
from fluss.formats.rows.values import ValueCodec, decode_value_batch
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.records import ChangeType
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.testing import ApacheFluss, FlussServer
from fluss.testing.processes import LOOPBACK
from tests.kit.wire import ACKS_ALL, Wire

Row = Mapping[str, Any]

TIMEOUT_MS = 20_000
LEADER_TIMEOUT_S = 20.0
LEADER_INTERVAL_S = 0.05
BUCKET = 0
LIMIT = 1_000_000
SCHEMA_ID_BYTES = 2
# The first version that knows `agg_mode`.
PUT_VERSION = 1


class Put(NamedTuple):
    """One kv batch: rows to store by key; None deletes."""

    records: Sequence[tuple[Row, Row | None]]
    target_columns: tuple[int, ...] = ()
    writer_id: int = -1
    sequence: int = -1
    schema_id: int = 1
    overwrite: bool = False


class Answer(NamedTuple):
    """What the server said of a put."""

    error_code: int
    log_end_offset: int


class Batch(NamedTuple):
    """One batch of the changelog."""

    base_offset: int
    next_offset: int
    schema_id: int
    writer_id: int
    sequence: int
    changes: list[tuple[str, dict[str, Any]]]


class RawTable:
    """Connects to the server that leads the only bucket, and to the one that takes admin requests."""

    def __init__(
        self, server: FlussServer | ApacheFluss, path: fluss.TablePath, descriptor: fluss.TableDescriptor
    ) -> None:
        cluster = server if isinstance(server, ApacheFluss) else None
        self._address = server.bootstrap_servers
        self._connect(cluster)
        self._descriptor, self._path = descriptor, path
        self._schemas = {1: descriptor.schema}
        self.last_error = ""
        self.table_id = self._admin.create_table(path, descriptor)
        if cluster is not None:
            cluster.await_table(path.database_name, path.table_name)
            self._close()
            self._connect(cluster)  # anew: the cluster may have been restarted
            self._await_leader()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._admin.drop_table(self._path)
        self._close()

    def _close(self) -> None:
        self._admin.close()
        self._wire.close()

    def _connect(self, cluster: ApacheFluss | None) -> None:
        self._admin = Wire(self._address)
        self._wire = Wire(self._address if cluster is None else f"{LOOPBACK}:{cluster.ports[-1]}")

    def _await_leader(self) -> None:
        """A leader has been named, but may not know it yet."""
        deadline = time.monotonic() + LEADER_TIMEOUT_S
        while self._limit_scan().error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            assert time.monotonic() < deadline, "no leader"
            time.sleep(LEADER_INTERVAL_S)

    def alter(self, columns: list[tuple[str, pa.DataType]]) -> None:
        """Add columns, and learn the schema that came of it."""
        with fluss.sync.FlussConnection.create(fluss.Config({"bootstrap.servers": self._address})) as connection:
            admin = connection.get_admin()
            admin.alter_table(self._path, add_columns=columns)
            info = admin.get_table_info(self._path)
            self._schemas[info.schema_id] = info.schema

    def put(self, put: Put) -> Answer:
        request = pb.PutKvRequest(acks=ACKS_ALL, table_id=self.table_id, timeout_ms=TIMEOUT_MS)
        request.target_columns.extend(put.target_columns)
        request.agg_mode = int(put.overwrite)
        request.buckets_req.add(bucket_id=BUCKET, records=self._encoded(put))
        (answer,) = self._wire.call(api_keys.PUT_KV, request, PUT_VERSION).buckets_resp
        self.last_error = answer.error_message
        return Answer(answer.error_code, answer.log_end_offset)

    def _encoded(self, put: Put) -> bytes:
        keys = primary_key_encoder(self._descriptor)
        codec = self._codec(put.schema_id)
        rows = [row for _, row in put.records if row is not None]
        values = iter(codec.encode(pa.RecordBatch.from_pylist(rows, schema=codec.arrow_schema)))
        encoded = [None if row is None else (next(values) or b"")[SCHEMA_ID_BYTES:] for _, row in put.records]
        records = encode_records(
            pa.array([keys.encode_row(key) for key, _ in put.records], pa.binary()), pa.array(encoded, pa.binary())
        )
        header = encode_header(
            records,
            schema_id=put.schema_id,
            record_count=len(put.records),
            writer_id=put.writer_id,
            batch_sequence=put.sequence,
        )
        return bytes(header + records)

    def insert_missing(self, keys: Sequence[Row]) -> list[dict[str, Any]]:
        """Look keys up and have the missing ones inserted."""
        request = self._lookup_request(keys)
        request.insert_if_not_exists, request.acks, request.timeout_ms = True, ACKS_ALL, TIMEOUT_MS
        (answer,) = self._wire.call(api_keys.LOOKUP, request, 1).buckets_resp
        assert not answer.error_code, answer.error_message
        return self._rows([found.values for found in answer.values])

    def lookup(self, keys: Sequence[Row]) -> list[bytes | None]:
        """The stored value of each key."""
        (answer,) = self._wire.call(api_keys.LOOKUP, self._lookup_request(keys)).buckets_resp
        assert not answer.error_code, answer.error_message
        return [found.values if found.HasField("values") else None for found in answer.values]

    def _lookup_request(self, keys: Sequence[Row]) -> pb.LookupRequest:
        encoder = primary_key_encoder(self._descriptor)
        request = pb.LookupRequest(table_id=self.table_id)
        request.buckets_req.add(bucket_id=BUCKET, keys=[encoder.encode_row(key) for key in keys])
        return request

    def values(self) -> list[bytes]:
        """All stored values in the order of their keys."""
        answer = self._limit_scan()
        assert not answer.error_code, answer.error_message
        return decode_value_batch(answer.records)

    def _limit_scan(self) -> pb.LimitScanResponse:
        request = pb.LimitScanRequest(table_id=self.table_id, bucket_id=BUCKET, limit=LIMIT)
        return self._wire.call(api_keys.LIMIT_SCAN, request)

    def rows(self) -> list[dict[str, Any]]:
        """All rows in the newest schema."""
        return self._rows(self.values())

    def _rows(self, values: list[bytes]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._codec(max(self._schemas)).decode(values).to_pylist()
        return found

    def _codec(self, schema_id: int) -> ValueCodec:
        known = {number: schema for number, schema in self._schemas.items() if number <= schema_id}
        # A batch may claim a schema that does not exist.
        known = known if schema_id in known else {schema_id: self._descriptor.schema}
        return ValueCodec(known, self._descriptor.properties.get("table.kv.format", "COMPACTED"))

    def changelog(self) -> list[Batch]:
        """All batches of the changelog, their checksums verified."""
        found: list[Batch] = []
        offset, end = 0, self._wire.latest(self.table_id, BUCKET)
        while offset < end:
            (answer,) = self._wire.fetch_buckets(self.table_id, [(BUCKET, offset)])
            assert not answer.error_code, answer.error_message
            for position, header in walk(answer.records):
                verify_crc(answer.records, position, header)
                changes = self._decode(answer.records, position, header)
                offset = header.next_offset
                writer = (header.writer_id, header.batch_sequence)
                found.append(Batch(header.base_offset, offset, header.schema_id, *writer, changes))
        return found

    def _decode(self, buf: bytes, position: int, header: Any) -> list[tuple[str, dict[str, Any]]]:
        schema = self._schemas[header.schema_id]
        log_format = self._descriptor.properties.get("table.log.format", "ARROW")
        if header.record_count == 0:
            return []
        if log_format == "ARROW":
            changes, rows = payload.decode_changes(buf, position, header, arrow_schema(schema))
        else:
            changes, rows = codecs.decode_rows(buf, position, header, schema, log_format)
        kinds = [ChangeType(kind).short_string() for kind in changes or bytes(header.record_count)]
        return list(zip(kinds, rows.to_pylist(), strict=True))
