"""Logins: who may log in, and how slowly one may guess.

A right password is never kept waiting because of wrong ones: only the answer to a wrong one is delayed, the longer the
more there were of that user from that address. Passwords are checked a few at a time, and addresses take turns, so the
rate of guesses has a bound and guessers do not starve others; what was found right before is recognized without a
check. Known and unknown users take the same time and get the same answer. No password is kept, logged, or part of an
error or a repr.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Protocol

from fluss.model.errors import AuthenticationError, ConnectError, ErrorCode
from fluss.server.net.limits import Limits

_log = logging.getLogger(__name__)

MECHANISM: Final = "PLAIN"
TOKEN_BYTES_MAX: Final = 4_096
NAME_LENGTH_KEPT: Final = 200
DELAY_S_FIRST: Final = 0.25  # longer than a check takes, which therefore can't be told from the time of the answer
DELAY_S_MAX: Final = 5.0
# A wrong login is forgotten after this long.
MEMORY_S: Final = 900.0
LOOK_INTERVAL_S: Final = 0.01  # after a password that was not recognized, until the next one is looked at
_AGAIN_EVERY: Final = 4  # checks of a user and address go to connections that failed before, if others wait
_NETWORK_BYTES: Final = 8  # of an IPv6 address: one site has all of the rest


class Authenticator(Protocol):
    """Knows users and their passwords."""

    checks_max: int  # at a time

    async def recognizes(self, user: str, password: str) -> bool:
        """Whether this was found to be the user's password before, and still is; quick."""

    async def check(self, user: str, password: str) -> bool:
        """Whether this is the user's password; takes as long for a user that there is not."""


class LoginClient(Protocol):
    """The client that logs in."""

    peer_host: str
    is_connected: Callable[[], bool]
    failed_logins: int  # on this connection


class SharedSecret:
    """One user with a long random secret, for a server whose clients get it from a file or their parent process."""

    checks_max = 1

    def __init__(self, user: str, secret: str) -> None:
        self._expected = _joined(user, secret)

    async def recognizes(self, user: str, password: str) -> bool:
        return await self.check(user, password)

    async def check(self, user: str, password: str) -> bool:
        # Only here: see query_name in fluss.storage.staging.commit.
        import hmac

        return hmac.compare_digest(self._expected, _joined(user, password))


def _joined(user: str, password: str) -> bytes:
    return user.encode() + b"\0" + password.encode()


def parse_plain(token: bytes) -> tuple[str, str]:
    """User and password of a SASL PLAIN token: authorization id (empty, or the user), user, password."""
    parts = token.split(b"\0")
    if len(token) <= TOKEN_BYTES_MAX and len(parts) == 3 and parts[1] and parts[2] and parts[0] in (b"", parts[1]):
        try:
            return parts[1].decode(), parts[2].decode()
        except UnicodeDecodeError:
            pass
    # Not chained to what was wrong with it: that error holds the token.
    raise AuthenticationError(
        "The login can't be read: a PLAIN token is user and password in UTF-8, each after a zero byte.",
        ErrorCode.AUTHENTICATE_EXCEPTION,
    )


class _Failures:
    """What is remembered of one user from one address."""

    __slots__ = ("count", "failed_s")

    def __init__(self) -> None:
        self.count = 0
        self.failed_s = 0.0

    @property
    def delay_s(self) -> float:
        delay_s: float = min(DELAY_S_MAX, DELAY_S_FIRST * 2 ** min(self.count - 1, 16))
        return delay_s


class _Line:
    """Those who wait for checks of one user from one address."""

    def __init__(self) -> None:
        self.first: deque[asyncio.Future[None]] = deque()
        self.again: deque[asyncio.Future[None]] = deque()  # of connections that have failed before
        self._served = 0

    def pop(self) -> asyncio.Future[None]:
        self._served += 1
        is_turn_of_again = not self.first or self._served % _AGAIN_EVERY == 0
        return (self.again if self.again and is_turn_of_again else self.first).popleft()

    def __len__(self) -> int:
        return len(self.first) + len(self.again)


