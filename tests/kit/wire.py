"""A client of few lines on a plain socket: what it sends, when, and how often is up to the test."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from google.protobuf.message import Message

import fluss
from fluss.model.errors import FlussError, error_from_code
from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api, Req, Resp
from fluss.testing.processes import parse_address
from tests.kit.rows import StoredBatch, stored_batches

TIMEOUT_S = 20.0
ACKS_ALL = -1
FETCH_BYTES = 4 << 20
_PRODUCE_TIMEOUT_MS = 20_000
_CLIENT = -1
_LENGTH = struct.Struct(">i")


class ConnectionLostError(Exception):
    """The server, or the way to it, is gone."""


class Produced(NamedTuple):
    """What the server said of one batch."""

    base_offset: int
    error_code: int
    error_message: str


class Wire:
    """One connection. Every wait is bounded."""

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S) -> None:
        try:
            self._socket = socket.create_connection(parse_address(address), timeout_s)
        except OSError as error:
            raise ConnectionLostError(str(error)) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    # --- bytes and frames

    def send_bytes(self, data: bytes | bytearray) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLostError(str(error)) from error

    def send(self, api_key: int, body: bytes, api_version: int = 0) -> int:
        """Send a request; returns its id."""
        request_id, frame = self.frame(api_key, body, api_version)
        self.send_bytes(frame)
        return request_id

    def frame(self, api_key: int, body: bytes, api_version: int = 0) -> tuple[int, bytes]:
        """A request with a new id, not sent yet."""
        self._request_id += 1
        return self._request_id, frames.request_header(api_key, api_version, self._request_id, len(body)) + body

    def receive(self) -> frames.Response:
        """The next answer, whichever request it belongs to."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return frames.parse_response(memoryview(self._read(length)))

    def _read(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            try:
                data = self._socket.recv(size - len(received))
            except TimeoutError:
                raise AssertionError(f"no answer within {self._socket.gettimeout()} s") from None
            except OSError as error:
                raise ConnectionLostError(str(error)) from error
            if not data:
                raise ConnectionLostError("closed by the server")
            received += data
        return bytes(received)

    # --- one request, one answer

    def call(self, api: Api[Req, Resp], request: Req, api_version: int = 0) -> Resp:
        """Ask and wait for the answer; an error answer is raised."""
        request_id = self.send(api.key, request.SerializeToString(), api_version)
        response = self.receive()
        if response.request_id != request_id:
            raise AssertionError(f"answer {response.request_id} for request {request_id}")
        if response.kind != frames.SUCCESS:
            raise error_of(response)
        return parsed(api.response, response)

    def create_table(self, path: fluss.TablePath, descriptor: fluss.TableDescriptor) -> int:
        """Make a table; returns its id."""
        request = pb.CreateTableRequest(table_path=_path(path), table_json=descriptor.to_json(), ignore_if_exists=False)
        self.call(api_keys.CREATE_TABLE, request)
        return self.table_id(path)

    def drop_table(self, path: fluss.TablePath) -> None:
        self.call(api_keys.DROP_TABLE, pb.DropTableRequest(table_path=_path(path), ignore_if_not_exists=False))

    def table_exists(self, path: fluss.TablePath) -> bool:
        return self.call(api_keys.TABLE_EXISTS, pb.TableExistsRequest(table_path=_path(path))).exists

    def table_id(self, path: fluss.TablePath) -> int:
        return self.call(api_keys.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=_path(path))).table_id

    def create_partition(self, path: fluss.TablePath, **values: str) -> None:
        request = pb.CreatePartitionRequest(
            table_path=_path(path), partition_spec=_spec(values), ignore_if_exists=False
        )
        self.call(api_keys.CREATE_PARTITION, request)

    def drop_partition(self, path: fluss.TablePath, **values: str) -> None:
        request = pb.DropPartitionRequest(
            table_path=_path(path), partition_spec=_spec(values), ignore_if_not_exists=False
        )
        self.call(api_keys.DROP_PARTITION, request)

    def partition_ids(self, path: fluss.TablePath) -> dict[str, int]:
        """Ids of all partitions, by name."""
        answer = self.call(api_keys.LIST_PARTITION_INFOS, pb.ListPartitionInfosRequest(table_path=_path(path)))
        return {
            "$".join(pair.value for pair in info.partition_spec.partition_key_values): info.partition_id
            for info in answer.partitions_info
        }

    def new_writer_id(self) -> int:
        return self.call(api_keys.INIT_WRITER, pb.InitWriterRequest()).writer_id

    def earliest(self, table_id: int, bucket: int) -> int:
        """The offset of the first row that is left."""
        return self._offset(table_id, bucket, 0)

    def latest(self, table_id: int, bucket: int) -> int:
        """The offset the next row will get."""
        return self._offset(table_id, bucket, 1)

    def _offset(self, table_id: int, bucket: int, kind: int) -> int:
        request = pb.ListOffsetsRequest(
            follower_server_id=_CLIENT, offset_type=kind, table_id=table_id, bucket_id=[bucket]
        )
        (answer,) = self.call(api_keys.LIST_OFFSETS, request).buckets_resp
        if answer.HasField("error_code"):
            raise error_from_code(answer.error_code, answer.error_message)
        return answer.offset

    def produce(
        self, table_id: int, bucket: int, batch: bytes | bytearray, partition_id: int | None = None
    ) -> Produced:
        """Send one batch and wait for its answer."""
        request = produce_request(table_id, bucket, batch)
        if partition_id is not None:
            request.buckets_req[0].partition_id = partition_id
        return produced(self.call(api_keys.PRODUCE_LOG, request))

    def fetch(self, table_id: int, bucket: int, offset: int) -> list[StoredBatch]:
        """The batches from the one with `offset` on, as many as one answer has; an error answer is raised."""
        (answer,) = self.fetch_buckets(table_id, [(bucket, offset)])
        if answer.HasField("error_code"):
            raise error_from_code(answer.error_code, answer.error_message)
        return stored_batches(answer.records)

    def fetch_buckets(
        self, table_id: int, positions: Sequence[tuple[int, int]]
    ) -> Sequence[pb.PbFetchLogBucketResponse]:
        """The answers for (bucket, offset) pairs, errors included."""
        table = pb.PbFetchLogTableRequest(table_id=table_id, projection_pushdown_enabled=False)
        for bucket, offset in positions:
            table.buckets_req.add(bucket_id=bucket, fetch_offset=offset, max_fetch_bytes=FETCH_BYTES)
        request = pb.FetchLogRequest(
            follower_server_id=_CLIENT, max_bytes=FETCH_BYTES, tables_req=[table], max_wait_ms=0, min_bytes=0
        )
        return self.call(api_keys.FETCH_LOG, request).tables_resp[0].buckets_resp

    def read(self, table_id: int, bucket: int, offset: int = 0) -> list[StoredBatch]:
        """Everything the bucket has from an offset on and below its latest one."""
        latest = self.latest(table_id, bucket)
        found: list[StoredBatch] = []
        while offset < latest:
            batches = self.fetch(table_id, bucket, offset)
            if not batches:
                raise AssertionError(f"bucket {bucket}: nothing at offset {offset}, the latest is {latest}")
            found += batches
            following = batches[-1].base_offset + len(batches[-1].rows)
            if following <= offset:
                raise AssertionError(f"bucket {bucket}: a fetch from {offset} ends at {following}")
            offset = following
        return found


