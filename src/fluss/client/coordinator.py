"""Requests to the coordinator."""

from __future__ import annotations

from fluss.client.answers import STALE_METADATA_CODES
from fluss.client.cluster import Cluster
from fluss.client.retry import Backoff
from fluss.model.errors import FlussError
from fluss.protocol.api_keys import Api, Req, Resp


async def ask(cluster: Cluster, api: Api[Req, Resp], request: Req) -> Resp:
    """Repeated while the error says that it may help."""
    cluster.check_usable()
    backoff = Backoff(cluster.request_timeout_s * 1000)
    while True:
        try:
            connection = await cluster.metadata.coordinator(max(backoff.remaining_s, 0.001))
            return await connection.request(api, request, max(backoff.remaining_s, 0.001))
        except FlussError as error:
            if error.error_code not in STALE_METADATA_CODES or not await backoff.pause():
                raise


async def ask_once(cluster: Cluster, api: Api[Req, Resp], request: Req) -> Resp:
    """Not repeated: after a lost connection nobody knows whether it was done."""
    cluster.check_usable()
    connection = await cluster.metadata.coordinator(cluster.request_timeout_s)
    return await connection.request(api, request, cluster.request_timeout_s)
