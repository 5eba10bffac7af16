"""Log segments that a cluster has moved to its remote storage, read in ranges through pyarrow's file systems.

Several ranges are read ahead of the reader and in parallel, and cut into batches as they come: there are no temporary
files, and what is in memory is bounded. Segments have all columns, whatever the scan asked for.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from fluss.client.cluster.cluster import Cluster, ask_once
from fluss.client.scan.batches import Cursor, RawBatch
from fluss.doors import clock, threads
from fluss.formats.batches.log_batch import HEADER_SIZE_BYTES_MAX, parse_header, walk
from fluss.model.clock import wall_clock_ms
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError, TimeoutError
from fluss.model.trust import S3_SCHEMES, Trust, UntrustedError, check_kind, is_inside, is_local, local_path_of
from fluss.model.types import parse_json
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb

T = TypeVar("T")

# A token is asked for anew when this part of its life is over.
TOKEN_RENEWAL_RATIO = 0.8
TOKEN_LIFE_S_MAX = 3600.0

_S3_SCHEMES = (*S3_SCHEMES, "oss")
# What stands between the place of all remote files, or a data directory, and those of one table.
_LAYOUT = re.compile(r"/((log|kv)/[^/]+/[^/]+-|tables/)\d+(/.*)?$")
_ODD_NAME = re.compile(r"[\x00-\x1f\x7f#?\\]")


class _Access(NamedTuple):
    filesystem: pafs.FileSystem
    valid_until: float


class RemoteFiles:
    """Opens and reads files in its own threads, in folders that were checked. Coroutines are for the I/O loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._trust = Trust.of(cluster.config)
        self._directories: set[str] = set()
        self._threads = threads.pool(cluster.config.remote_file_download_thread_num, "fluss-remote")
        self._accesses: dict[tuple[str, str], _Access] = {}

    async def check_directory(self, directory: str, table_id: int) -> None:
        """Let files of a folder be opened; raises when this client may not, or when this machine lacks it."""
        if directory in self._directories:
            return
        if is_local(directory) and not await self._in_thread(directory, os.path.isdir, local_path_of(directory)):
            raise FlussError(
                f"the cluster has moved these rows to {directory}, a directory that this machine lacks; mount it here, "
                "or give the cluster a remote.data.dir that both can reach"
            )
        if not await self._in_thread(directory, self._allows, directory, table_id):
            raise self._trust.untrusted("The server", [_LAYOUT.sub("", directory)])
        self._directories.add(directory)

    def _allows(self, directory: str, table_id: int) -> bool:
        """Whether a folder may be read: it is listed by the user, or one of this table, as servers name them."""
        if not is_local(directory):
            return self._trust.allows_bucket(directory)
        named = [*self._trust.places, *filter(None, [self._trust.directory])]
        is_of_table = any(part.rpartition("-")[2] == str(table_id) for part in directory.split("/"))
        return self._trust.allows_path(directory) and (is_of_table or is_inside(directory, named))

    async def open(self, uri: str) -> pa.NativeFile:
        """A file for reading at any position."""
        await self._in_thread(uri, self._check_file, uri)
        if is_local(uri):
            return await self._in_thread(uri, pafs.LocalFileSystem().open_input_file, local_path_of(uri))
        parts = urlsplit(uri)
        filesystem = await self._filesystem(parts.scheme, parts.netloc, uri)
        return await self._in_thread(uri, filesystem.open_input_file, parts.netloc + parts.path)

    def _check_file(self, uri: str) -> None:
        """Raise for what is not a file of a folder that was checked, links followed."""
        if not is_inside(uri, self._directories) or _ODD_NAME.search(uri.rpartition("/")[2]):
            raise UntrustedError(
                f"The server names {uri[:500]!r}, which leads out of the folder it lies in; not opened."
            )
        if is_local(uri):
            check_kind(local_path_of(uri))

    async def read(self, file: pa.NativeFile, uri: str, position: int, size_bytes: int) -> bytes:
        """A range of a file."""
        data: bytes = await self._in_thread(uri, file.read_at, size_bytes, position)
        if len(data) < size_bytes:
            raise _unreadable(uri, f"it ends at byte {position + len(data)}, {position + size_bytes} were announced")
        return data

    async def size_bytes(self, file: pa.NativeFile, uri: str) -> int:
        """The size of an open file."""
        return await self._in_thread(uri, file.size)

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, uri: str, function: Callable[..., T], *args: Any) -> T:
        timeout_s = self._cluster.request_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
        except builtins.TimeoutError:
            raise TimeoutError(f"The remote storage did not deliver {uri} within {timeout_s:g} s.") from None
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(uri, str(error) or repr(error)) from error

    async def _filesystem(self, scheme: str, authority: str, uri: str) -> pafs.FileSystem:
        access = self._accesses.get((scheme, authority))
        if access is None or access.valid_until < clock.monotonic():
            access = await self._access(uri)
            self._accesses[scheme, authority] = access
        return access.filesystem

    async def _access(self, uri: str) -> _Access:
        request = pb.GetFileSystemSecurityTokenRequest()
        token = await ask_once(self._cluster, api_keys.GET_FILE_SYSTEM_SECURITY_TOKEN, request)
        life_s = TOKEN_LIFE_S_MAX
        if token.HasField("expiration_time"):
            life_s = min(life_s, (token.expiration_time - wall_clock_ms()) / 1000)
        filesystem = await self._in_thread(uri, filesystem_of, uri, token, self._cluster.request_timeout_s, self._trust)
        return _Access(filesystem, clock.monotonic() + TOKEN_RENEWAL_RATIO * life_s)


