"""TCP connections: logging in, frames out and answers in, matched by request id; and a pool of them.

Answers may come in any order. A caller that stops waiting leaves the connection usable: its late answer is dropped. Any
doubt about the byte stream ends the connection, and everything that waits on it fails.
"""

from __future__ import annotations

import asyncio
import builtins
import math
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata as package_metadata
from typing import NamedTuple, Protocol, TypeAlias, cast

from fluss.client import runtime
from fluss.client.cluster.retry import Tries, repeat
from fluss.doors import sockets, threads
from fluss.formats import kernel
from fluss.model.config import Config
from fluss.model.errors import (
    AuthenticationError,
    ConnectError,
    CorruptDataError,
    ErrorCode,
    FlussError,
    InvalidRequestError,
    TimeoutError,
    error_from_code,
)
from fluss.model.infos import ServerType
from fluss.model.trust import Address
from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api, Req, Resp
from fluss.protocol.fetches import records_position
from fluss.protocol.protobuf import Part, parse_answer


class Handshaken(Protocol):
    """A connection that can be logged in on."""

    @property
    def address(self) -> Address: ...
    async def request(self, api: Api[Req, Resp], message: Req, timeout_s: float) -> Resp: ...


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client logs in with. The password is not part of its text."""

    username: str
    password: str = field(repr=False)
    mechanism: str = "PLAIN"

    @classmethod
    def of(cls, config: Config) -> Credentials | None:
        """The credentials of a configuration; None when it does not ask for a login."""
        if config.security_protocol.lower() != "sasl":
            return None
        for option in (Config.security_sasl_username, Config.security_sasl_password):
            value = getattr(config, option.name)
            if not value or "\0" in value:
                raise InvalidRequestError(
                    f"security.protocol=sasl needs {option.key}, and no zero character in it.",
                    ErrorCode.INVALID_CONFIG_EXCEPTION,
                )
        return cls(config.security_sasl_username, config.security_sasl_password, config.security_sasl_mechanism)

    def token(self) -> bytes:
        """The one message of PLAIN; the empty part before the first zero byte means "act as this user"."""
        return b"\0" + self.username.encode() + b"\0" + self.password.encode()


async def log_in(connection: Handshaken, credentials: Credentials, timeout_s: float) -> None:
    """Log in, again and again while the server says that it can't check just now."""
    request = pb.AuthenticateRequest(protocol=credentials.mechanism, token=credentials.token())
    answer: FlussError | None = None

    async def attempt(tries: Tries) -> None:
        nonlocal answer
        try:
            # A real server answers with an empty challenge: PLAIN has nothing to say to it, the login is done.
            await connection.request(api_keys.AUTHENTICATE, request, tries.wait_s)
        except FlussError as error:
            # The last attempt may have had no time for an answer: what the server said before is the better reason.
            answer = answer if answer is not None and isinstance(error, TimeoutError) else error
            raise

    try:
        await repeat(Tries(timeout_s, _can_not_check), attempt)
    except FlussError as error:
        raise _refused(connection, credentials, answer or error) from error


def _can_not_check(error: FlussError) -> bool:
    return error.error_code == ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION


def _refused(connection: Handshaken, credentials: Credentials, error: FlussError) -> FlussError:
    if _can_not_check(error):
        return AuthenticationError(
            f"The server at {connection.address} can't check the login of user {credentials.username!r} just now: "
            f"{error.message.rstrip('.')}. Try again later.",
            error.error_code,
        )
    if error.error_code not in (ErrorCode.AUTHENTICATE_EXCEPTION, ErrorCode.UNSUPPORTED_VERSION):
        return error
    return AuthenticationError(
        f"The server at {connection.address} refused the login of user {credentials.username!r}: "
        f"{error.message.rstrip('.')}. Check security.sasl.username and security.sasl.password; "
        "security.protocol=PLAINTEXT is for a server without logins.",
        ErrorCode.AUTHENTICATE_EXCEPTION,
    )


def login_missing(address: object) -> AuthenticationError:
    """The server wants a login and none was configured."""
    return AuthenticationError(
        f"The server at {address} wants a login: set security.protocol=sasl, security.sasl.username and "
        "security.sasl.password.",
        ErrorCode.AUTHENTICATE_EXCEPTION,
    )


ERROR_TEXT_LENGTH_MAX = 1_000

# After these a new look at the metadata may help: the leader moved, is not elected yet, or its server is gone.
STALE_METADATA_CODES = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
    }
)


