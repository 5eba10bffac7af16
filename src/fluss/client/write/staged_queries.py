"""What a Flussbett server knows of queries with staged writes, and what an operator tells it about them."""

from __future__ import annotations

from fluss.client.cluster.ask import ask, ask_once
from fluss.client.cluster.cluster import Cluster
from fluss.client.write.staged import staging_connection
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.paths import TablePath
from fluss.model.staging import StagedQueryInfo
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb

_OPTIONAL = StagedQueryInfo._fields[1:]


async def list_staged(cluster: Cluster) -> list[StagedQueryInfo]:
    """All queries of all tables."""
    await _check_known(cluster)
    response = await ask(cluster, api_keys.LIST_STAGED, pb.ListStagedRequest())
    return [_info(query) for query in response.queries]


async def accept_staged(cluster: Cluster, table_id: int, query_id: str, batch_id: int) -> None:
    """Let repeated batches up to this one be done, whatever rows they have."""
    await _check_known(cluster)
    request = pb.AcceptStagedRequest(table_id=table_id, query_id=query_id, batch_id=batch_id)
    await ask(cluster, api_keys.ACCEPT_STAGED, request)


async def reset_staged(cluster: Cluster, table_id: int, query_id: str, batch_id: int | None, *, gives_up: bool) -> None:
    """Let the server forget a query, or take this batch for the last one committed."""
    await _check_known(cluster)
    request = pb.ResetStagedRequest(table_id=table_id, query_id=query_id, batch_id=batch_id, gives_up=gives_up)
    await ask_once(cluster, api_keys.RESET_STAGED, request)


async def _check_known(cluster: Cluster) -> None:
    cluster.check_usable()
    connection = await staging_connection(cluster)
    if api_keys.LIST_STAGED.key not in connection.versions:
        text = f"The server at {connection.address} is too old for 'fluss staged': upgrade it."
        raise InvalidRequestError(text, ErrorCode.UNSUPPORTED_VERSION)


def _info(query: pb.PbStagedQuery) -> StagedQueryInfo:
    values = (getattr(query, name) if query.HasField(name) else None for name in _OPTIONAL)
    return StagedQueryInfo._make((TablePath(query.database_name, query.table_name), *values))
