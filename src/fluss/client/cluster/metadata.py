"""The cluster as the client sees it: servers, tables, leaders; asked again when an answer shows that it is stale."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from fluss.client.cluster.retry import Absence, Tries, repeat
from fluss.client.net.connection import Connection, ConnectionPool, Credentials, login_missing
from fluss.client.net.embedded import EMBEDDED_HOST, EmbeddedServer
from fluss.doors import randomness
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import (
    AuthenticationError,
    ConnectError,
    ErrorCode,
    FlussError,
    NotFoundError,
    TimeoutError,
)
from fluss.model.infos import PartitionInfo, ServerNode, ServerType, TableInfo
from fluss.model.partitions import SEPARATOR, PartitionSpec
from fluss.model.paths import TablePath
from fluss.model.trust import EMBEDDED_USER, Address, Endpoint
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api, Req, Resp


@dataclass(slots=True)
class ClusterView:
    """The cluster's servers."""

    coordinator: ServerNode | None = None
    tablets: dict[int, ServerNode] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: pb.MetadataResponse) -> ClusterView:
        coordinator = None
        if answer.HasField("coordinator_server"):
            coordinator = _node(answer.coordinator_server, ServerType.COORDINATOR_SERVER)
        return cls(coordinator, {node.node_id: _node(node, ServerType.TABLET_SERVER) for node in answer.tablet_servers})

    def nodes(self) -> list[ServerNode]:
        """All servers, the coordinator first."""
        return ([self.coordinator] if self.coordinator else []) + list(self.tablets.values())


@dataclass(slots=True)
class TableView:
    """A table and the leaders of its buckets, by (partition id or None, bucket)."""

    info: TableInfo
    leaders: dict[tuple[int | None, int], int]
    partitions: dict[str, int] = field(default_factory=dict)
    """Ids by name, of the partitions that were asked for."""
    bucket_counts: dict[int, int] = field(default_factory=dict)
    """By partition id, where a server names them."""

    def bucket_count(self, partition_id: int | None) -> int:
        """How many buckets the table, or this partition of it, has."""
        count = self.info.num_buckets
        return count if partition_id is None else self.bucket_counts.get(partition_id, count)

    def without_leader(self, partition_id: int | None = None) -> list[int]:
        """Buckets that have no leader yet."""
        count = self.bucket_count(partition_id)
        return [bucket for bucket in range(count) if (partition_id, bucket) not in self.leaders]


def routing_problem(info: TableInfo, bucket_count: int | None) -> FlussError | None:
    """What is wrong with a partition that has so many buckets: rows and keys are placed as the table says."""
    if bucket_count in (None, info.num_buckets):
        return None
    return FlussError(
        f"A partition of table {info.table_path} has {bucket_count} buckets and not {info.num_buckets} like the table: "
        "this client can't read or write all of such a table, because it would look for rows in wrong buckets. Get the "
        "table again if its bucket count was changed; otherwise use a client that knows partitions of several sizes.",
        ErrorCode.INVALID_BUCKET_ROUTING,
    )


def table_view(answer: pb.MetadataResponse, path: TablePath) -> TableView | None:
    """The part of an answer about one table, or None."""
    for item in answer.table_metadata:
        if (item.table_path.database_name, item.table_path.table_name) == (path.database_name, path.table_name):
            break
    else:
        return None
    info = table_info(path, item)
    leaders = _leaders(None, item.bucket_metadata)
    view = TableView(info, leaders)
    for partition in answer.partition_metadata:
        if partition.table_id == item.table_id:
            view.partitions[partition.partition_name] = partition.partition_id
            leaders |= _leaders(partition.partition_id, partition.bucket_metadata)
            if partition.HasField("bucket_count_actual"):
                view.bucket_counts[partition.partition_id] = partition.bucket_count_actual
    return view


def table_info(path: TablePath, item: pb.PbTableMetadata | pb.GetTableInfoResponse) -> TableInfo:
    """A table's info from either message that carries it."""
    descriptor = TableDescriptor.from_json(item.table_json, foreign_properties=True)
    return TableInfo(
        table_path=path,
        table_id=item.table_id,
        schema_id=item.schema_id,
        descriptor=descriptor,
        num_buckets=descriptor.bucket_count or 1,
        created_time=item.created_time,
        modified_time=item.modified_time,
    )