def server_error(error_code: int, message: str) -> FlussError:
    """The error of an answer. A Java server may send a stack trace: its first line says what happened."""
    lines = message.strip().splitlines()
    return error_from_code(error_code, lines[0][:ERROR_TEXT_LENGTH_MAX] if lines else "")


def parse_error(body: Part, sender: object) -> FlussError:
    """The error in the body of an error frame."""
    answer = parse_answer(pb.ErrorResponse, body, sender)
    return server_error(answer.error_code, answer.error_message)


LOGIN_SHARE = 0.9
WRONG_PORT = "Is that the port of a Fluss server?"
PENDING_REQUESTS_MAX = 10_000
ARROW_ALIGNMENT_BYTES = 8
EXPIRY_S_MIN = 0.001
"""What is due within this time is due: clocks of event loops tick in milliseconds."""
_REQUEST_ID_MASK = 0x7FFFFFFF
# SO_LINGER on, for no time: closing resets the connection and drops what the system has not sent yet.
_NO_LINGER = struct.pack("ii", 1, 0)

BytesLike: TypeAlias = bytes | bytearray | memoryview
_SERVER_TYPES = {1: ServerType.COORDINATOR_SERVER, 2: ServerType.TABLET_SERVER}


def client_version() -> str:
    """The version of this package, as servers are told it."""
    try:
        return package_metadata.version("flussbett")
    except package_metadata.PackageNotFoundError:
        return "0"


Answered: TypeAlias = Callable[[memoryview | FlussError], None]
"""Told the body of an answer, or why there is none; once, and it does not raise."""


class _Pending(NamedTuple):
    """A request without an answer yet."""

    api: str
    answered: Answered
    timeout_s: float
    deadline: float


