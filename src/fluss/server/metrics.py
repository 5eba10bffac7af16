"""Counters of the server's parts: plain numbers, changed on the loop, shown by `metrics_page`."""

from __future__ import annotations

from collections import Counter

from fluss.model.errors import ErrorCode, FlussError
from fluss.protocol import api_keys

UNKNOWN_API_KEY = -1


class Metrics:
    """What the server has done since its start."""

    __slots__ = (
        "errors",
        "logins_refused",
        "lookup_keys",
        "put_batches",
        "put_bytes",
        "received_bytes",
        "refused_connections",
        "requests",
        "sent_bytes",
    )

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()  # by api key; only keys that are served
        self.errors: Counter[tuple[int, int]] = Counter()  # by api key and error code
        self.received_bytes = 0
        self.sent_bytes = 0
        self.refused_connections = 0
        self.logins_refused = 0
        self.put_batches = 0
        self.put_bytes = 0
        self.lookup_keys = 0

    def failed(self, api_key: int, error: BaseException) -> None:
        """Count a request that is answered with an error."""
        known = api_key if api_key in api_keys.BY_KEY else UNKNOWN_API_KEY
        code = error.error_code if isinstance(error, FlussError) else ErrorCode.UNKNOWN_SERVER_ERROR
        self.errors[known, code] += 1