def filesystem_of(
    uri: str, token: pb.GetFileSystemSecurityTokenResponse, timeout_s: float, trust: Trust
) -> pafs.FileSystem:
    """The file system that a URI belongs to, with the credentials that the cluster hands out."""
    scheme = urlsplit(uri).scheme
    if scheme in _S3_SCHEMES:
        return pafs.S3FileSystem(**s3_options(token, trust), connect_timeout=timeout_s, request_timeout=timeout_s)
    filesystem, _ = pafs.FileSystem.from_uri(uri)
    return filesystem


def s3_options(token: pb.GetFileSystemSecurityTokenResponse, trust: Trust) -> dict[str, Any]:
    """What `S3FileSystem` takes; nothing is set that the cluster did not say.

    An endpoint counts with credentials of the cluster's only: the user's own do not sign for one that it chooses.
    """
    info = {item.key: item.value for item in token.addition_info}
    options: dict[str, Any] = {
        "region": info.get("fs.s3a.endpoint.region") or info.get("fs.oss.region"),
        "force_virtual_addressing": "fs.oss.endpoint" in info or info.get("fs.s3a.path.style.access") == "false",
    }
    if token.token:
        credentials = parse_json(token.token)
        options["access_key"] = credentials["access_key_id"]
        options["secret_key"] = credentials["access_key_secret"]
        options["session_token"] = credentials.get("security_token")
        options |= _endpoint_options(info.get("fs.s3a.endpoint") or info.get("fs.oss.endpoint") or "", trust)
    return {name: value for name, value in options.items() if value}


def _endpoint_options(endpoint: str, trust: Trust) -> dict[str, str | None]:
    scheme, separator, address = endpoint.rpartition("://")
    if endpoint and not trust.allows_host(endpoint if separator else f"https://{endpoint}"):
        raise trust.untrusted("The server", [endpoint if separator else f"https://{endpoint}"])
    return {"scheme": scheme or None, "endpoint_override": address}


def _unreadable(uri: str, reason: str) -> FlussError:
    """A retriable error: the file may have been removed meanwhile, and the server knows where its rows are now."""
    return FlussError(
        f"can't read {uri} of the cluster's remote storage ({reason}); this machine must be able to reach it",
        ErrorCode.STORAGE_EXCEPTION,
    )


RANGE_BYTES = 4 << 20
# A UUID, and nothing that leads elsewhere.
_SEGMENT_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")


class _Range(NamedTuple):
    """A piece of a segment's file."""

    segment: int
    position: int
    size_bytes: int


class RemoteLog:
    """Reads remote segments for one scanner. Runs on the I/O loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._files = RemoteFiles(cluster)
        config = cluster.config
        self.segments_ahead_max: int = config.scanner_remote_log_prefetch_num
        self.ranges_per_segment_max: int = config.scanner_remote_log_read_concurrency
        self.buffer_bytes_max: int = config.scanner_log_fetch_max_bytes
        self._reads = 0

    @property
    def ahead_bytes_max(self) -> int:
        """What one bucket may read ahead: those that are read share the buffer."""
        return max(self.buffer_bytes_max // max(self._reads, 1), RANGE_BYTES)

    async def read(self, cursor: Cursor, info: pb.PbRemoteLogFetchInfo) -> AsyncGenerator[list[RawBatch]]:
        """The batches of the segments in `info` from the cursor's offset on, which moves behind them."""
        await self._files.check_directory(info.remote_log_tablet_dir, cursor.bucket.table_id)
        read = _SegmentsRead(self, self._files, cursor, info)
        self._reads += 1
        try:
            async for batches in read.run():
                yield batches
        finally:
            self._reads -= 1
            read.close()

    def close(self) -> None:
        """Stop reading."""
        self._files.close()


