"""From a request frame to its handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.protocol import api_keys
from fluss.protocol.frames import Request
from fluss.protocol.protobuf import parse_request
from fluss.server.context import ConnectionContext, Handled, Handler
from fluss.server.handlers import (
    authenticate,
    backup,
    cluster,
    connection,
    databases,
    fetch,
    kv_snapshots,
    lake,
    lookup,
    offsets,
    partitions,
    produce,
    put_kv,
    scans,
    staging,
    stats,
    tables,
)

HANDLERS: Final[dict[int, Handler]] = {
    **authenticate.HANDLERS,
    **backup.HANDLERS,
    **cluster.HANDLERS,
    **connection.HANDLERS,
    **databases.HANDLERS,
    **tables.HANDLERS,
    **partitions.HANDLERS,
    **fetch.HANDLERS,
    **kv_snapshots.HANDLERS,
    **lake.HANDLERS,
    **offsets.HANDLERS,
    **scans.HANDLERS,
    **staging.HANDLERS,
    **stats.HANDLERS,
    api_keys.INIT_WRITER.key: produce.init_writer,
}
# These are told the version of the request, too.
VERSIONED: Final[dict[int, Callable[[ConnectionContext, Any, int], Handled]]] = {
    api_keys.LOOKUP.key: lookup.lookup,
    api_keys.PREFIX_LOOKUP.key: lookup.prefix_lookup,
}
# These parse the request themselves: its records stay where the socket put them.
WRITES: Final[dict[int, Callable[[ConnectionContext, memoryview, int], Handled]]] = {
    api_keys.PRODUCE_LOG.key: produce.produce_log,
    api_keys.PUT_KV.key: put_kv.put_kv,
    api_keys.STAGE_WRITE.key: staging.stage_write,
}

# Not done while the disk is nearly full; appends are checked by the logs.
_NEEDS_DISK: Final = frozenset({api_keys.CREATE_TABLE.key, api_keys.CREATE_PARTITION.key})


def dispatch(context: ConnectionContext, request: Request) -> Handled:
    """Begin a request: its answer, or what will give the answer."""
    api = api_keys.BY_KEY.get(request.api_key)
    if api is None:
        known = ", ".join(f"{api.name} ({api.key})" for api in api_keys.ALL if not api.is_own)
        raise FlussError(
            f"This server does not serve api key {request.api_key}; it serves {known}.", ErrorCode.UNSUPPORTED_VERSION
        )
    if not 0 <= request.api_version <= api.version_max:
        raise FlussError(
            f"This server serves {api.name} in versions 0 to {api.version_max}, not in version {request.api_version}.",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    context.server.metrics.requests[api.key] += 1
    if api.needs_login:
        authenticate.check_login(context, api.name)
    if (write := WRITES.get(api.key)) is not None:
        return write(context, request.body, request.api_version)
    if len(request.body) > context.limits.control_request_bytes_max:
        raise InvalidRequestError(
            f"A {api.name} request may have {context.limits.control_request_bytes_max} bytes, not {len(request.body)}.",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )
    if api.key in _NEEDS_DISK:
        context.storage.disk_guard.admit()
    message = parse_request(api, request.body)
    if (versioned := VERSIONED.get(api.key)) is not None:
        return versioned(context, message, request.api_version)
    return HANDLERS[api.key](context, message)
