"""The server: a data directory, a listening socket, and the connections made to it."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from typing import TYPE_CHECKING, Final, Literal, cast

from fluss.doors import sockets
from fluss.model.errors import ConnectError, ErrorCode, FlussError
from fluss.model.trust import Address
from fluss.server.config import ServerConfig
from fluss.server.net.connection import LINGER_S, ServerConnection
from fluss.server.net.context import ServerContext
from fluss.server.net.limits import sweep, sweep_interval_s
from fluss.server.net.logins import Authenticator, Logins
from fluss.storage.catalog.catalog import CatalogLimits
from fluss.storage.log.retention import Retention
from fluss.storage.store import Storage, StorageOptions

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from fluss.server.metrics_page import MetricsPage

_log = logging.getLogger(__name__)
LOOPBACK: Final = ("localhost", "127.", "::1")

BACKLOG: Final = 1_024
_STOP_POLL_S: Final = 0.01


class Server:
    """`await start()`, then it serves until `await stop()`; both on one event loop.

    With an `authenticator` (by default the users file of the config, if it names one) every client has to log in.
    """

    def __init__(self, config: ServerConfig, authenticator: Authenticator | None = None) -> None:
        self._config = config
        self._authenticator = authenticator
        self._context: ServerContext | None = None
        self._listener: asyncio.Server | None = None
        self._connections: dict[ServerConnection, None] = {}  # in their order
        # By address, the oldest first: those that were not logged in when they were last looked at.
        self._strangers: dict[str, dict[ServerConnection, None]] = {}
        self._connections_max = config.limits.connections_max
        self._refused: dict[ServerConnection, None] = {}
        self._peers: dict[ServerConnection, str] = {}
        self._per_peer: Counter[str] = Counter()
        self._address: Address | None = None
        self._background: list[asyncio.Task[None]] = []
        self._metrics_page: MetricsPage | None = None

    @property
    def address(self) -> Address:
        """The address at which the server listens."""
        if self._address is None:
            raise RuntimeError("the server was not started")
        return self._address

    @property
    def connection_count(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    @property
    def context(self) -> ServerContext:
        """What its connections share."""
        if self._context is None:
            raise RuntimeError("the server was not started")
        return self._context

    async def start(self) -> None:
        """Open the data directory and listen; requests are answered when this returns."""
        loop = asyncio.get_running_loop()
        durability = cast(Literal["fsync", "os"], self._config.durability)
        authenticator = self._authenticator
        if authenticator is None and self._config.sasl_users is not None:
            # Loaded with OpenSSL's digests, for servers that have users.
            from fluss.server.net.users import PasswordFile

            authenticator = PasswordFile(self._config.sasl_users)
        options = StorageOptions(
            self._config.data_dir,
            durability,
            self._config.segment_size_bytes,
            disk_free_bytes_min=self._config.disk_free_bytes_min,
            catalog_limits=_catalog_limits(self._config),
            kv_memory_bytes=self._config.kv_memory_bytes,
            open_stores_max=self._config.kv_open_stores_max,
            staging_expire_ms=self._config.staging_expire_ms,
            staging_bytes_max=self._config.staging_bytes_max,
            clock_settle_ms=self._config.clock_settle_ms,
        )
        storage = await Storage.open(options)
        try:
            self._context = context = ServerContext(self._config, storage, loop)
            if authenticator is not None:
                context.logins = Logins(authenticator, self._config.limits)
            if self._config.metrics_port is not None:
                await self._start_metrics(self._config.metrics_host, self._config.metrics_port)
            self._connections_max = _connections_max(self._config.limits.connections_max)
            listening = _bind(self._config.host, self._config.port)
            self._address = Address(*listening.getsockname()[:2])
            self._listener = await sockets.listen(lambda: ServerConnection(context, self), listening, BACKLOG)
        except BaseException:
            if self._metrics_page is not None:
                self._metrics_page.stop()
            await storage.close()
            raise
        context.auto_partitioner.start()
        snapshots = context.kv_snapshots
        retention = Retention(storage, size_bytes=context.config.retention_size_bytes, kv_snapshots=snapshots)
        context.settings.on_change.append(lambda config: retention.set_size_bytes(config.retention_size_bytes))
        self._background.append(loop.create_task(retention.run(self._config.retention_interval_ms)))
        self._background.append(loop.create_task(snapshots.run(self._config.kv_snapshot_interval_ms)))
        self._background.append(loop.create_task(storage.staging.run()))
        self._background.append(loop.create_task(context.scrub()))
        interval_s = sweep_interval_s(self._config.limits)
        self._background.append(loop.create_task(sweep(lambda: self._connections, context.turns, interval_s)))
        if authenticator is None and not self._config.host.startswith(LOOPBACK):
            _log.warning(
                "nobody needs to log in, and others can reach %s: they may read, change and drop all tables; name "
                "users with --sasl-users, or listen on 127.0.0.1",
                self._address,
            )
        _log.info("serving %s on %s, durability %s", self._config.data_dir, self._address, durability)

    async def stop(self) -> None:
        """Take no more requests, give those under way a bounded time, make everything durable."""
        if self._context is None or self._listener is None:
            return
        _log.info("stopping with %d connections", len(self._connections))
        self._listener.close()
        for connection in list(self._connections):
            connection.stop()
        deadline = self._context.loop.time() + self._config.limits.stop_wait_ms_max / 1_000
        while self._context.loop.time() < deadline and not all(connection.idle for connection in self._connections):
            await asyncio.sleep(_STOP_POLL_S)
        for connection in [*self._connections, *self._refused]:
            connection.close()
        while self._context.loop.time() < deadline and self._connections:
            await asyncio.sleep(_STOP_POLL_S)
        for connection in [*self._connections, *self._refused]:
            connection.abort()
        await self._context.auto_partitioner.stop()
        if self._metrics_page is not None:
            self._metrics_page.stop()
        await self._context.backups.close()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._context.storage.close()

    @property
    def metrics_port(self) -> int | None:
        """The port of the metrics, or None."""
        return self._metrics_page.port if self._metrics_page is not None else None

    async def _start_metrics(self, host: str, port: int) -> None:
        from fluss.server.metrics_page import MetricsPage, snapshot

        def take_snapshot() -> list[Metric]:
            waiting = sum(connection.fetches_waiting for connection in self._connections)
            return snapshot(self.context, len(self._connections), waiting)

        self._metrics_page = MetricsPage(take_snapshot)
        await self._metrics_page.start(host, port)

    # --- called by connections

    def admit(self, connection: ServerConnection, peer: str) -> FlussError | None:
        """None when the connection may stay; otherwise why not, to be told to the client's first request."""
        limits = self._config.limits
        if self._per_peer[peer] >= limits.connections_per_address_max and not self._end_stranger(peer):
            return self._refuse(connection, f"{peer} has {limits.connections_per_address_max} connections")
        if len(self._connections) >= self._connections_max and not self._end_stranger(None):
            return self._refuse(connection, f"it has {self._connections_max} connections")
        self._connections[connection] = None
        if self.context.logins is not None:
            self._strangers.setdefault(peer, {})[connection] = None
        self._peers[connection] = peer
        self._per_peer[peer] += 1
        return None

    def _end_stranger(self, peer: str | None) -> bool:
        """Make room by ending the oldest connection, of this address or of any, whose client has not logged in."""
        while self._strangers:
            address = next(iter(self._strangers)) if peer is None else peer
            connection = next(iter(self._strangers.get(address, ())), None)
            if connection is None:
                break
            self._know(connection, address)
            if connection.is_stranger:
                self.forget(connection)
                connection.abort()
                return True
        return False

    def _know(self, connection: ServerConnection, address: str) -> None:
        strangers = self._strangers.get(address, {})
        strangers.pop(connection, None)
        if not strangers:
            self._strangers.pop(address, None)

    def forget(self, connection: ServerConnection) -> None:
        """The connection is closed."""
        self._refused.pop(connection, None)
        self._connections.pop(connection, None)
        peer = self._peers.pop(connection, None)
        if peer is not None:
            self._know(connection, peer)
            self._per_peer[peer] -= 1
            if not self._per_peer[peer]:
                del self._per_peer[peer]

    def _refuse(self, connection: ServerConnection, reason: str) -> FlussError:
        _log.warning("%s: connection refused, %s", connection.peer, reason)
        self.context.metrics.refused_connections += 1
        if len(self._refused) >= self._config.limits.refusals_waiting_max:
            connection.abort()
        else:
            self._refused[connection] = None
            self.context.loop.call_later(LINGER_S, connection.close)
        return ConnectError(
            f"The server takes no more connections: {reason}, which is its limit. Close some, or raise the limit in "
            "its fluss.toml."
        )


