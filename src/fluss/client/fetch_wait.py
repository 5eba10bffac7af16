"""How long a server may wait for rows before it answers a fetch."""

from __future__ import annotations

from fluss.model.config import Config

WAIT_MS_MIN = 10


class FetchWait:
    """At most what is configured, and shorter where rows would come late.

    Apache Fluss does not wake a fetch that waits: rows that come meanwhile are in its answer when the wait is over.
    So rows in an answer that took all of its wait make the next waits short, and every empty answer doubles them: a
    reader is about as late as rows are rare, and an idle one asks no more often than before. A server that answers as
    soon as it has something never makes them short. What a user has set stays as it is.
    """

    __slots__ = ("_is_fixed", "_max_ms", "ms")

    def __init__(self, config: Config) -> None:
        self._max_ms: int = config.scanner_log_fetch_wait_max_time_ms
        # Who wants more bytes than one row has, wants to wait for them.
        is_patient = config.scanner_log_fetch_min_bytes > 1
        self._is_fixed = is_patient or Config.scanner_log_fetch_wait_max_time_ms.key in config.to_dict()
        self.ms = self._max_ms
        """For the next fetch."""

    def learn(self, asked_ms: int, took_s: float, *, has_rows: bool) -> None:
        """An answer came so long after a request that allowed a wait of `asked_ms`."""
        if self._is_fixed:
            return
        if not has_rows:
            self.ms = min(2 * self.ms, self._max_ms)
        elif took_s * 1000 >= asked_ms:
            self.ms = min(WAIT_MS_MIN, self._max_ms)
