"""Reads buckets from given offsets up to given offsets, once, all leaders side by side."""

from __future__ import annotations

import asyncio
import time

from fluss.client.batch_reader import Part
from fluss.client.cursor import Cursor
from fluss.client.fetched import FetchedBatch
from fluss.client.fetcher import Fetcher
from fluss.client.metadata import Metadata
from fluss.client.retry import Backoff
from fluss.model.errors import FlussError, TimeoutError
from fluss.model.infos import ServerNode
from fluss.model.paths import TablePath


class BoundedRead:
    """One read. Ends with all rows, or with an error when nothing has come for `idle_timeout_s`."""

    def __init__(
        self, metadata: Metadata, path: TablePath, fetcher: Fetcher, cursors: list[Cursor], idle_timeout_s: float
    ) -> None:
        self._metadata = metadata
        self._path = path
        self._fetcher = fetcher
        self._cursors = cursors
        self._idle_timeout_s = idle_timeout_s
        self._progress_at = time.monotonic()
        self._batches: dict[Cursor, list[FetchedBatch]] = {cursor: [] for cursor in cursors}

    async def run(self) -> list[FetchedBatch]:
        """All rows, bucket by bucket."""
        backoff = Backoff(self._idle_timeout_s * 1000)
        while unfinished := [cursor for cursor in self._cursors if not cursor.finished]:
            before = self._progress_at
            await self._read(unfinished)
            for cursor in self._cursors:
                if cursor.error is not None:
                    raise await self._fetcher.explained(cursor, cursor.error)
            if self._progress_at != before:
                backoff = Backoff(self._idle_timeout_s * 1000)
            elif not await backoff.pause():
                trouble = next((cursor.trouble for cursor in unfinished if cursor.trouble is not None), None)
                raise trouble or TimeoutError(
                    f"Reading table {self._path} made no progress for {self._idle_timeout_s:g} s."
                )
            await self._look_again(unfinished)
        return [fetched for batches in self._batches.values() for fetched in batches]

    async def _look_again(self, cursors: list[Cursor]) -> None:
        if all(cursor.finished for cursor in cursors):
            return
        try:
            await self._metadata.refresh(self._path)
        except FlussError as error:
            if not error.is_retriable:
                raise

    async def _read(self, cursors: list[Cursor]) -> None:
        by_leader: dict[ServerNode, list[Cursor]] = {}
        for cursor in cursors:
            leader = self._metadata.leader(self._path, *cursor.key)
            if leader is not None:
                by_leader.setdefault(leader, []).append(cursor)
        readers = [asyncio.ensure_future(self._read_leader(*item)) for item in by_leader.items()]
        try:
            await asyncio.gather(*readers)
        finally:
            for reader in readers:
                reader.cancel()

    async def _read_leader(self, node: ServerNode, cursors: list[Cursor]) -> None:
        """Until the end or a failure; the next request is under way while the last answer is decoded."""
        decoding: asyncio.Task[None] | None = None
        try:
            while wanted := [cursor for cursor in cursors if not cursor.finished and cursor.error is None]:
                before = [cursor.fetch_offset for cursor in wanted]
                body = await (await self._fetcher.send(node, wanted, wait=False))
                parts, stale = self._fetcher.receive(body, node, wanted)
                if decoding is not None:
                    await decoding
                decoding = asyncio.ensure_future(self._decode(parts))
                if stale or before == [cursor.fetch_offset for cursor in wanted]:
                    break
                self._progress_at = time.monotonic()
        except FlussError as error:
            for cursor in cursors:
                if error.is_retriable:
                    cursor.in_trouble(error, time.monotonic())
                else:
                    cursor.error = error
        finally:
            if decoding is not None:
                await decoding

    async def _decode(self, parts: list[Part]) -> None:
        for part, fetched in await self._fetcher.decode(parts):
            if fetched is not None:
                self._batches[part.cursor].append(fetched)