def _connections_max(wanted: int) -> int:
    """The most connections, fewer than files: logs and stores need a part of them, or writes would wait."""
    try:
        import resource
    except ImportError:
        return wanted
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    affordable = max(1, files - files // 4)
    if files == resource.RLIM_INFINITY or wanted <= affordable:
        return wanted
    _log.warning(
        "this process may have %d open files, so it takes %d connections instead of %d; raise 'ulimit -n'",
        files,
        affordable,
        wanted,
    )
    return affordable


def _catalog_limits(config: ServerConfig) -> CatalogLimits:
    return CatalogLimits(
        config.max_bucket_num,
        config.max_partition_num,
        buckets_per_table_max=config.limits.buckets_per_table_max,
        definition_bytes_per_table_max=config.limits.definition_bytes_per_table_max,
        definition_bytes_total_max=config.limits.definition_bytes_total_max,
    )


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket, or an error that says what to do."""
    try:
        return sockets.bind(host, port)
    except (OSError, UnicodeError) as error:
        code = getattr(error, "errno", None)
        if code == errno.EADDRINUSE:
            hint = "another program uses it; choose another port with --port, or 0 for a free one"
        elif code == errno.EACCES:
            hint = "not permitted; choose a port above 1023 with --port"
        else:
            hint = f"{error}; choose an address of this machine with --host"
        raise FlussError(f"Can't listen on {host}:{port}: {hint}.", ErrorCode.NETWORK_EXCEPTION) from None