class FairSlots:
    """A few may work at a time; of those who wait addresses take turns, and users of an address."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: OrderedDict[str, OrderedDict[str, _Line]] = OrderedDict()

    async def acquire(self, address: str, user: str, *, is_first: bool = True) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._waiting.setdefault(address, OrderedDict()).setdefault(user, _Line())
        (line.first if is_first else line.again).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            turn = self._next()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _next(self) -> asyncio.Future[None]:
        address, users = next(iter(self._waiting.items()))
        user, line = next(iter(users.items()))
        turn = line.pop()
        users.move_to_end(user)
        self._waiting.move_to_end(address)
        if not line:
            del users[user]
        if not users:
            del self._waiting[address]
        return turn


class Logins:
    """All logins of a server."""

    def __init__(self, authenticator: Authenticator, limits: Limits) -> None:
        self._authenticator = authenticator
        self._limits = limits
        self._looks = FairSlots(1)
        self._slots = FairSlots(authenticator.checks_max)
        # By address and user, the one that failed last at the end.
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()

    async def check(self, user: str, password: str, client: LoginClient) -> None:
        """Return when the password is right, raise when it is not, after a delay."""
        begin_s = asyncio.get_running_loop().time()
        key = (_network(client.peer_host), user[:NAME_LENGTH_KEPT])
        if await self._recognizes(key, user, password, client) or await self._checks(key, user, password, client):
            self._failures.pop(key, None)
            return
        client.failed_logins += 1
        failures = self._failed(key)
        # Not each: guesses must not fill the disk.
        if failures.count & (failures.count - 1) == 0:
            _log.warning("%s: login refused for user %r (failure %d)", client.peer_host, key[1], failures.count)
        await asyncio.sleep(begin_s + failures.delay_s - asyncio.get_running_loop().time())
        raise AuthenticationError("Wrong user or password.", ErrorCode.AUTHENTICATE_EXCEPTION)

    async def _recognizes(self, key: tuple[str, str], user: str, password: str, client: LoginClient) -> bool:
        """Whether it was right before. A look is quicker than a check, so one that fails holds up the next."""
        await self._looks.acquire(*key, is_first=not client.failed_logins)
        pause_s = 0.0
        try:
            _check_connected(client)
            if await self._authenticator.recognizes(user, password):
                return True
            pause_s = LOOK_INTERVAL_S
            return False
        finally:
            if pause_s:
                asyncio.get_running_loop().call_later(pause_s, self._looks.release)
            else:
                self._looks.release()

    async def _checks(self, key: tuple[str, str], user: str, password: str, client: LoginClient) -> bool:
        await self._slots.acquire(*key, is_first=not client.failed_logins)
        try:
            _check_connected(client)
            return await self._authenticator.check(user, password)
        finally:
            self._slots.release()

    def _failed(self, key: tuple[str, str]) -> _Failures:
        failures = self._failures.setdefault(key, _Failures())
        self._failures.move_to_end(key)
        failures.count += 1
        failures.failed_s = now_s = asyncio.get_running_loop().time()
        while True:
            oldest, entry = next(iter(self._failures.items()))
            if len(self._failures) <= self._limits.failed_logins_max and now_s - entry.failed_s <= MEMORY_S:
                return failures
            del self._failures[oldest]


def _check_connected(client: LoginClient) -> None:
    if not client.is_connected():
        raise ConnectError("The client closed the connection before its login was checked.")


def _network(address: str) -> str:
    """The network that counts as one guesser: an IPv4 address, or the network of an IPv6 address."""
    if ":" not in address:
        return address
    try:
        return socket.inet_pton(socket.AF_INET6, address.partition("%")[0])[:_NETWORK_BYTES].hex()
    except OSError:
        return address
