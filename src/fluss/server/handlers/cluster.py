"""Requests about the cluster as a whole: its settings, tags, health, and offsets of producers.

One machine has no replicas to move. A rebalance is therefore done when it is asked for, and its progress says so.
"""

from __future__ import annotations

from typing import Final

from fluss.doors import randomness
from fluss.model.errors import ErrorCode, InvalidRequestError, error_from_code
from fluss.model.paths import TableBucket, name_problem
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.context import ConnectionContext
from fluss.server.tables.rules import NODE_ID, check_count
from fluss.server.tables.settings import SettingChange
from fluss.storage.catalog.db import ProducerEntry


def describe_cluster_configs(
    context: ConnectionContext, _: pb.DescribeClusterConfigsRequest
) -> pb.DescribeClusterConfigsResponse:
    response = pb.DescribeClusterConfigsResponse()
    for key, value, source in context.server.settings.effective():
        response.configs.add(config_key=key, config_value=value, config_source=source)
    return response


async def alter_cluster_configs(
    context: ConnectionContext, request: pb.AlterClusterConfigsRequest
) -> pb.AlterClusterConfigsResponse:
    check_count(len(request.alter_configs), context.limits.request_items_max, "settings")
    changes = [
        SettingChange(item.config_key, item.op_type, item.config_value if item.HasField("config_value") else None)
        for item in request.alter_configs
    ]
    if changes:
        await context.server.settings.change(changes)
    return pb.AlterClusterConfigsResponse()


# ---- tags of servers, and rebalancing between them

_TAGS: Final = (0, 1)  # permanently and temporarily offline


async def add_server_tag(context: ConnectionContext, request: pb.AddServerTagRequest) -> pb.AddServerTagResponse:
    tag, known = _tag(request.server_tag), context.server.settings.tags()
    check_count(len(request.server_ids), context.limits.request_items_max, "servers")
    for server_id in request.server_ids:
        if server_id != NODE_ID:
            raise error_from_code(
                ErrorCode.SERVER_NOT_EXIST_EXCEPTION, f"There is no server {server_id}; this one is {NODE_ID}."
            )
        if known.get(server_id, tag) != tag:
            raise error_from_code(
                ErrorCode.SEVER_TAG_ALREADY_EXIST_EXCEPTION,
                f"Server {server_id} has the tag {known[server_id]}; remove that before you set another.",
            )
    if request.server_ids:
        await context.server.settings.set_tags(dict.fromkeys(request.server_ids, tag))
    return pb.AddServerTagResponse()


async def remove_server_tag(
    context: ConnectionContext, request: pb.RemoveServerTagRequest
) -> pb.RemoveServerTagResponse:
    tag, known = _tag(request.server_tag), context.server.settings.tags()
    check_count(len(request.server_ids), context.limits.request_items_max, "servers")
    for server_id in request.server_ids:
        if known.get(server_id, tag) != tag:
            raise error_from_code(
                ErrorCode.SEVER_TAG_NOT_EXIST_EXCEPTION,
                f"Server {server_id} does not have the tag {tag}, but {known[server_id]}.",
            )
    gone = known.keys() & set(request.server_ids)
    if gone:
        await context.server.settings.set_tags(dict.fromkeys(gone))
    return pb.RemoveServerTagResponse()


