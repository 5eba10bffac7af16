"""Requests to the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss.client.answers import STALE_METADATA_CODES
from fluss.model.errors import FlussError
from fluss.protocol.api_keys import Api, Req, Resp

if TYPE_CHECKING:
    from fluss.client.core import ClientCore


async def ask(client: ClientCore, api: Api[Req, Resp], request: Req) -> Resp:
    """Repeated while the error says that it may help."""
    client.check_usable()
    timeout_s = client.request_timeout_s
    backoff = client.metadata.backoff(timeout_s)
    while True:
        try:
            connection = await client.metadata.coordinator(backoff.capped_s(timeout_s))
            return await connection.request(api, request, backoff.capped_s(timeout_s))
        except FlussError as error:
            if error.error_code not in STALE_METADATA_CODES or not await backoff.pause():
                raise


async def ask_once(client: ClientCore, api: Api[Req, Resp], request: Req) -> Resp:
    """Not repeated: after a lost connection nobody knows whether it was done."""
    client.check_usable()
    connection = await client.metadata.coordinator(client.request_timeout_s)
    return await connection.request(api, request, client.request_timeout_s)
