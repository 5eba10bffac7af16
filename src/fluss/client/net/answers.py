"""What a server's error answers mean."""

from __future__ import annotations

from fluss.model.errors import ErrorCode, FlussError, error_from_code
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import Part, parse_answer

ERROR_TEXT_LENGTH_MAX = 1_000

# After these a new look at the metadata may help: the leader moved, is not elected yet, or its server is gone.
STALE_METADATA_CODES = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
    }
)


def server_error(error_code: int, message: str) -> FlussError:
    """The error of an answer. A Java server may send a stack trace: its first line says what happened."""
    lines = message.strip().splitlines()
    return error_from_code(error_code, lines[0][:ERROR_TEXT_LENGTH_MAX] if lines else "")


def parse_error(body: Part, sender: object) -> FlussError:
    """The error in the body of an error frame."""
    answer = parse_answer(pb.ErrorResponse, body, sender)
    return server_error(answer.error_code, answer.error_message)
