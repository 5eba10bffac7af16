"""Structure-aware fuzzing of primary-key tables (R19, R20): as of log tables, and afterwards each table is the fold of
its changelog, also when all but the logs is lost.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any, Final, TypeAlias

import pytest
from google.protobuf.message import DecodeError

from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from tests.crash.fuzzing import (
    ANSWER_S_MAX,
    BATCHES_AT_ONCE,
    DURATIONS,
    MEMORY_GROWTH_BYTES_MAX,
    ask_all,
    rounds,
    watched,
)
from tests.crash.kv_samples import KvSample
from tests.crash.kv_target import BUCKET, END_S_MAX, STORES_BYTES, KvTarget, kv_target
from tests.kit.mutations import Pools, mutated, mutated_kv_batch, random_message
from tests.kit.wire import Wire, parsed, put_request

__all__ = ["kv_target"]

AnyApi: TypeAlias = api_keys.Api[Any, Any]
GROWTH_BYTES_MAX: Final = MEMORY_GROWTH_BYTES_MAX + STORES_BYTES
APIS: Final[tuple[AnyApi, ...]] = (
    api_keys.PUT_KV,
    api_keys.LOOKUP,
    api_keys.PREFIX_LOOKUP,
    api_keys.SCAN_KV,
    api_keys.LIMIT_SCAN,
    api_keys.FETCH_LOG,
    api_keys.LIST_OFFSETS,
    api_keys.GET_TABLE_STATS,
    api_keys.GET_LATEST_KV_SNAPSHOTS,
    api_keys.GET_KV_SNAPSHOT_METADATA,
    api_keys.ACQUIRE_KV_SNAPSHOT_LEASE,
    api_keys.RELEASE_KV_SNAPSHOT_LEASE,
    api_keys.DROP_KV_SNAPSHOT_LEASE,
)
VERSION: Final = 1  # of PutKv, Lookup and PrefixLookup


@DURATIONS
def test_messages(kv_target: KvTarget, chance: random.Random, seconds: float) -> None:
    """Requests of each kind that primary-key tables know."""
    pools = kv_target.pools()
    answered = {api.name: 0 for api in APIS}
    with watched(kv_target, GROWTH_BYTES_MAX), Wire(kv_target.server.bootstrap_servers, ANSWER_S_MAX) as wire:
        for _ in rounds(seconds):
            version = chance.choice((0, 0, VERSION, 2))
            apis = [api for api in APIS if api.version_max >= version]
            requests = [(api.key, some_request(api, pools, kv_target, chance)) for api in apis]
            for api, response in zip(apis, ask_all(wire, requests, version), strict=True):
                answered[api.name] += response.kind == frames.SUCCESS
        kv_target.check_tables()
    print(answered)
    assert sum(map(bool, answered.values())) > len(APIS) / 2, "hardly anything gets past the first check"


def some_request(api: AnyApi, pools: Pools, target: KvTarget, chance: random.Random) -> bytes:
    """Any one but a write to the tables of normal clients, who know what is in them."""
    while True:
        body: bytes = random_message(api.request, pools, chance).SerializePartialToString()
        body = mutated(body, chance) if chance.random() < 0.3 else body
        message = api.request()
        with contextlib.suppress(DecodeError):
            message.ParseFromString(body)
        if getattr(message, "table_id", None) not in target.others_ids:
            return body


@DURATIONS
def test_batches(kv_target: KvTarget, chance: random.Random, seconds: float) -> None:
    """Changed batches as whole rows, as partial updates, past the merge engine: taken whole, or refused whole."""
    taken = {sample.name: 0 for sample in kv_target.samples}
    refused = dict(taken)
    with watched(kv_target, GROWTH_BYTES_MAX), Wire(kv_target.server.bootstrap_servers, ANSWER_S_MAX) as wire:
        for _ in rounds(seconds):
            for sample in kv_target.samples:
                requests = []
                for _ in range(BATCHES_AT_ONCE // len(kv_target.samples) + 1):
                    batch = mutated_kv_batch(chance.choice(sample.batches), chance)
                    targets = chance.choice((*sample.targets, *sample.targets, (0, 1, 3), (1,), (0, 1, 99), (-1,)))
                    agg_mode = chance.choice((None, None, 0, 1, 2))
                    requests.append(put_request(kv_target.ids[sample.name], BUCKET, batch, targets, agg_mode))
                bodies = [(api_keys.PUT_KV.key, request.SerializeToString()) for request in requests]
                for response in ask_all(wire, bodies, VERSION):
                    if response.kind == frames.SUCCESS:
                        (answer,) = parsed(pb.PutKvResponse, response).buckets_resp
                        taken[sample.name] += not answer.error_code
                        refused[sample.name] += bool(answer.error_code)
        kv_target.check_tables()
    print(f"taken: {taken}, refused: {refused}")
    assert all(taken.values())
    assert all(refused.values())


@DURATIONS
def test_reads(kv_target: KvTarget, chance: random.Random, seconds: float) -> None:
    """Keys and prefixes that are nearly right, inserts of missing rows, scans in any order of their calls."""
    found = inserted = scanned = 0
    scanner_ids = [b"", b"x" * 3_000]
    with watched(kv_target, GROWTH_BYTES_MAX), Wire(kv_target.server.bootstrap_servers, ANSWER_S_MAX) as wire:
        for _ in rounds(seconds):
            sample = chance.choice(kv_target.samples)
            table_id = kv_target.ids[sample.name]
            lookups = [lookup_request(table_id, sample, chance) for _ in range(BATCHES_AT_ONCE)]
            requests = [(api_keys.LOOKUP.key, request.SerializeToString()) for request in lookups]
            for request, response in zip(lookups, ask_all(wire, requests, VERSION), strict=True):
                (answer,) = parsed(pb.LookupResponse, response).buckets_resp
                rows = sum(value.HasField("values") for value in answer.values)
                assert answer.error_code or len(answer.values) == len(request.buckets_req[0].keys)
                if request.insert_if_not_exists and not answer.error_code:
                    assert rows == len(answer.values)
                    inserted += rows
                found += rows
            prefixes = [lookup_request(table_id, sample, chance) for _ in range(8)]
            ask_all(wire, [(api_keys.PREFIX_LOOKUP.key, as_prefix_lookup(request)) for request in prefixes], VERSION)
            scans = [scan_request(table_id, scanner_ids, chance) for _ in range(BATCHES_AT_ONCE)]
            for response in ask_all(wire, [(api_keys.SCAN_KV.key, request) for request in scans]):
                page = parsed(pb.ScanKvResponse, response)
                scanned += len(page.records)
                if page.scanner_id and len(scanner_ids) < 200:
                    scanner_ids.append(page.scanner_id)
        kv_target.check_tables()
    print(f"{found} rows found, {inserted} of them made sure of, {scanned} bytes scanned")
    assert found
    assert inserted
    assert scanned


def lookup_request(table_id: int, sample: KvSample, chance: random.Random) -> pb.LookupRequest:
    request = pb.LookupRequest(table_id=table_id)
    keys = [chance.choice(sample.keys) for _ in range(chance.choice((0, 1, 3, 50)))]
    keys = [mutated(key, chance) if chance.random() < 0.2 else key for key in keys]
    request.buckets_req.add(bucket_id=BUCKET, keys=keys)
    if chance.random() < 0.3:
        request.insert_if_not_exists, request.acks, request.timeout_ms = True, chance.choice((1, -1, 0)), 10_000
    return request


def as_prefix_lookup(request: pb.LookupRequest) -> bytes:
    prefixes = [key[: 1 + number % 3] for number, key in enumerate(request.buckets_req[0].keys)]
    asked = pb.PrefixLookupRequest(table_id=request.table_id)
    asked.buckets_req.add(bucket_id=BUCKET, keys=prefixes)
    return asked.SerializeToString()


def scan_request(table_id: int, scanner_ids: list[bytes], chance: random.Random) -> bytes:
    request = pb.ScanKvRequest(batch_size_bytes=chance.choice((1, 200, 1 << 20, 2**31 - 1)))
    if chance.random() < 0.2:
        request.bucket_scan_req.table_id = table_id
        request.bucket_scan_req.bucket_id = BUCKET
        request.bucket_scan_req.limit = chance.choice((-1, 0, 1, 5, 2**62))
        request.call_seq_id = 0
    else:
        request.scanner_id = chance.choice(scanner_ids)
        request.call_seq_id = chance.choice((1, 1, 2, 3, -1))
        request.close_scanner = chance.random() < 0.3
    return request.SerializeToString()


@pytest.mark.timeout(300)
def test_all_rows_come_from_the_logs(kv_target: KvTarget) -> None:
    """What was accepted can be replayed: without stores and snapshots the tables are the same."""
    kv_target.check_tables()
    kv_target.rebuild()
    kv_target.check_tables()
    kv_target.load.await_progress(within_s=END_S_MAX)
