"""The page with metrics as Prometheus text: a snapshot is taken on the loop and rendered in a thread."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from fluss.doors import sockets, threads
from fluss.model.errors import ErrorCode, FlussError
from fluss.protocol import api_keys
from fluss.server.net.context import Metrics, ServerContext
from fluss.storage.allocator import allocated_bytes
from fluss.storage.files import SYNC_BOUNDS_S
from fluss.storage.store import Storage

if TYPE_CHECKING:
    from fluss.storage.damage.scrub import Scrubber

_log = logging.getLogger(__name__)

REQUEST_BYTES_MAX: Final = 8 << 10
REQUEST_WAIT_S_MAX: Final = 5.0
CONNECTIONS_MAX: Final = 16
_PATH: Final = b"/metrics"
_UNKNOWN_API: Final = "unknown"
_CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


def snapshot(context: ServerContext, connections: int, fetches_waiting: int) -> list[Metric]:
    """The metrics of now; made on the loop."""
    metrics = context.metrics
    return [
        *_requests(metrics),
        _counter("fluss_received_bytes", "Bytes received from clients.", metrics.received_bytes),
        _counter("fluss_sent_bytes", "Bytes sent to clients.", metrics.sent_bytes),
        GaugeMetricFamily("fluss_connections", "Open connections.", connections),
        _counter("fluss_connections_refused", "Connections above a limit.", metrics.refused_connections),
        _counter("fluss_logins_refused", "Logins with a wrong user or password.", metrics.logins_refused),
        GaugeMetricFamily("fluss_fetches_waiting", "Fetches that wait for data.", fetches_waiting),
        _counter("fluss_put_batches", "Batches put into primary-key tables.", metrics.put_batches),
        _counter("fluss_put_bytes", "Bytes put into primary-key tables.", metrics.put_bytes),
        _counter("fluss_lookup_keys", "Keys and prefixes looked up.", metrics.lookup_keys),
        GaugeMetricFamily("fluss_kv_scanners", "Open scans of primary-key tables.", context.scanners.count),
        *_storage(context.storage),
        *_scrubber(context.scrubber),
    ]


def _requests(metrics: Metrics) -> Iterator[Metric]:
    requests = CounterMetricFamily("fluss_requests", "Requests by kind.", labels=["api"])
    for api in api_keys.ALL:
        requests.add_metric([api.name], metrics.requests[api.key])
    yield requests
    errors = CounterMetricFamily("fluss_request_errors", "Requests answered with an error.", labels=["api", "code"])
    for (key, code), count in sorted(metrics.errors.items()):
        name = api_keys.BY_KEY[key].name if key in api_keys.BY_KEY else _UNKNOWN_API
        errors.add_metric([name, str(code)], count)
    yield errors


def _storage(storage: Storage) -> Iterator[Metric]:
    stats, guard, catalog = storage.stats, storage.disk_guard, storage.catalog
    yield _counter("fluss_appended_batches", "Batches appended to logs.", stats.appended_batches)
    yield _counter("fluss_appended_rows", "Rows appended to logs.", stats.appended_rows)
    yield _counter("fluss_appended_bytes", "Bytes appended to logs.", stats.appended_bytes)
    yield _counter("fluss_removed_segments", "Segments removed by retention.", stats.removed_segments)
    yield _counter("fluss_sync_failures", "Failed syncs; each makes a bucket read-only.", stats.sync_failures)
    bounds = [*map(str, SYNC_BOUNDS_S), "+Inf"]
    buckets = list(zip(bounds, accumulate(stats.sync_counts), strict=True))
    yield HistogramMetricFamily("fluss_sync_seconds", "How long syncs take.", buckets, stats.sync_seconds)
    yield GaugeMetricFamily("fluss_open_logs", "Logs of buckets that are open.", storage.open_logs)
    yield GaugeMetricFamily("fluss_open_kv_stores", "Stores of primary-key tables that are open.", storage.open_stores)
    kv_memory = storage.kv_memory_bytes
    yield GaugeMetricFamily("fluss_kv_memory_bytes", "Memtables and cached blocks of all stores.", kv_memory)
    yield GaugeMetricFamily("fluss_tables", "Tables.", len(catalog.all_tables()))
    yield GaugeMetricFamily("fluss_partitions", "Partitions of all tables.", catalog.partition_count)
    yield GaugeMetricFamily("fluss_disk_free_bytes", "Free space where the data lies.", guard.free_bytes())
    yield GaugeMetricFamily("fluss_disk_low", "1 while writes are refused for lack of space.", int(guard.is_low))
    is_in_doubt = int(storage.clock.expiry_ms() is None)
    yield GaugeMetricFamily("fluss_clock_in_doubt", "1 while nothing is removed by its age.", is_in_doubt)
    yield _counter("fluss_writes_refused", "Writes refused for lack of space.", guard.refused)


def _scrubber(scrubber: Scrubber) -> Iterator[Metric]:
    report = scrubber.report
    yield _counter("fluss_scrub_bytes", "Bytes read to look for damage.", scrubber.read_bytes)
    yield GaugeMetricFamily("fluss_scrub_damaged_files", "Files found damaged.", scrubber.damaged_files)
    yield GaugeMetricFamily("fluss_scrub_pass_seconds", "How long the last pass took.", report.last_seconds)
    ended_s = report.last_ended_ms / 1_000
    yield GaugeMetricFamily("fluss_scrub_pass_end_timestamp_seconds", "When the last pass ended; 0: never.", ended_s)


def _memory() -> Iterator[Metric]:
    """What a curve of resident memory is made of. Not on the loop: both walk through the allocators' lists."""
    yield GaugeMetricFamily("fluss_allocated_bytes", "Allocated by the C library and not freed.", allocated_bytes())
    yield GaugeMetricFamily("fluss_python_blocks", "Blocks of memory of Python objects.", sys.getallocatedblocks())


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value)


class _Snapshot:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def render(families: list[Metric]) -> bytes:
    """Prometheus text of a snapshot and of this process; takes some milliseconds."""
    registry = CollectorRegistry()
    registry.register(_Snapshot([*families, *_memory()]))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class MetricsPage:
    """A small HTTP server for one page: bounded requests, bounded time, one answer per connection."""

    def __init__(self, take_snapshot: Callable[[], list[Metric]]) -> None:
        self._take_snapshot = take_snapshot
        self._server: asyncio.Server | None = None
        self._open = 0
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen."""
        try:
            self._server = await sockets.serve_streams(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            reason = error.strerror or error
            text = f"Can't listen for metrics on {host}:{port}: {reason}; choose another --metrics-port."
            raise FlussError(text, ErrorCode.NETWORK_EXCEPTION) from None
        self.port = self._server.sockets[0].getsockname()[1]
        _log.info("metrics on http://%s:%d%s", host, self.port, _PATH.decode())

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_WAIT_S_MAX):
                    writer.write(await self._answer(reader))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(b"431 Request Header Fields Too Large", b"")
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response(b"405 Method Not Allowed", b"")
        if path != _PATH:
            return _response(b"404 Not Found", b"see " + _PATH + b"\n")
        body = await threads.to_thread(render, self._take_snapshot())
        return _response(b"200 OK", body, with_body=method == b"GET")


def _response(status: bytes, body: bytes, *, with_body: bool = True) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (status, _CONTENT_TYPE, len(body)) + (body if with_body else b"")
