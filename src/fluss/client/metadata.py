"""The cluster as the client sees it: servers, tables, leaders; asked again when an answer shows that it is stale."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

from fluss.client.address import Address
from fluss.client.connection import Connection
from fluss.client.pool import ConnectionPool
from fluss.client.retry import Backoff
from fluss.client.views import ClusterView, TableView, address_of, table_view
from fluss.model.errors import ConnectError, ErrorCode, FlussError, NotFoundError, TimeoutError
from fluss.model.infos import ServerNode, ServerType
from fluss.model.paths import TablePath
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb

# One server that does not answer must not use up the time of the others.
ONE_SERVER_S_MAX = 5.0


class Metadata:
    """Shared by everything of one client. All methods run on the I/O loop."""

    def __init__(self, pool: ConnectionPool, bootstrap: list[Address], request_timeout_s: float) -> None:
        self._pool = pool
        self._bootstrap = bootstrap
        self._timeout_s = request_timeout_s
        self._tables: dict[TablePath, TableView] = {}
        self._partitions: dict[TablePath, set[int]] = {}
        self._refreshing: dict[TablePath | None, asyncio.Task[None]] = {}
        self.cluster = ClusterView()

    def table(self, path: TablePath) -> TableView | None:
        """What is known of a table, without asking."""
        return self._tables.get(path)

    def leader(self, path: TablePath, partition_id: int | None, bucket: int) -> ServerNode | None:
        """The server that leads a bucket, as far as known."""
        view = self._tables.get(path)
        leader_id = None if view is None else view.leaders.get((partition_id, bucket))
        return None if leader_id is None else self.cluster.tablets.get(leader_id)

    def watch_partitions(self, path: TablePath, partition_ids: Iterable[int]) -> None:
        """Ask for these partitions, too, whenever the table is asked for."""
        self._partitions.setdefault(path, set()).update(partition_ids)

    async def refresh(self, path: TablePath | None = None) -> None:
        """Ask the cluster about its servers and one table. Callers that come meanwhile share the answer."""
        running = self._refreshing.get(path)
        if running is None:
            running = asyncio.ensure_future(self._refresh(path))
            self._refreshing[path] = running
            running.add_done_callback(lambda task: self._refreshed(path, task))
        await asyncio.shield(running)

    def _refreshed(self, path: TablePath | None, task: asyncio.Task[None]) -> None:
        self._refreshing.pop(path, None)
        if not task.cancelled():
            task.exception()

    async def _refresh(self, path: TablePath | None) -> None:
        request = pb.MetadataRequest()
        if path is not None:
            request.table_path.add(database_name=path.database_name, table_name=path.table_name)
            request.partitions_id.extend(sorted(self._partitions.get(path, ())))
        try:
            answer = await self._ask_any(request)
        except FlussError as error:
            if path is not None and isinstance(error, NotFoundError):
                self._tables.pop(path, None)
            raise await self._explained(path, error) from error
        self.cluster = ClusterView.of(answer)
        if path is None:
            return
        view = table_view(answer, path)
        if view is None:
            self._tables.pop(path, None)
            raise _no_table(path)
        self._tables[path] = view

    async def _explained(self, path: TablePath | None, error: FlussError) -> FlussError:
        """A real 0.9.1 server says "unknown error" for a missing table; GetTableInfo says what it is."""
        if path is None or error.error_code != ErrorCode.UNKNOWN_SERVER_ERROR:
            return error
        request = pb.GetTableInfoRequest()
        request.table_path.database_name = path.database_name
        request.table_path.table_name = path.table_name
        try:
            await (await self.coordinator(self._timeout_s)).request(api_keys.GET_TABLE_INFO, request, self._timeout_s)
        except NotFoundError:
            self._tables.pop(path, None)
            return _no_table(path)
        except FlussError:
            return error
        # It exists: the server that was asked has not heard of it yet.
        return FlussError(error.message, ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION)

    async def _ask_any(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        problems: list[FlussError] = []
        for address in self._candidates():
            try:
                connection = await self._pool.get(address, timeout_s=min(self._timeout_s, ONE_SERVER_S_MAX))
                limit_s = min(self._timeout_s, ONE_SERVER_S_MAX)
                return await connection.request(api_keys.METADATA, request, limit_s)
            except (ConnectError, TimeoutError) as error:
                problems.append(error)
        raise no_server(self._bootstrap, problems)

    def _candidates(self) -> list[Address]:
        """Servers to ask, connected ones first, the bootstrap list last: it is right when all else has moved."""
        known = [address_of(node) for node in self.cluster.tablets.values()]
        random.shuffle(known)
        if self.cluster.coordinator is not None:
            known.append(address_of(self.cluster.coordinator))
        known.sort(key=lambda address: self._pool.ready(address) is None)
        return list(dict.fromkeys(known + self._bootstrap))

    async def coordinator(self, timeout_s: float) -> Connection:
        """A connection to the coordinator. Connecting is tried until the limit; nothing was sent yet."""
        backoff = Backoff(timeout_s * 1000)
        while True:
            try:
                if self.cluster.coordinator is None:
                    await self.refresh()
                node = self.cluster.coordinator
                if node is None:
                    raise ConnectError("The cluster has no coordinator at the moment; try again later.")
                limit_s = max(backoff.remaining_s, 0.001)
                return await self._pool.get(address_of(node), ServerType.COORDINATOR_SERVER, limit_s)
            except ConnectError:
                if not await backoff.pause():
                    raise
            self.cluster.coordinator = None

    async def tablet(self, node: ServerNode, timeout_s: float | None = None) -> Connection:
        """A connection to a tablet server."""
        return await self._pool.get(address_of(node), ServerType.TABLET_SERVER, timeout_s)

    def ready(self, node: ServerNode) -> Connection | None:
        """The connection to a server if it is open."""
        return self._pool.ready(address_of(node))


def no_server(bootstrap: list[Address], problems: list[FlussError]) -> ConnectError:
    """Nothing answered: say what was tried and what to do."""
    details = "; ".join(dict.fromkeys(problem.message for problem in problems)) or "no address to try"
    addresses = ", ".join(map(str, bootstrap))
    return ConnectError(
        f"No Fluss server answers at {addresses} ({details}) "
        "Check bootstrap.servers, and that a server runs there: `fluss server` starts one."
    )


def _no_table(path: TablePath) -> NotFoundError:
    return NotFoundError(f"Table {path} does not exist.", ErrorCode.TABLE_NOT_EXIST)
