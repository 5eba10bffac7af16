"""The endpoint file of an embedded server, read only if nobody else can have written it.

Whoever writes this file chooses the server that gets a client's rows. So it counts only as this user's, or root's,
regular file that no other user can read or write, in a directory of such an owner. Everything is asked of open
descriptors, so nothing can be exchanged between a look and the next.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from fluss.model.addresses import ENDPOINT_NAME, Endpoint
from fluss.model.errors import ConnectError

SIZE_BYTES_MAX: Final = 4_096
_ROOT: Final = 0
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
# A FIFO would keep whoever opens it, a link leads to somebody else's choice of a file.
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def read_endpoint(directory: Path) -> Endpoint | None:
    """The endpoint that a directory's server has left; None if there is none, an error if it can't be trusted."""
    path = directory / ENDPOINT_NAME
    try:
        directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            data = _read(path, directory_fd)
        finally:
            os.close(directory_fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _distrusted(path, "it is a symbolic link") from error
        raise ConnectError(
            f"{path} can't be read ({error.strerror}); does another user's server use this directory?"
        ) from error
    return Endpoint.from_bytes(data)


def _read(path: Path, directory_fd: int) -> bytes:
    fd = os.open(path.name, _FLAGS, dir_fd=directory_fd)
    try:
        _check(path, os.fstat(fd), os.fstat(directory_fd))
        return os.read(fd, SIZE_BYTES_MAX)
    finally:
        os.close(fd)


def _check(path: Path, found: os.stat_result, directory: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _distrusted(path, "it is no regular file")
    user = os.geteuid()
    if found.st_uid not in (user, _ROOT):
        raise _distrusted(path, f"it belongs to user {found.st_uid}, and this process runs as user {user}")
    # Root uses directories of others, such as volumes of a container; what it finds there is its own nevertheless.
    if user != _ROOT and directory.st_uid not in (user, _ROOT):
        raise _distrusted(path, f"its directory belongs to user {directory.st_uid}, and this process runs as {user}")
    if found.st_mode & _OTHERS:
        raise _distrusted(path, f"other users can read or write it (mode {stat.S_IMODE(found.st_mode):03o}, not 600)")
    if found.st_size > SIZE_BYTES_MAX:
        raise _distrusted(path, f"it has {found.st_size} bytes, and {SIZE_BYTES_MAX} at most are expected")


def _distrusted(path: Path, reason: str) -> ConnectError:
    return ConnectError(
        f"{path} says where the server of this directory is, but can't be trusted: {reason}. Use a directory of your "
        "own, on a file system that keeps owners and modes; or, if no server uses this one, remove the file."
    )