class Connection(asyncio.BufferedProtocol):
    """A connection to one server, after its handshake."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.closed = False
        self.versions: dict[int, tuple[int, int]] = {}
        self.loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._socket_fd = -1
        self._reader = frames.FrameReader(
            padding=self._padding, growth_size_bytes=frames.FRAME_SIZE_BYTES_MAX, allocate=kernel.unset_bytes
        )
        self._pending: dict[int, _Pending] = {}
        self._timer: asyncio.Handle | None = None
        self._timer_at = math.inf
        self._next_id = 0
        self._cutting = threads.lock()

    @classmethod
    async def open(
        cls,
        address: Address,
        timeout_s: float,
        role: ServerType | None = None,
        credentials: Credentials | None = None,
    ) -> Connection:
        """Connect, shake hands and log in; `role` is what the server must be, where it says what it is."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        problem = f"No connection to {address} within {timeout_s:g} s."
        try:
            async with asyncio.timeout(timeout_s):
                connection = await sockets.connect(lambda: cls(address), address.host, address.port)
                problem = f"{address} takes connections but said nothing within {timeout_s:g} s. {WRONG_PORT}"
                try:
                    await connection._shake_hands(timeout_s, role)
                    if credentials is not None:
                        problem = f"{address} did not answer the login within {timeout_s:g} s."
                        # Before the limit: its last answer says more than that time is over.
                        await log_in(connection, credentials, LOGIN_SHARE * (deadline - loop.time()))
                except BaseException:
                    connection.close()
                    raise
        except FlussError:
            raise
        except builtins.TimeoutError:
            raise TimeoutError(problem) from None
        except OSError as error:
            raise ConnectError(f"Can't connect to {address}: {error.strerror or error}.") from error
        return connection

    async def _shake_hands(self, timeout_s: float, role: ServerType | None) -> None:
        hello = pb.ApiVersionsRequest(
            client_software_name=api_keys.CLIENT_NAME, client_software_version=client_version()
        )
        self.versions = {api_keys.API_VERSIONS.key: (0, 0)}
        try:
            answer = await self.request(api_keys.API_VERSIONS, hello, timeout_s)
        except (ConnectError, TimeoutError, CorruptDataError) as error:
            raise ConnectError(
                f"{self.address} did not shake hands: {error.message.rstrip('.')}. {WRONG_PORT}"
            ) from error
        self.versions = {item.api_key: (item.min_version, item.max_version) for item in answer.api_versions}
        actual = _SERVER_TYPES.get(answer.server_type)
        if role is not None and actual is not None and actual is not role:
            raise ConnectError(f"The server at {self.address} is a {actual}, a {role} was expected there.")

    async def request(self, api: Api[Req, Resp], message: Req, timeout_s: float) -> Resp:
        """Send a message and wait for its answer."""
        body = await self.send(api, (message.SerializeToString(),), timeout_s)
        return parse_answer(api.response, body, self.address)

    def send(self, api: Api[Req, Resp], parts: Sequence[BytesLike], timeout_s: float) -> asyncio.Future[memoryview]:
        """Send a body made of `parts`; the future has the answer's body. Sent in the order of the calls."""
        future: asyncio.Future[memoryview] = self.loop.create_future()

        def answered(answer: memoryview | FlussError) -> None:
            if future.done():
                return
            if not isinstance(answer, FlussError):
                future.set_result(answer)
                return
            future.set_exception(answer)
            future.exception()  # a caller that was cancelled meanwhile is no cause for a warning

        request_id = self.submit(api, parts, timeout_s, answered)
        future.add_done_callback(lambda _: self._pending.pop(request_id, None))
        return future

    def submit(self, api: Api[Req, Resp], parts: Sequence[BytesLike], timeout_s: float, answered: Answered) -> int:
        """Send a body made of `parts`; `answered` is called as soon as the answer is read, before anything else runs.

        That is a turn of the loop earlier than with `send`. Returns the id of the request.
        """
        version = self._version(api)
        if self.closed or self._transport is None:
            raise ConnectError(f"The connection to {self.address} is closed.")
        if len(self._pending) >= PENDING_REQUESTS_MAX:
            raise FlussError(f"{PENDING_REQUESTS_MAX} requests to {self.address} are waiting for answers already.")
        request_id = self._take_id()
        deadline = self.loop.time() + timeout_s
        self._pending[request_id] = _Pending(api.name, answered, timeout_s, deadline)
        if deadline < self._timer_at:
            self._expire_at(deadline)
        size_bytes = sum(map(len, parts))
        self._transport.writelines([frames.request_header(api.key, version, request_id, size_bytes), *parts])
        return request_id

    def _version(self, api: Api[Req, Resp]) -> int:
        low, high = self.versions.get(api.key, (0, -1))
        version = min(api.version_max, high)
        if version < low or high < 0:
            raise FlussError(
                f"The server at {self.address} does not support {api.name} ({api.key}).", ErrorCode.UNSUPPORTED_VERSION
            )
        return version

    def _take_id(self) -> int:
        while self._next_id in self._pending:
            self._next_id = (self._next_id + 1) & _REQUEST_ID_MASK
        request_id = self._next_id
        self._next_id = (request_id + 1) & _REQUEST_ID_MASK
        return request_id

    def _expire_at(self, deadline: float) -> None:
        """One timer for all requests: setting and cancelling one for each takes as long as sending it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self.loop.call_at(deadline, self._expire), deadline

    def _expire(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = self.loop.time() + EXPIRY_S_MIN
        for request_id, waiting in list(self._pending.items()):
            if waiting.deadline <= now and self._pending.pop(request_id, None) is not None:
                text = f"{self.address} did not answer {waiting.api} within {waiting.timeout_s:g} s."
                waiting.answered(TimeoutError(text))
        if self._pending:  # whoever was told may have set the timer, for what was sent then
            self._expire_at(min(waiting.deadline for waiting in self._pending.values()))

    def close(self) -> None:
        """End the connection; what waits for an answer fails."""
        self._fail(ConnectError(f"The connection to {self.address} was closed."))

    def cut(self) -> None:
        """Let nothing more leave this connection, buffers included; from any thread, also when its loop stands still.

        Its loop notices as of a connection that was lost.
        """
        with self._cutting:  # the number stays ours until `_fail` is through
            if self.closed or self._socket_fd < 0:
                return
            with sockets.duplicate(self._socket_fd) as same:
                try:
                    same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                    same.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the other side was faster

    def _fail(self, error: FlussError) -> None:
        if not self.closed:
            with self._cutting:
                self.closed = True
            runtime.forget_socket(self._socket_fd)
        if self._transport is not None:
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, math.inf
        pending, self._pending = self._pending, {}
        for waiting in pending.values():
            waiting.answered(error)

    # ---- asyncio.BufferedProtocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            self._socket_fd = sock.fileno()
            runtime.register_socket(self._socket_fd)
            # The transport's own socket object may refuse options; they belong to the connection, not to the number.
            with sockets.duplicate(self._socket_fd) as same:
                same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, size_bytes: int) -> None:
        try:
            for frame in self._reader.buffer_updated(size_bytes):
                self._receive(memoryview(frame))
        except FlussError as error:
            self._fail(ConnectError(f"The connection to {self.address} was ended: {error}"))

    def _padding(self, beginning: memoryview) -> int:
        """Puts the records of a fetch on an Arrow boundary: then all its batches lie right, and none is copied."""
        if len(beginning) < frames.RESPONSE_HEADER_SIZE_BYTES:
            return 0
        response = frames.parse_response(beginning)
        pending = None if response.request_id is None else self._pending.get(response.request_id)
        if pending is None or pending.api != api_keys.FETCH_LOG.name:
            return 0
        position = records_position(response.body)
        return 0 if position is None else -(len(beginning) - len(response.body) + position) % ARROW_ALIGNMENT_BYTES

    def _receive(self, frame: memoryview) -> None:
        response = frames.parse_response(frame)
        if response.request_id is None:
            error = parse_error(response.body, self.address)
            self._fail(ConnectError(f"The server at {self.address} ended the connection: {error}"))
            return
        pending = self._pending.get(response.request_id)
        if pending is None:
            return  # the late answer of a request that nobody waits for
        answer: memoryview | FlussError = response.body
        if response.kind == frames.ERROR:
            answer = parse_error(response.body, self.address)
        elif response.kind != frames.SUCCESS:
            raise FlussError(f"an answer of unknown kind {response.kind}")
        del self._pending[response.request_id]
        pending.answered(answer)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f": {exc}" if exc else " by the server"
        self._fail(ConnectError(f"The connection to {self.address} was lost{reason}."))


class ConnectionPool:
    """The open connections of one client on one event loop. `parent` has the credentials for those of other loops."""

    def __init__(
        self,
        connect_timeout_s: float,
        credentials: Credentials | None = None,
        parent: ConnectionPool | None = None,
    ) -> None:
        self._connect_timeout_s = connect_timeout_s
        self.credentials = credentials
        self._parent = parent
        self._open: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        self._wanted: dict[Address, int] = {}
        self._closed = False

    def ready(self, address: Address) -> Connection | None:
        """The connection to an address if there is one right now."""
        connection = self._open.get(address)
        return connection if connection is not None and not connection.closed else None

    def want(self, address: Address, role: ServerType) -> Connection | None:
        """The connection to an address if there is one right now, for somebody who can do without.

        If not, it is opened for those who come again; after failures each next try waits for twice as many of them.
        """
        connection = self.ready(address)
        if connection is not None:
            return connection
        wanted = self._wanted[address] = self._wanted.get(address, 0) + 1
        if wanted > 1 and wanted & (wanted - 1) == 0 and not self._closed:
            self._opening_of(address, role, self._connect_timeout_s)
        return None

    async def get(self, address: Address, role: ServerType | None = None, timeout_s: float | None = None) -> Connection:
        """The connection to an address; callers that come while it is being opened share the attempt."""
        connection = self.ready(address)
        if connection is not None:
            return connection
        if self._closed:
            raise FlussError("The client is closed.")
        limit_s = self._connect_timeout_s if timeout_s is None else min(timeout_s, self._connect_timeout_s)
        opening = self._opening_of(address, role, limit_s)
        # A caller that gives up leaves the attempt to the others.
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if self._closed and opening.cancelled():
                raise FlussError("The client was closed.") from None
            raise

    def _opening_of(self, address: Address, role: ServerType | None, timeout_s: float) -> asyncio.Task[Connection]:
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.ensure_future(self._connect(address, role, timeout_s))
            opening.add_done_callback(lambda task: self._opened(address, task))
        return opening

    async def _connect(self, address: Address, role: ServerType | None, timeout_s: float) -> Connection:
        credentials = (self._parent or self).credentials
        connection = await Connection.open(address, timeout_s, role, credentials)
        if self._closed:
            connection.close()
            raise FlussError("The client is closed.")
        self._open[address] = connection
        return connection

    def _opened(self, address: Address, task: asyncio.Task[Connection]) -> None:
        self._opening.pop(address, None)
        if not task.cancelled():
            task.exception()  # whoever still waits has it; without waiters it is no cause for a warning

    def cut(self) -> None:
        """Let nothing more leave any connection; from any thread. `close` follows on the loop."""
        self._closed = True
        for connection in list(self._open.values()):
            connection.cut()

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        for task in self._opening.values():
            task.cancel()
        for connection in self._open.values():
            connection.close()
        self._open.clear()
