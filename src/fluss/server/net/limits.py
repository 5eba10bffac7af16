"""A limit on everything a client can make the server hold or do; units come last in the names.

Each can be set in the `[limits]` table of fluss.toml, by its name here. The first worry is memory: one connection, and
all of them together, cost a bounded amount however slowly they read or fast they write.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.protocol.frames import FRAME_SIZE_BYTES_MAX
from fluss.storage.catalog.catalog import (
    BUCKETS_PER_TABLE_MAX,
    DEFINITION_BYTES_PER_TABLE_MAX,
    DEFINITION_BYTES_TOTAL_MAX,
)

_KIB = 1 << 10
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server."""

    # One request. Only ProduceLog and PutKv carry data, so everything else has to be small.
    frame_bytes_max: int = FRAME_SIZE_BYTES_MAX
    control_request_bytes_max: int = 2 * _MIB
    batch_bytes_max: int = 64 * _MIB
    request_items_max: int = 10_000  # buckets or tables named in one request
    request_wait_ms_max: int = 60_000  # after this an unanswered request is answered with REQUEST_TIME_OUT

    # Connections. A client makes up to three per server.
    connections_max: int = 10_000
    connections_per_address_max: int = 4_000
    connection_idle_ms_max: int = 600_000  # without a request, and with none waiting; as Apache Fluss
    login_wait_ms_max: int = 30_000  # from connecting to a right login, where one is needed
    refusals_waiting_max: int = 64  # refused connections kept until their first request, to answer it with the reason

    # Tables: what their definitions, and answers about them, may cost.
    buckets_per_table_max: int = BUCKETS_PER_TABLE_MAX  # or of each partition; larger tables that there are still work
    definition_bytes_per_table_max: int = DEFINITION_BYTES_PER_TABLE_MAX  # descriptor and all schemas
    definition_bytes_total_max: int = DEFINITION_BYTES_TOTAL_MAX
    metadata_bytes_max: int = 16 * _MIB  # of one answer

    # Requests received and not answered yet: above the limit the connection is not read.
    request_bytes_per_connection_max: int = 8 * _MIB
    requests_per_connection_max: int = 1_024
    request_bytes_total_max: int = 256 * _MIB
    # A frame that does not arrive loses its connection. The time that the server itself does not read does not count.
    small_frame_wait_ms_max: int = 30_000  # up to 64 KiB
    frame_wait_ms_max: int = 120_000
    frame_stall_ms_max: int = 10_000  # in each such time a large frame has to come at this rate
    frame_stall_crowded_ms_max: int = 2_000  # the same while others wait for the memory that it holds
    frame_bytes_per_second_min: int = 16 * _KIB

    # Responses not taken by the client yet: above the limit the connection's requests wait.
    response_bytes_per_connection_max: int = 1 * _MIB
    response_bytes_total_max: int = 256 * _MIB

    # Logins.
    frame_bytes_before_login_max: int = 64 * _KIB
    failed_logins_max: int = 10_000  # pairs of user and address whose wrong logins are remembered

    # Fetches.
    fetch_bytes_max: int = 16 * _MIB
    fetch_wait_ms_max: int = 60_000
    fetches_waiting_per_connection_max: int = 256

    # Other reads: rows of one answer.
    limit_scan_bytes_max: int = 64 * _MIB
    limit_scan_rows_max: int = 1_000_000  # of a primary-key table
    lookup_keys_max: int = 100_000
    lookup_bytes_max: int = 64 * _MIB
    scan_kv_bytes_max: int = 8 * _MIB
    scan_kv_rows_max: int = 100_000
    reads_running_per_connection_max: int = 8  # lookups; the next requests wait for more

    lake_buckets_max: int = 100_000  # whose offsets one request prepares for a lake snapshot

    # Scans of primary-key tables: each keeps old rows alive.
    scanners_total_max: int = 200
    scanners_per_connection_max: int = 64
    scanner_idle_ms_max: int = 600_000

    # Stopping: running requests get this long.
    stop_wait_ms_max: int = 5_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise _bad(f"limits.{field.name} must be a positive integer, not {value!r}")
        if self.frame_bytes_max > FRAME_SIZE_BYTES_MAX:
            raise _bad(f"limits.frame_bytes_max must be at most {FRAME_SIZE_BYTES_MAX}, not {self.frame_bytes_max}")
        if self.request_bytes_total_max < self.frame_bytes_max:
            raise _bad("limits.request_bytes_total_max must not be less than limits.frame_bytes_max")


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(f"{text}.", ErrorCode.INVALID_CONFIG_EXCEPTION)
