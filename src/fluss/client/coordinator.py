"""Requests to the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss.client.answers import STALE_METADATA_CODES
from fluss.client.retry import Backoff
from fluss.model.errors import FlussError
from fluss.protocol.api_keys import Api, Req, Resp

if TYPE_CHECKING:
    from fluss.client.core import ClientCore


async def ask(client: ClientCore, api: Api[Req, Resp], request: Req) -> Resp:
    """Repeated while the error says that it may help."""
    client.check_usable()
    backoff = Backoff(client.request_timeout_s * 1000)
    while True:
        try:
            connection = await client.metadata.coordinator(max(backoff.remaining_s, 0.001))
            return await connection.request(api, request, max(backoff.remaining_s, 0.001))
        except FlussError as error:
            if error.error_code not in STALE_METADATA_CODES or not await backoff.pause():
                raise


async def ask_once(client: ClientCore, api: Api[Req, Resp], request: Req) -> Resp:
    """Not repeated: after a lost connection nobody knows whether it was done."""
    client.check_usable()
    connection = await client.metadata.coordinator(client.request_timeout_s)
    return await connection.request(api, request, client.request_timeout_s)
