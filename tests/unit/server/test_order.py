"""Requests of one connection: executed in order, answered when they are ready."""

from __future__ import annotations

import socket

from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from tests.kit.thread_server import (
    RunningServer,
    Wire,
    batch,
    checked_bucket,
    create_table,
    descriptor,
    fetch,
    fetch_request,
    headers,
    path,
    produce_request,
)


def test_pipelined_writes_keep_their_order(wire: Wire) -> None:
    table_id = create_table(wire)
    ids = [
        wire.send(api_keys.PRODUCE_LOG, produce_request(table_id, (0, batch(1, writer_id=1, sequence=sequence))))
        for sequence in range(200)
    ]
    answers = [wire.receive() for _ in ids]
    assert sorted(answer.request_id or 0 for answer in answers) == ids
    records = fetch(wire, table_id).records
    assert [header.batch_sequence for header in headers(records)] == list(range(200))


def test_a_request_sees_what_those_before_it_did(wire: Wire) -> None:
    """Making a table goes through a thread; requests behind it wait for it without being asked to."""
    create = pb.CreateTableRequest(table_path=path(), table_json=descriptor(), ignore_if_exists=False)
    info = pb.GetTableInfoRequest(table_path=path())
    drop = pb.DropTableRequest(table_path=path(), ignore_if_not_exists=False)
    steps = [
        (api_keys.CREATE_TABLE, create),
        (api_keys.GET_TABLE_INFO, info),
        (api_keys.DROP_TABLE, drop),
        (api_keys.TABLE_EXISTS, pb.TableExistsRequest(table_path=path())),
        (api_keys.CREATE_TABLE, create),
        (api_keys.GET_TABLE_INFO, info),
        (api_keys.PRODUCE_LOG, produce_request(1, (0, batch(1)))),
    ]
    ids = [wire.send(api, request) for api, request in steps]
    answers = [wire.receive_answer(ids[number], api) for number, (api, _) in enumerate(steps)]
    assert isinstance(answers[1], pb.GetTableInfoResponse)
    assert isinstance(answers[3], pb.TableExistsResponse)
    assert isinstance(answers[5], pb.GetTableInfoResponse)
    assert isinstance(answers[6], pb.ProduceLogResponse)
    assert (answers[1].table_id, answers[3].exists, answers[5].table_id) == (0, False, 1)
    assert not answers[6].buckets_resp[0].HasField("error_code")


def test_later_requests_overtake_a_waiting_fetch(wire: Wire) -> None:
    table_id = create_table(wire)
    waiting = wire.send(api_keys.FETCH_LOG, fetch_request(table_id, (0, 0), max_wait_ms=15_000, min_bytes=1))
    written = wire.send(api_keys.PRODUCE_LOG, produce_request(table_id, (0, batch(2))))
    answers = {response.request_id: response for response in (wire.receive(), wire.receive())}
    assert set(answers) == {waiting, written}
    fetched = pb.FetchLogResponse.FromString(bytes(answers[waiting].body))
    assert checked_bucket(fetched).high_watermark == 2


def test_a_frame_in_single_bytes(server: RunningServer, wire: Wire) -> None:
    body = pb.MetadataRequest().SerializeToString()
    frame = frames.request_header(api_keys.METADATA.key, 0, 77, len(body)) + body
    for byte in frame:
        wire.socket.send(bytes([byte]))
    assert wire.receive_answer(77, api_keys.METADATA).tablet_servers


def test_many_requests_in_one_segment(wire: Wire) -> None:
    count = 500
    body = pb.MetadataRequest().SerializeToString()
    wire.socket.sendall(
        b"".join(frames.request_header(api_keys.METADATA.key, 0, number, len(body)) + body for number in range(count))
    )
    assert [wire.receive().request_id for _ in range(count)] == list(range(count))


def test_a_connection_that_closes_its_writing_half_is_closed(wire: Wire) -> None:
    wire.call(api_keys.METADATA, pb.MetadataRequest())
    wire.socket.shutdown(socket.SHUT_WR)
    assert wire.is_closed_by_server()