class _SegmentsRead:
    """One pass over the segments of an answer."""

    def __init__(self, limits: RemoteLog, files: RemoteFiles, cursor: Cursor, info: pb.PbRemoteLogFetchInfo) -> None:
        self._limits = limits
        self._files = files
        self._cursor = cursor
        self._segments = list(info.remote_log_segments)
        self._directory = info.remote_log_tablet_dir
        self._ranges = _ranges(self._segments, info.first_start_pos)
        self._held: _Range | None = None
        self._window: deque[tuple[_Range, asyncio.Task[bytes]]] = deque()
        self._opened: dict[int, asyncio.Task[pa.NativeFile]] = {}

    async def run(self) -> AsyncGenerator[list[RawBatch]]:
        """Batches in the order of their offsets, a few at a time."""
        rest = memoryview(b"")
        self._fill(0)
        while self._window and not self._cursor.fetched:
            part, reading = self._window[0]
            data = memoryview(await reading)
            self._window.popleft()
            self._fill(part.segment)
            if rest:
                data = memoryview(b"".join((rest, data)))
            batches, rest = self._cut(data, part)
            if batches:
                yield batches
        expected = self._segments[-1].remote_log_end_offset if self._segments else self._cursor.fetch_offset + 1
        if not self._cursor.fetched and self._cursor.fetch_offset < expected:
            raise CorruptDataError(f"the remote segments end before offset {expected}, which they should reach")

    def close(self) -> None:
        """Stop reads under way and let go of the files."""
        for _, reading in self._window:
            if not reading.cancel() and not reading.cancelled():
                reading.exception()  # looked at, so that nobody complains that it was not
        for segment in list(self._opened):
            self._close_file(segment)

    def _fill(self, current_segment: int) -> None:
        """Have as many ranges under way as the limits allow."""
        while (following := self._held or next(self._ranges, None)) is not None:
            self._held = following
            segments = [part.segment for part, _ in self._window]
            ahead_bytes = sum(part.size_bytes for part, _ in self._window)
            if self._window and (
                following.segment >= current_segment + self._limits.segments_ahead_max
                or segments.count(following.segment) >= self._limits.ranges_per_segment_max
                or ahead_bytes + following.size_bytes > self._limits.ahead_bytes_max
            ):
                return
            self._window.append((following, asyncio.ensure_future(self._read(following))))
            self._held = None

    async def _read(self, part: _Range) -> bytes:
        uri = self._uri(part.segment)
        if part.segment not in self._opened:
            self._opened[part.segment] = asyncio.ensure_future(self._files.open(uri))
        file = await asyncio.shield(self._opened[part.segment])
        return await self._files.read(file, uri, part.position, part.size_bytes)

    def _uri(self, segment: int) -> str:
        item = self._segments[segment]
        if not _SEGMENT_ID.fullmatch(item.remote_log_segment_id):
            raise CorruptDataError(f"{item.remote_log_segment_id[:100]!r} is not the id of a remote segment")
        name = f"{item.remote_log_segment_id}/{item.remote_log_start_offset:020d}.log"
        return f"{self._directory.rstrip('/')}/{name}"

    def _close_file(self, segment: int) -> None:
        opening = self._opened.pop(segment)
        if not opening.done():
            opening.cancel()
        elif not opening.cancelled() and opening.exception() is None:
            opening.result().close()

    def _cut(self, data: memoryview, part: _Range) -> tuple[list[RawBatch], memoryview]:
        """Whole batches of a piece, and the beginning of one that goes on in the next."""
        batches: list[RawBatch] = []
        cursor = self._cursor
        position = 0
        for position, header in walk(data):
            if header.next_offset > cursor.fetch_offset and not cursor.fetched:
                if header.base_offset > cursor.fetch_offset >= 0:
                    raise CorruptDataError(
                        f"{self._uri(part.segment)} has no offsets {cursor.fetch_offset} to {header.base_offset - 1}"
                    )
                batches.append(RawBatch(cursor, data, position, header, projected=False))
                cursor.fetch_offset = header.next_offset
            position += header.size_bytes
        rest = data[position:]
        left_bytes = self._segments[part.segment].segment_size_in_bytes - part.position - part.size_bytes
        if left_bytes == 0:
            self._close_file(part.segment)
        needed_bytes = parse_header(rest).size_bytes if len(rest) >= HEADER_SIZE_BYTES_MAX else len(rest)
        if rest and (left_bytes == 0 or needed_bytes > len(rest) + left_bytes):
            raise CorruptDataError(f"{self._uri(part.segment)} ends inside a batch")
        return batches, rest


def _ranges(segments: list[pb.PbRemoteLogSegment], first_position: int) -> Iterator[_Range]:
    for number, segment in enumerate(segments):
        size_bytes = segment.segment_size_in_bytes
        for position in range(0 if number else first_position, size_bytes, RANGE_BYTES):
            yield _Range(number, position, min(RANGE_BYTES, size_bytes - position))
