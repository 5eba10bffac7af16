"""Refusing writes before the disk is full, so that what is stored can still be read, removed and recovered.

Looking costs a system call, so it is done after a second, or after so many bytes that they could matter; in between a
write costs a comparison. Below the limit writes are refused with a code that all clients answer by trying again; at
twice the limit they go on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fluss.doors import clock
from fluss.model.errors import ErrorCode, FlussError

_log = logging.getLogger(__name__)

FREE_BYTES_MIN: Final = 1 << 30
FREE_SEGMENTS_MIN: Final = 2
CHECK_INTERVAL_S: Final = 1.0
# The part of the limit that may be written between two looks.
_CHECK_SHARE: Final = 8


def free_bytes_limit(setting: int | None, segment_size_bytes: int) -> int:
    """The setting, or by default room for a few more segments."""
    return max(FREE_BYTES_MIN, FREE_SEGMENTS_MIN * segment_size_bytes) if setting is None else setting


def disk_free_bytes(path: Path) -> int:
    """What an ordinary user may still write."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


class DiskGuard:
    """Used on the loop. `free_bytes_min` 0 switches it off."""

    def __init__(self, path: Path, free_bytes_min: int, free_bytes: Callable[[Path], int] = disk_free_bytes) -> None:
        self._path = path
        self._free_bytes = free_bytes
        self.free_bytes_min = free_bytes_min
        self.refused = 0  # writes
        self._is_low = False
        self._unseen_bytes = 0
        self._looked_at_s = float("-inf")

    @property
    def is_low(self) -> bool:
        return self._is_low

    def admit(self, size_bytes: int = 0) -> None:
        """Return when so much may be written; raise code 10 when the disk is too full."""
        if not self.free_bytes_min:
            return
        self._unseen_bytes += size_bytes
        many = self._unseen_bytes * _CHECK_SHARE >= self.free_bytes_min and not self._is_low
        if many or clock.monotonic() - self._looked_at_s >= CHECK_INTERVAL_S:
            self._look()
        if self._is_low:
            self.refused += 1
            raise FlussError(
                f"The server's disk is nearly full: writes need {self.free_bytes_min} free bytes and go on at twice "
                "that. Free some space; reading works meanwhile.",
                ErrorCode.LOG_STORAGE_EXCEPTION,
            )

    def free_bytes(self) -> int:
        """What is free now."""
        return self._free_bytes(self._path)

    def _look(self) -> None:
        self._unseen_bytes = 0
        self._looked_at_s = clock.monotonic()
        free_bytes = self.free_bytes()
        if not self._is_low and free_bytes < self.free_bytes_min:
            self._is_low = True
            _log.error(
                "%s has %d bytes free, less than %d: writes are refused", self._path, free_bytes, self.free_bytes_min
            )
        elif self._is_low and free_bytes >= 2 * self.free_bytes_min:
            self._is_low = False
            _log.warning("%s has %d bytes free again: writes go on", self._path, free_bytes)