def _tag(tag: int) -> int:
    if tag not in _TAGS:
        raise InvalidRequestError(
            f"There is no server tag {tag}; use 0 (permanently offline) or 1 (temporarily offline).",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    return tag


_COMPLETED: Final = 3


def rebalance(context: ConnectionContext, request: pb.RebalanceRequest) -> pb.RebalanceResponse:
    check_count(len(request.goals), context.limits.request_items_max, "goals")
    context.server.rebalance_id = str(randomness.new_uuid())
    return pb.RebalanceResponse(rebalance_id=context.server.rebalance_id)


def list_rebalance_progress(
    context: ConnectionContext, request: pb.ListRebalanceProgressRequest
) -> pb.ListRebalanceProgressResponse:
    _check_rebalance(context, request)
    if context.server.rebalance_id is None:
        return pb.ListRebalanceProgressResponse()
    return pb.ListRebalanceProgressResponse(rebalance_id=context.server.rebalance_id, rebalance_status=_COMPLETED)


def cancel_rebalance(context: ConnectionContext, request: pb.CancelRebalanceRequest) -> pb.CancelRebalanceResponse:
    _check_rebalance(context, request)  # it is done already
    return pb.CancelRebalanceResponse()


def _check_rebalance(
    context: ConnectionContext, request: pb.ListRebalanceProgressRequest | pb.CancelRebalanceRequest
) -> None:
    last = context.server.rebalance_id
    if request.HasField("rebalance_id") and last is not None and request.rebalance_id != last:
        raise error_from_code(
            ErrorCode.NO_REBALANCE_IN_PROGRESS_EXCEPTION,
            f"The last rebalance is {last}, not {request.rebalance_id[:100]!r}.",
        )


_GREEN: Final = 0


def get_cluster_health(context: ConnectionContext, _: pb.GetClusterHealthRequest) -> pb.GetClusterHealthResponse:
    count = context.storage.catalog.buckets_in_use
    return pb.GetClusterHealthResponse(
        num_replicas=count,
        in_sync_replicas=count,
        num_leader_replicas=count,
        active_leader_replicas=count,
        status=_GREEN,
        is_leader=True,
        leader_elected=True,
    )


# ---- offsets of producers

_CREATED, _THERE_ALREADY = 0, 1
TTL_MS: Final = 24 * 60 * 60 * 1_000
TTL_MS_MAX: Final = 7 * TTL_MS


async def register_producer_offsets(
    context: ConnectionContext, request: pb.RegisterProducerOffsetsRequest
) -> pb.RegisterProducerOffsetsResponse:
    _check_producer(request.producer_id)
    count = sum(len(table.bucket_offsets) for table in request.table_offsets)
    check_count(count, context.limits.request_items_max, "offsets")
    ttl_ms = request.ttl_ms if request.HasField("ttl_ms") else TTL_MS
    if not 0 < ttl_ms <= TTL_MS_MAX:
        raise InvalidRequestError(
            f"Offsets of a producer are kept for 1 to {TTL_MS_MAX} ms (7 days), not {ttl_ms}.",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    offsets = {
        TableBucket(table.table_id, item.bucket_id, item.partition_id if item.HasField("partition_id") else None): (
            item.log_end_offset
        )
        for table in request.table_offsets
        for item in table.bucket_offsets
        if item.HasField("log_end_offset")
    }
    clock = context.storage.clock
    entry = ProducerEntry(request.producer_id, clock.now_ms() + ttl_ms, offsets)
    is_new = await context.storage.catalog.register_producer(entry, clock.expiry_ms())
    return pb.RegisterProducerOffsetsResponse(result=_CREATED if is_new else _THERE_ALREADY)


def get_producer_offsets(
    context: ConnectionContext, request: pb.GetProducerOffsetsRequest
) -> pb.GetProducerOffsetsResponse:
    _check_producer(request.producer_id)
    entry = context.storage.catalog.producer(request.producer_id)
    if entry is None or entry.is_expired(context.storage.clock.expiry_ms()):
        return pb.GetProducerOffsetsResponse()
    response = pb.GetProducerOffsetsResponse(producer_id=entry.producer_id, expiration_time=entry.expires_ms)
    tables: dict[int, pb.PbProducerTableOffsets] = {}
    for bucket, offset in entry.offsets.items():
        if bucket.table_id not in tables:
            tables[bucket.table_id] = response.table_offsets.add(table_id=bucket.table_id)
        tables[bucket.table_id].bucket_offsets.add(
            partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, log_end_offset=offset
        )
    return response


async def delete_producer_offsets(
    context: ConnectionContext, request: pb.DeleteProducerOffsetsRequest
) -> pb.DeleteProducerOffsetsResponse:
    _check_producer(request.producer_id)
    await context.storage.catalog.delete_producer(request.producer_id)
    return pb.DeleteProducerOffsetsResponse()


def _check_producer(producer_id: str) -> None:
    problem = name_problem(producer_id)
    if problem is not None:
        raise InvalidRequestError(
            f"Invalid producer id {producer_id[:60]!r}: {problem}.", ErrorCode.INVALID_PRODUCER_ID_EXCEPTION
        )