def produce_request(table_id: int, bucket: int, batch: bytes | bytearray) -> pb.ProduceLogRequest:
    request = pb.ProduceLogRequest(acks=ACKS_ALL, table_id=table_id, timeout_ms=_PRODUCE_TIMEOUT_MS)
    request.buckets_req.add(bucket_id=bucket, records=bytes(batch))
    return request


def put_request(
    table_id: int, bucket: int, batch: bytes, targets: Iterable[int] = (), agg_mode: int | None = None
) -> pb.PutKvRequest:
    request = pb.PutKvRequest(
        acks=ACKS_ALL, table_id=table_id, timeout_ms=_PRODUCE_TIMEOUT_MS, target_columns=targets, agg_mode=agg_mode
    )
    request.buckets_req.add(bucket_id=bucket, records=batch)
    return request


def produced(answer: pb.ProduceLogResponse) -> Produced:
    """The fate of the only batch of a request."""
    (entry,) = answer.buckets_resp
    return Produced(entry.base_offset, entry.error_code, entry.error_message)


def parsed(kind: type[Resp], response: frames.Response) -> Resp:
    message = kind()
    message.ParseFromString(bytes(response.body))
    return message


def error_of(response: frames.Response) -> FlussError:
    """The error in an error answer."""
    message: Message = parsed(pb.ErrorResponse, response)
    assert isinstance(message, pb.ErrorResponse)
    return error_from_code(message.error_code, message.error_message)


def _path(path: fluss.TablePath) -> pb.PbTablePath:
    return pb.PbTablePath(database_name=path.database_name, table_name=path.table_name)


def _spec(values: dict[str, str]) -> pb.PbPartitionSpec:
    return pb.PbPartitionSpec(partition_key_values=[pb.PbKeyValue(key=key, value=v) for key, v in values.items()])
