"""The cluster as one client reaches it: settings, connections, and what is known of servers and tables."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable

from fluss.client import runtime
from fluss.client.cluster.metadata import Metadata
from fluss.client.cluster.retry import Absence, NotReadyError, Tries, is_retriable, repeat
from fluss.client.net.connection import Connection
from fluss.client.net.embedded import EMBEDDED_HOST, embedded_server
from fluss.client.net.login import Credentials
from fluss.client.net.own_loop import OwnLoopConnections
from fluss.client.net.pool import ConnectionPool
from fluss.model.addresses import EMBEDDED_USER, parse_bootstrap
from fluss.model.config import Config
from fluss.model.errors import ErrorCode, FlussError, TimeoutError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath


class Cluster:
    """Shared by all readers and writers of a client, who keep its connections open. Coroutines are for the I/O loop."""

    def __init__(self, config: Config) -> None:
        self.config = config.copy()
        self.request_timeout_s: float = config.request_timeout_ms / 1000
        self._pid = runtime.process_id
        self.closed = False
        self.pool = ConnectionPool(config.connect_timeout_ms / 1000, Credentials.of(config))
        embedded = embedded_server(config.bootstrap_servers)
        bootstrap = [] if embedded is not None else parse_bootstrap(config.bootstrap_servers)
        self.metadata = Metadata(self.pool, bootstrap, self.request_timeout_s, Absence.of(config), embedded)
        self.own_loops = OwnLoopConnections(config.connect_timeout_ms / 1000, self.pool)

    async def connect(self) -> None:
        """Connect to the first server of the bootstrap list that answers."""
        try:
            await self.metadata.refresh()
        except BaseException:
            self.pool.close()
            raise
        # Sockets belong to the loop: without this a client that is forgotten, not closed, would keep them open.
        weakref.finalize(self, _close_forgotten, self.pool, runtime.process_id).atexit = False

    def reachable_config(self) -> Config:
        """The settings with which other processes reach the same server; they never start one."""
        config = self.config.copy()
        endpoint = self.metadata.endpoint
        if endpoint is not None:
            config.bootstrap_servers = f"{EMBEDDED_HOST}:{endpoint.port}"
            config.security_protocol = "sasl"
            config.security_sasl_username, config.security_sasl_password = EMBEDDED_USER, endpoint.secret
        return config

    def check_process(self) -> None:
        """Raise in another process than the one that connected."""
        runtime.check_process(self._pid, "connection")

    def check_usable(self) -> None:
        """Raise when the client is closed or belongs to another process."""
        runtime.check_process(self._pid, "connection")
        if self.closed:
            raise FlussError("The connection is closed; open a new one.")

    def tries(
        self, may_pass: Callable[[FlussError], bool], renew: Callable[[], Awaitable[None]] | None = None
    ) -> Tries:
        """Tries of a call, each within the request's time limit, all of them within what an absent server may take."""
        return Tries(self.request_timeout_s, may_pass, renew, self.metadata.absence_s)

    async def ready_table(self, path: TablePath) -> TableInfo:
        """A table whose buckets all have leaders. They appear a moment after a table's creation."""
        self.check_usable()

        async def attempt(_: Tries) -> TableInfo:
            await self.metadata.refresh(path)
            view = self.metadata.table(path)
            if view is None:
                raise NotReadyError(TimeoutError(f"Table {path} was not ready within {self.request_timeout_s:g} s."))
            # The buckets of a partitioned table are those of its partitions.
            leaderless = [] if view.info.is_partitioned() else view.without_leader()
            if leaderless:
                text = f"Buckets {leaderless[:10]} of table {path} have no leader after {self.request_timeout_s:g} s; "
                text += "are the cluster's tablet servers up?"
                raise NotReadyError(TimeoutError(text, ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION))
            return view.info

        return await repeat(self.tries(is_retriable), attempt)

    async def coordinator(self) -> Connection:
        """A connection to the coordinator, for those who have to see what it knows."""
        return await self.metadata.coordinator(self.request_timeout_s)

    @property
    def is_foreign(self) -> bool:
        """Whether there is nothing to close: a forked child has nothing of its parent's, an ended process nothing."""
        return self._pid != runtime.process_id or runtime.has_ended()

    def close(self) -> None:
        """Close all connections. On the I/O loop."""
        self.own_loops.close()
        self.metadata.close()
        self.pool.close()


def _close_forgotten(pool: ConnectionPool, made_in: int) -> None:
    if made_in == runtime.process_id:
        runtime.call_soon(pool.close)
