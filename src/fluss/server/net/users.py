"""The users file: one line per user, `name:scrypt$n$r$p$salt$hash`, salt and hash in base64.

The server reads it again whenever it has changed. It is replaced as a whole, so a reader sees the old one or the new.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from fluss.doors import randomness, threads
from fluss.model.errors import ErrorCode, InvalidRequestError

_log = logging.getLogger(__name__)

USERS_MAX: Final = 10_000
USER_LENGTH_MAX: Final = 200
PASSWORD_LENGTH_MAX: Final = 1_000
FILE_BYTES_MAX: Final = 4 << 20
# Checks that run at a time: each takes a core, and 16 MiB.
CHECKS_MAX: Final = 2

_FILE_MODE: Final = 0o600
_ALGORITHM: Final = "scrypt"
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
_COST: Final = (1 << 14, 8, 1)  # n, r, p: 16 MiB and some 50 ms
_MEMORY_BYTES_MAX: Final = 64 << 20


class PasswordHash(NamedTuple):
    n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, password: str) -> PasswordHash:
        """Hash a password with a fresh salt; takes a while."""
        unset = cls(*_COST, randomness.token_bytes(_SALT_BYTES), b"")
        return unset._replace(digest=unset.derive(password))

    @classmethod
    def parse(cls, text: str) -> PasswordHash | None:
        parts = text.split("$")
        if len(parts) != 6 or parts[0] != _ALGORITHM:
            return None
        try:
            n, r, p = map(int, parts[1:4])
            salt, digest = (base64.b64decode(part, validate=True) for part in parts[4:])
        except (ValueError, binascii.Error):
            return None
        affordable = n > 1 and n & (n - 1) == 0 and r > 0 and 0 < p <= 16 and 128 * n * r < _MEMORY_BYTES_MAX
        return cls(n, r, p, salt, digest) if affordable and len(digest) == _HASH_BYTES else None

    def __repr__(self) -> str:
        return "PasswordHash(...)"

    def __str__(self) -> str:
        encoded = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return "$".join((_ALGORITHM, *map(str, self[:3]), *encoded))

    def matches(self, password: str) -> bool:
        """Takes a while, the same for right and wrong."""
        return hmac.compare_digest(self.digest, self.derive(password))

    def derive(self, password: str) -> bytes:
        return hashlib.scrypt(
            password.encode(), salt=self.salt, n=self.n, r=self.r, p=self.p, maxmem=2 * _MEMORY_BYTES_MAX, dklen=32
        )


# What the password of a user that there is not is compared with: it takes as long, and never matches.
_NOBODY: Final = PasswordHash(*_COST, bytes(_SALT_BYTES), bytes(_HASH_BYTES))


def read_users(path: Path) -> dict[str, PasswordHash]:
    """The users of a file, or an error that names the line; never what is in it."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _bad(f"Users file {path} can't be read: {error.strerror or error}") from None
    if len(data) > FILE_BYTES_MAX:
        raise _bad(f"Users file {path} has more than {FILE_BYTES_MAX} bytes")
    users: dict[str, PasswordHash] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        name, _, rest = line.decode("utf-8", "replace").strip().rpartition(":")
        hashed = PasswordHash.parse(rest)
        if hashed is None or not _is_name(name) or name in users:
            raise _bad(f"Users file {path}: line {number} is not a user; make it with 'fluss user add'")
        users[name] = hashed
    if len(users) > USERS_MAX:
        raise _bad(f"Users file {path} has {len(users)} users, the limit is {USERS_MAX}")
    return users


def write_users(path: Path, users: Mapping[str, PasswordHash]) -> None:
    """Replace the file as a whole; only its owner may read it."""
    path = path.resolve()
    temporary = path.with_name(f"{path.name}.{randomness.token_bytes(4).hex()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.writelines(f"{name}:{hashed}\n" for name, hashed in users.items())
            file.flush()
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def add_user(path: Path, name: str, password: str) -> bool:
    """Add a user or change the password of one; True when the user is new. A missing file is made."""
    if not _is_name(name):
        raise _bad(f"A user name has 1 to {USER_LENGTH_MAX} printable characters without spaces or colons")
    if not 1 <= len(password) <= PASSWORD_LENGTH_MAX or "\0" in password:
        raise _bad(f"A password has 1 to {PASSWORD_LENGTH_MAX} characters and no zero byte")
    users = read_users(path) if path.exists() else {}
    is_new = name not in users
    if is_new and len(users) >= USERS_MAX:
        raise _bad(f"Users file {path} has {USERS_MAX} users, which is the limit")
    write_users(path, {**users, name: PasswordHash.of(password)})
    return is_new


def remove_user(path: Path, name: str) -> None:
    users = read_users(path)
    if name not in users:
        raise _bad(f"Users file {path} has no user {name!r}")
    write_users(path, {user: hashed for user, hashed in users.items() if user != name})


class PasswordFile:
    """Checks logins against a users file."""

    checks_max = CHECKS_MAX

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._current_stamp()
        self._users = read_users(path)
        self._refreshing = threads.lock()
        # Of their own: other work in threads may wait for a slow disk.
        self._checkers = threads.pool(CHECKS_MAX, "fluss-login")
        self._recognizer = threads.pool(1, "fluss-login-again")
        # Under a key of this process, what was checked before: a client's next connections need not pay again.
        self._key = randomness.token_bytes(32)
        self._known: dict[str, bytes] = {}
        self._warn_if_readable()

    async def recognizes(self, user: str, password: str) -> bool:
        if len(password) > PASSWORD_LENGTH_MAX or len(user) > USER_LENGTH_MAX:
            return False
        return await asyncio.get_running_loop().run_in_executor(self._recognizer, self._recognizes, user, password)

    def _recognizes(self, user: str, password: str) -> bool:
        self._refresh()
        return hmac.compare_digest(self._known.get(user, b""), self._mark(password))

    async def check(self, user: str, password: str) -> bool:
        # Of one that is too long the rest is left out: it is as wrong, and takes as long.
        password = password[: PASSWORD_LENGTH_MAX + 1]
        return await asyncio.get_running_loop().run_in_executor(self._checkers, self._check, user, password)

    def _check(self, user: str, password: str) -> bool:
        self._refresh()
        users, known = self._users, self._known
        hashed = users.get(user)
        # The comparison is made in any case, so that it takes as long for a user that there is not.
        right = (hashed or _NOBODY).matches(password) and hashed is not None
        if right:
            known[user] = self._mark(password)
        return right

    def _mark(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), "sha256")

    def _refresh(self) -> None:
        with self._refreshing:
            self._refresh_now()

    def _refresh_now(self) -> None:
        stamp = self._current_stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._users = read_users(self._path)
        except InvalidRequestError as error:
            _log.error("%s The users read before stay.", error)
            return
        self._known = {}
        self._warn_if_readable()
        _log.info("read %d users from %s", len(self._users), self._path)

    def _current_stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _warn_if_readable(self) -> None:
        try:
            mode = self._path.stat().st_mode
        except OSError:
            return
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            _log.warning("%s can be read by others than its owner; run chmod 600 on it", self._path)


def _is_name(name: str) -> bool:
    return 1 <= len(name) <= USER_LENGTH_MAX and name.isprintable() and not any(c in " :" for c in name)


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(f"{text}.", ErrorCode.INVALID_CONFIG_EXCEPTION)
