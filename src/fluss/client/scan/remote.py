"""Files of a cluster's remote storage, read in ranges through pyarrow's file systems."""

from __future__ import annotations

import asyncio
import builtins
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from fluss.client.cluster.ask import ask_once
from fluss.client.cluster.cluster import Cluster
from fluss.doors import clock, threads
from fluss.model.clock import wall_clock_ms
from fluss.model.errors import ErrorCode, FlussError, TimeoutError
from fluss.model.forms.type_json import parse_json
from fluss.model.trust import S3_SCHEMES, Trust, UntrustedError, check_kind, is_inside, is_local, local_path_of
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
        """Without the user's word, a folder on this machine has to be one of this table, as servers name them."""
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