def partition_info(item: pb.PbPartitionInfo) -> PartitionInfo:
    """A partition; its values come in the order of the table's partition columns."""
    values = {pair.key: pair.value for pair in item.partition_spec.partition_key_values}
    count = item.bucket_count_actual if item.HasField("bucket_count_actual") else None
    return PartitionInfo(item.partition_id, SEPARATOR.join(values.values()), PartitionSpec(values), count)


def set_spec(target: pb.PbPartitionSpec, spec: PartitionSpec) -> None:
    """Write a partition's values into a message; a spec without values is one, too."""
    target.SetInParent()
    for key, value in spec.get_spec_map().items():
        target.partition_key_values.add(key=key, value=value)


def set_path(target: pb.PbTablePath, path: TablePath) -> None:
    """Write a table's path into a message."""
    target.database_name, target.table_name = path.database_name, path.table_name


def address_of(node: ServerNode) -> Address:
    """The address at which a server listens."""
    return Address(node.host, node.port)


def _leaders(partition_id: int | None, buckets: Iterable[pb.PbBucketMetadata]) -> dict[tuple[int | None, int], int]:
    return {(partition_id, item.bucket_id): item.leader_id for item in buckets if item.HasField("leader_id")}


def _node(node: pb.PbServerNode, server_type: ServerType) -> ServerNode:
    return ServerNode(node.node_id, node.host, node.port, server_type)


# One server that does not answer must not use up the time of the others.
ONE_SERVER_S_MAX = 5.0
# The first finds a stale endpoint file, the second one that leaves, the third starts a server.
EMBEDDED_TRIES = 4


class Watched:
    """Partitions of a table that are asked for with it: by name (writers) and by id (scanners)."""

    __slots__ = ("gone_ids", "ids", "names")

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.ids: set[int] = set()
        self.gone_ids: set[int] = set()

    def keep(self, existing: Iterable[PartitionInfo]) -> Collection[str]:
        """Forget those that do not exist; returns the names of those that do."""
        found = {partition.partition_id: partition.partition_name for partition in existing}
        self.gone_ids |= self.ids - found.keys()
        self.ids &= found.keys()
        existing_names = set(found.values())
        self.names &= existing_names
        return existing_names


