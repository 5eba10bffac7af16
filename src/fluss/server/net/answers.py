"""What goes back to a client: a message, or an error, as the parts of one response frame."""

from __future__ import annotations

import logging
from typing import Final, TypeAlias

from google.protobuf.message import Message

from fluss.model.errors import ErrorCode, FlussError
from fluss.protocol import frames
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import Encoded, Part

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
