"""Answers as parts of a response frame, bounded one by one and counted for the whole server."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final, TypeAlias

from google.protobuf.message import Message

from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, TimeoutError
from fluss.protocol import frames
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import Encoded, Part
from fluss.server.net.budgets import ResponseBudget

_log = logging.getLogger(__name__)

ERROR_TEXT_LENGTH_MAX: Final = 1_000
# Answers up to this are copied together: a write of several pieces takes longer than that.
_JOINED_BYTES_MAX: Final = 4 << 10

Answer: TypeAlias = Message | Encoded


def success_frame(request_id: int, answer: Answer) -> list[Part]:
    """The response frame for an answer."""
    if isinstance(answer, Encoded):
        parts = [frames.response_header(frames.SUCCESS, request_id, answer.size_bytes), *answer.parts]
        return [b"".join(parts)] if answer.size_bytes <= _JOINED_BYTES_MAX else parts
    body = answer.SerializeToString()
    return [frames.response_header(frames.SUCCESS, request_id, len(body)) + body]


def error_frame(request_id: int, error: BaseException) -> list[Part]:
    """The response frame for an error."""
    code, text = code_and_text(error)
    body = pb.ErrorResponse(error_code=code, error_message=text).SerializeToString()
    return [frames.response_header(frames.ERROR, request_id, len(body)) + body]


def code_and_text(error: BaseException) -> tuple[int, str]:
    """The code and message to send for an error; one that is not ours is logged and its text kept back."""
    if isinstance(error, FlussError):
        code = error.error_code if error.error_code > 0 else ErrorCode.UNKNOWN_SERVER_ERROR
        return code, error.message[:ERROR_TEXT_LENGTH_MAX]
    _log.error("a request failed", exc_info=error)
    return ErrorCode.UNKNOWN_SERVER_ERROR, "The server failed on this request; its log has the details."


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
