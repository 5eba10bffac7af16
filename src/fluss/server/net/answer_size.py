"""Answers that are put together from stored rows: bounded one by one, and counted for the whole server."""

from __future__ import annotations

from types import TracebackType

from fluss.model.errors import ErrorCode, InvalidRequestError, TimeoutError
from fluss.server.net.budgets import ResponseBudget


class AnswerSize:
    """The bytes of one answer in the making; use it as a context manager that ends when the answer is made."""

    def __init__(self, budget: ResponseBudget, bytes_max: int, advice: str) -> None:
        self._budget = budget
        self._bytes_max = bytes_max
        self._advice = advice
        self._bytes = 0

    def __enter__(self) -> AnswerSize:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._budget.release(self._bytes)

    @property
    def left_bytes(self) -> int:
        return self._bytes_max - self._bytes

    def add(self, size_bytes: int) -> None:
        """Count more of the answer; raises when it gets too large, or when the server has too much unsent."""
        self._budget.release(self._bytes)
        allowed = self._bytes + size_bytes <= self._budget.allowance_bytes()
        self._bytes += size_bytes
        self._budget.add(self._bytes)
        if self._bytes > self._bytes_max:
            raise InvalidRequestError(
                f"The answer has more than {self._bytes_max} bytes; {self._advice}.",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        if not allowed:
            raise TimeoutError("The server waits for its clients to take their answers; try again later.")