class Metadata:
    """Shared by everything of one client. All methods run on the I/O loop."""

    def __init__(
        self,
        pool: ConnectionPool,
        bootstrap: list[Address],
        request_timeout_s: float,
        absence: Absence,
        embedded: EmbeddedServer | None = None,
    ) -> None:
        """With `embedded` the bootstrap list is empty: where that server is, is found out when it is first asked."""
        self._pool = pool
        self._bootstrap = bootstrap
        self._absence = absence
        self._embedded = embedded
        self.endpoint: Endpoint | None = None
        self._timeout_s = request_timeout_s
        self._tables: dict[TablePath, TableView] = {}
        self._watched: dict[TablePath, Watched] = {}
        self._refreshing: dict[TablePath | None, asyncio.Task[None]] = {}
        self.cluster = ClusterView()
        self.on_gone: Callable[[TablePath, Collection[str]], None] = _ignore
        """Told of tables that are gone, and of tables that have no partitions any more but those named."""
        self._closed = False

    @property
    def absence_s(self) -> float:
        """How much longer something may take because its server is away."""
        return self._absence.limit_s

    def table(self, path: TablePath) -> TableView | None:
        """What is known of a table, without asking."""
        return self._tables.get(path)

    def leader(self, path: TablePath, partition_id: int | None, bucket: int) -> ServerNode | None:
        """The server that leads a bucket, as far as known."""
        view = self._tables.get(path)
        leader_id = None if view is None else view.leaders.get((partition_id, bucket))
        return None if leader_id is None else self.cluster.tablets.get(leader_id)

    def partition_id(self, path: TablePath, name: str) -> int | None:
        """The id of a partition, as far as known."""
        view = self._tables.get(path)
        return None if view is None else view.partitions.get(name)

    def routing_problem(self, info: TableInfo, partition_id: int | None) -> FlussError | None:
        """What is wrong with placing rows and keys in a partition as `info` says; None: nothing, as far as known."""
        view = self._tables.get(info.table_path)
        if view is None or partition_id is None:
            return None
        return routing_problem(info, view.bucket_counts.get(partition_id))

    def is_gone(self, path: TablePath, partition_id: int) -> bool:
        """Whether a watched partition was found to be dropped."""
        watched = self._watched.get(path)
        return watched is not None and partition_id in watched.gone_ids

    def watch_partitions(self, path: TablePath, partition_ids: Iterable[int]) -> None:
        """Ask for these partitions, too, whenever the table is asked for."""
        self._watched.setdefault(path, Watched()).ids.update(partition_ids)

    async def find_partitions(self, path: TablePath, names: Collection[str]) -> dict[str, int]:
        """The ids of those of these partitions that exist; they are asked for with the table from now on."""
        self._watched.setdefault(path, Watched()).names.update(names)
        running = self._refreshing.get(path)
        if running is not None:
            await asyncio.wait([running])  # its request may have been made without these names
        await self.refresh(path)
        view = self._tables.get(path)
        return {} if view is None else {name: view.partitions[name] for name in names if name in view.partitions}

    def tables_of(self, database: str) -> list[TableView]:
        """What is known of the tables of a database, without asking."""
        return [view for path, view in self._tables.items() if path.database_name == database]

    def dropped(self, tables: Iterable[TableView]) -> None:
        """Forget tables that were dropped; another one of the same name may be known by now, and stays."""
        for table in tables:
            view = self._tables.get(table.info.table_path)
            if view is not None and view.info.table_id == table.info.table_id:
                self._forget(table.info.table_path)

    async def refresh(self, path: TablePath | None = None) -> None:
        """Ask the cluster about its servers and one table. Callers that come meanwhile share the answer."""
        if self._closed:
            raise FlussError("The client is closed.")
        running = self._refreshing.get(path)
        if running is None:
            running = asyncio.ensure_future(self._refresh(path))
            self._refreshing[path] = running
            running.add_done_callback(lambda task: self._refreshed(path, task))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            if self._closed and running.cancelled():
                raise FlussError("The client was closed.") from None
            raise

    async def try_refresh(self, path: TablePath) -> None:
        """Refresh, but let failures pass that may be over next time, for callers that come again anyway."""
        try:
            await self.refresh(path)
        except FlussError as error:
            if not error.is_retriable:
                raise

    def close(self) -> None:
        """Ask no more: an embedded server would be started for nobody."""
        self._closed = True
        for refreshing in list(self._refreshing.values()):
            refreshing.cancel()

    def _refreshed(self, path: TablePath | None, task: asyncio.Task[None]) -> None:
        self._refreshing.pop(path, None)
        if not task.cancelled():
            task.exception()

    async def _refresh(self, path: TablePath | None) -> None:
        try:
            answer = await self._ask_any(pb.MetadataRequest()) if path is None else await self._ask_table(path)
        except FlussError as error:
            if path is not None and isinstance(error, NotFoundError):
                self._forget(path)
            raise await self._explained(path, error) from error
        self.cluster = ClusterView.of(answer)
        if path is None:
            return
        view = table_view(answer, path)
        if view is None:
            self._forget(path)
            raise _no_table(path)
        known = self._tables.get(path)
        self._tables[path] = view
        if known is not None and known.info.table_id != view.info.table_id:
            self.on_gone(path, ())

    def _forget(self, path: TablePath) -> None:
        self._tables.pop(path, None)
        self._watched.pop(path, None)
        self.on_gone(path, ())

    async def _ask_table(self, path: TablePath) -> pb.MetadataResponse:
        """Ask for a table and its watched partitions; for one that was dropped a server refuses the whole question."""
        for _ in range(2):
            request = pb.MetadataRequest()
            set_path(request.table_path.add(), path)
            watched = self._watched.get(path)
            if watched is not None:
                request.partitions_id.extend(sorted(watched.ids))
                for name in sorted(watched.names):
                    item = request.partitions_path.add(partition_name=name)
                    item.database_name, item.table_name = path.database_name, path.table_name
            try:
                return await self._ask_any(request)
            except NotFoundError as error:
                if error.error_code != ErrorCode.PARTITION_NOT_EXISTS or watched is None:
                    raise
            self.on_gone(path, watched.keep(await self.list_partitions(path, self._timeout_s)))
        raise FlussError(
            f"A partition of table {path} is not known to all servers yet.", ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION
        )

    async def list_partitions(
        self, path: TablePath, timeout_s: float, spec: PartitionSpec | None = None
    ) -> list[PartitionInfo]:
        """The partitions of a table, or those with the values given."""
        request = pb.ListPartitionInfosRequest()
        set_path(request.table_path, path)
        if spec is not None:
            set_spec(request.partial_partition_spec, spec)
        answer = await self.ask_coordinator(api_keys.LIST_PARTITION_INFOS, request, timeout_s)
        return list(map(partition_info, answer.partitions_info))

    async def _explained(self, path: TablePath | None, error: FlussError) -> FlussError:
        """A real 0.9.1 server says "unknown error" for a missing table; GetTableInfo says what it is."""
        if path is None or error.error_code != ErrorCode.UNKNOWN_SERVER_ERROR:
            return error
        request = pb.GetTableInfoRequest()
        set_path(request.table_path, path)
        try:
            await self.ask_coordinator(api_keys.GET_TABLE_INFO, request, self._timeout_s)
        except NotFoundError:
            self._forget(path)
            return _no_table(path)
        except FlussError:
            return error
        # It exists: the server that was asked has not heard of it yet.
        return FlussError(error.message, ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION)

    async def _ask_any(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        if self._embedded is None:
            return await self._absence.outlast(lambda: self._ask_known(request))
        for tries_left in reversed(range(EMBEDDED_TRIES)):
            try:
                return await self._ask_known(request)
            except (ConnectError, AuthenticationError):
                if not tries_left:
                    raise
                self.endpoint = await self._embedded.find(self.endpoint)
                self._bootstrap = [Address(EMBEDDED_HOST, self.endpoint.port)]
                self._pool.credentials = Credentials(EMBEDDED_USER, self.endpoint.secret)
                self.cluster = ClusterView()
        raise AssertionError("unreachable")

    async def _ask_known(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        problems: list[FlussError] = []
        for address in self._candidates():
            try:
                connection = await self._pool.get(address, timeout_s=min(self._timeout_s, ONE_SERVER_S_MAX))
                limit_s = min(self._timeout_s, ONE_SERVER_S_MAX)
                return await connection.request(api_keys.METADATA, request, limit_s)
            except (ConnectError, TimeoutError) as error:
                problems.append(error)
            except AuthenticationError as error:
                # The first request after connecting is this one: it shows that a login is missing.
                raise (error if self._pool.credentials is not None else login_missing(address)) from error
        raise no_server(self._bootstrap, problems)

    def _candidates(self) -> list[Address]:
        """Servers to ask, connected ones first, the bootstrap list last: it is right when all else has moved."""
        known = [address_of(node) for node in self.cluster.tablets.values()]
        randomness.chance.shuffle(known)
        if self.cluster.coordinator is not None:
            known.append(address_of(self.cluster.coordinator))
        known.sort(key=lambda address: self._pool.ready(address) is None)
        return list(dict.fromkeys(known + self._bootstrap))

    async def coordinator(self, timeout_s: float) -> Connection:
        """A connection to the coordinator. Connecting is tried until the limit; nothing was sent yet."""

        async def attempt(tries: Tries) -> Connection:
            if self.cluster.coordinator is None:
                await self.refresh()
            node = self.cluster.coordinator
            if node is None:
                raise ConnectError("The cluster has no coordinator at the moment; try again later.")
            return await self._pool.get(address_of(node), ServerType.COORDINATOR_SERVER, tries.wait_s)

        async def forget() -> None:
            self.cluster.coordinator = None

        return await repeat(Tries(timeout_s, _lacks_coordinator, forget, self.absence_s), attempt)

    async def ask_coordinator(self, api: Api[Req, Resp], request: Req, timeout_s: float) -> Resp:
        """Ask the coordinator, once."""
        connection = await self.coordinator(timeout_s)
        return await connection.request(api, request, timeout_s)

    async def tablet(self, node: ServerNode, timeout_s: float | None = None) -> Connection:
        """A connection to a tablet server."""
        return await self._pool.get(address_of(node), ServerType.TABLET_SERVER, timeout_s)

    def ready(self, node: ServerNode) -> Connection | None:
        """The connection to a server if it is open."""
        return self._pool.ready(address_of(node))


def no_server(bootstrap: list[Address], problems: list[FlussError]) -> ConnectError:
    """The error when no server answered: what was tried, and what to do."""
    details = "; ".join(dict.fromkeys(problem.message.rstrip(".") for problem in problems)) or "no address to try"
    addresses = ", ".join(map(str, bootstrap))
    return ConnectError(
        f"No Fluss server answers at {addresses} ({details}). "
        "Check bootstrap.servers, and that a server runs there: `fluss server` starts one."
    )


def _ignore(path: TablePath, partitions: Collection[str]) -> None:
    """Nobody has to be told."""


def _no_table(path: TablePath) -> NotFoundError:
    return NotFoundError(f"Table {path} does not exist.", ErrorCode.TABLE_NOT_EXIST)


def _lacks_coordinator(error: FlussError) -> bool:
    return isinstance(error, ConnectError) and error.is_retriable
