"""Who may log in, and how slowly one may guess.

A wrong login costs the next ones of that user, and of that address, a delay that doubles each time. Logins of one user
and of one address are checked one after the other, so guessing on many connections at once is no faster. Known and
unknown users take the same time and get the same answer. No password is kept, logged, or part of an error or a repr.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Final, Protocol

from fluss.model.errors import AuthenticationError, ErrorCode
from fluss.server.limits import Limits

_log = logging.getLogger(__name__)

MECHANISM: Final = "PLAIN"
TOKEN_BYTES_MAX: Final = 4_096
NAME_LENGTH_KEPT: Final = 200
DELAY_S_FIRST: Final = 0.1
DELAY_S_MAX: Final = 5.0
# A wrong login is forgotten after this long.
MEMORY_S: Final = 900.0


class Authenticator(Protocol):
    """Knows users and their passwords."""

    async def check(self, user: str, password: str) -> bool:
        """Whether this is the user's password; takes as long for a user that there is not."""


class SharedSecret:
    """One user with a long random secret, for a server whose clients get it from a file or their parent process."""

    def __init__(self, user: str, secret: str) -> None:
        self._expected = _joined(user, secret)

    async def check(self, user: str, password: str) -> bool:
        # Only here: see query_name in staged_files.py.
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


class _Attempts:
    """What is remembered of one user or one address."""

    __slots__ = ("failed_at_s", "failures", "lock", "waiting")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0
        self.failures = 0
        self.failed_at_s = 0.0

    def delay_s(self, now_s: float) -> float:
        if not self.failures:
            return 0.0
        delay_s: float = min(DELAY_S_MAX, DELAY_S_FIRST * 2 ** min(self.failures - 1, 16))
        return max(0.0, self.failed_at_s + delay_s - now_s)


class Logins:
    """All logins of a server."""

    def __init__(self, authenticator: Authenticator, limits: Limits) -> None:
        self._authenticator = authenticator
        self._limits = limits
        # The one used last at the end.
        self._attempts: OrderedDict[tuple[str, str], _Attempts] = OrderedDict()

    async def check(self, user: str, password: str, address: str) -> None:
        """Return when the password is right, raise when it is not; neither before the delay is over."""
        keys = [("user", user[:NAME_LENGTH_KEPT]), ("address", address)]
        entries = [self._enter(key) for key in keys]
        try:
            self._check_crowd(entries)
            # Always the user first, so two logins can't wait for each other.
            async with entries[0].lock, entries[1].lock:
                # Again: nothing may have failed yet when many came at once.
                self._check_crowd(entries)
                await self._check_in_turn(entries, user, password, address)
        finally:
            for key in keys:
                self._leave(key)

    async def _check_in_turn(self, entries: list[_Attempts], user: str, password: str, address: str) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(entry.delay_s(loop.time()) for entry in entries))
        if await self._authenticator.check(user, password):
            for entry in entries:
                entry.failures = 0
            return
        for entry in entries:
            entry.failures += 1
            entry.failed_at_s = loop.time()
        shown = user[:NAME_LENGTH_KEPT]
        _log.warning("%s: login refused for user %r (failure %d)", address, shown, entries[1].failures)
        raise AuthenticationError("Wrong user or password.", ErrorCode.AUTHENTICATE_EXCEPTION)

    def _check_crowd(self, entries: list[_Attempts]) -> None:
        if any(entry.failures and entry.waiting > self._limits.logins_waiting_max for entry in entries):
            raise AuthenticationError(
                "Too many logins wait after wrong ones; try again later.", ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION
            )

    def _enter(self, key: tuple[str, str]) -> _Attempts:
        entry = self._attempts.setdefault(key, _Attempts())
        self._attempts.move_to_end(key)
        entry.waiting += 1
        return entry

    def _leave(self, key: tuple[str, str]) -> None:
        entry = self._attempts[key]
        entry.waiting -= 1
        if not entry.waiting and not entry.failures:
            del self._attempts[key]
        now_s = asyncio.get_running_loop().time()
        while self._attempts:
            key, entry = next(iter(self._attempts.items()))
            crowded = len(self._attempts) > self._limits.failed_logins_max
            if entry.waiting or not (crowded or now_s - entry.failed_at_s > MEMORY_S):
                return
            del self._attempts[key]
