"""A server of a few lines whose answers a test decides, on the client's own I/O loop."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
from google.protobuf.message import Message

from fluss.client.runtime import run
from fluss.formats.arrow.payload import decode_changes
from fluss.formats.batches import kv_batch
from fluss.formats.batches.log_batch import walk
from fluss.formats.rows.codecs import CompactedFormat, IndexedFormat
from fluss.formats.rows.keys import primary_key_encoder
from fluss.model.descriptor import TableDescriptor
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.paths import TablePath
from fluss.model.schema import Schema
from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb

PATH = TablePath("db", "t")
TABLE_ID = 7
REMEMBERED_SEQUENCES = 5


class Refuse(Exception):  # noqa: N818  # an answer, not a failure of the test
    """Answer with an error frame."""

    def __init__(self, error_code: int, text: str = "") -> None:
        super().__init__(text)
        self.error_code, self.text = error_code, text


class Silence(Exception):  # noqa: N818
    """Do not answer."""


class Cut(Exception):  # noqa: N818
    """Close the connection instead of answering."""


Handler = Callable[[Any], Message | Awaitable[Message]]


def descriptor(buckets: int = 1, bucket_keys: list[str] | None = None, **properties: str) -> TableDescriptor:
    schema = Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
    return TableDescriptor(schema, bucket_count=buckets, bucket_keys=bucket_keys, properties=properties or None)


class ScriptedServer:
    """Answers from `handlers` by api key; keeps the request frames and the rows it stored."""

    def __init__(self, table: TableDescriptor | None = None) -> None:
        self.table = table or descriptor()
        self.bucket_count = self.table.bucket_count or 1
        self.port = 0
        self.requests: list[tuple[int, Message]] = []
        self.versions: dict[int, int] = {}
        self.connections = 0
        self.logs: dict[int, list[dict[str, Any]]] = {bucket: [] for bucket in range(self.bucket_count)}
        self.writers: dict[tuple[int, int], list[int]] = {}
        self.next_writer_id = 0
        self.handlers: dict[int, Handler] = {
            1000: self.api_versions,
            1007: self.table_info,
            1012: self.metadata,
            1014: self.produce,
            1016: self.put_kv,
            1026: self.init_writer,
        }
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def count(self, api_key: int) -> int:
        return sum(1 for key, _ in self.requests if key == api_key)

    # ---- life ----

    def __enter__(self) -> ScriptedServer:
        run(self.open())
        return self

    def __exit__(self, *_: object) -> None:
        run(self.close())

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                request = frames.parse_request(memoryview(await reader.readexactly(length)))
                api = api_keys.BY_KEY[request.api_key]
                message = api.request()
                message.ParseFromString(bytes(request.body))
                self.requests.append((api.key, message))
                self.versions[api.key] = request.api_version
                await self._answer(writer, request, message)
        except (asyncio.IncompleteReadError, ConnectionError, Cut):
            writer.transport.abort()
        finally:
            self._writers.discard(writer)

    async def _answer(self, writer: asyncio.StreamWriter, request: frames.Request, message: Message) -> None:
        try:
            answer = self.handlers[request.api_key](message)
            if not isinstance(answer, Message):
                answer = await answer
            kind, body = frames.SUCCESS, answer.SerializeToString()
        except Refuse as refuse:
            kind = frames.ERROR
            body = pb.ErrorResponse(error_code=refuse.error_code, error_message=refuse.text).SerializeToString()
        except Silence:
            return
        writer.write(frames.response_header(kind, request.request_id, len(body)) + body)

    # ---- default answers ----

    def api_versions(self, _: pb.ApiVersionsRequest) -> pb.ApiVersionsResponse:
        answer = pb.ApiVersionsResponse()
        for api in api_keys.ALL:
            answer.api_versions.add(api_key=api.key, min_version=0, max_version=api.version_max)
        return answer

    def metadata(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        answer = pb.MetadataResponse()
        node = {"node_id": 0, "host": "127.0.0.1", "port": self.port}
        answer.coordinator_server.MergeFrom(pb.PbServerNode(**node))
        answer.tablet_servers.add(**node)
        for path in request.table_path:
            if (path.database_name, path.table_name) != (PATH.database_name, PATH.table_name):
                raise Refuse(7, "no such table")
            item = answer.table_metadata.add(
                table_id=TABLE_ID, schema_id=1, table_json=self.table.to_json(), created_time=1, modified_time=1
            )
            item.table_path.MergeFrom(path)
            for bucket in range(self.bucket_count):
                item.bucket_metadata.add(bucket_id=bucket, leader_id=0)
        return answer

    def table_info(self, _: pb.GetTableInfoRequest) -> pb.GetTableInfoResponse:
        return pb.GetTableInfoResponse(
            table_id=TABLE_ID, schema_id=1, table_json=self.table.to_json(), created_time=1, modified_time=1
        )

    def init_writer(self, _: pb.InitWriterRequest) -> pb.InitWriterResponse:
        self.next_writer_id += 1
        return pb.InitWriterResponse(writer_id=self.next_writer_id)

    def produce(self, request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
        answer = pb.ProduceLogResponse()
        for item in request.buckets_req:
            error_code = self.store(item.bucket_id, item.records)
            bucket = answer.buckets_resp.add(bucket_id=item.bucket_id)
            if error_code:
                bucket.error_code = error_code
            else:
                bucket.base_offset = 0
        return answer

    def store(self, bucket: int, records: bytes) -> int:
        """Append a batch as a server does: a known sequence once, an unexpected one not at all."""
        ((position, header),) = walk(records)
        if header.writer_id >= 0:
            answer = self.take_number(bucket, header.writer_id, header.batch_sequence)
            if answer is not None:
                return answer
        _, batch = decode_changes(records, position, header, arrow_schema(self.table.schema))
        self.logs[bucket].extend(batch.to_pylist())
        return 0

    def take_number(self, bucket: int, writer_id: int, sequence: int) -> int | None:
        """None when the batch is to be stored, otherwise the error code to answer."""
        known = self.writers.setdefault((bucket, writer_id), [])
        if sequence in known[-REMEMBERED_SEQUENCES:]:
            return 0
        if sequence != (known[-1] + 1 if known else 0):
            return 31
        known.append(sequence)
        return None

    def put_kv(self, request: pb.PutKvRequest) -> pb.PutKvResponse:
        answer = pb.PutKvResponse()
        for item in request.buckets_req:
            answer.buckets_resp.add(bucket_id=item.bucket_id).error_code = self.store_kv(item.bucket_id, item.records)
        return answer

    def store_kv(self, bucket: int, records: bytes) -> int:
        """Log the operations of a kv batch: a row, or the key columns of a deleted one under "deleted"."""
        header = kv_batch.parse_header(records)
        answer = self.take_number(bucket, header.writer_id, header.batch_sequence)
        if answer is not None:
            return answer
        indexed = self.table.properties.get("table.kv.format") == "INDEXED"
        rows = (IndexedFormat if indexed else CompactedFormat)(self.table.schema.columns)
        keys = primary_key_encoder(self.table)
        for key, value in zip(*kv_batch.decode_records(records, header), strict=True):
            (key_columns,) = keys.decode([key]).to_pylist()
            row = {"deleted": key_columns} if value is None else rows.decode([value[2:]]).to_pylist()[0]
            assert value is None or key_columns.items() <= row.items()
            self.logs[bucket].append(row)
        return 0

    def ids(self, bucket: int = 0) -> list[int]:
        return [row["id"] for row in self.logs[bucket]]
