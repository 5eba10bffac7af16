"""Requests that can't be understood."""

from __future__ import annotations

from fluss.model.errors import CorruptDataError, ErrorCode


def unreadable(api_name: str, reason: str) -> CorruptDataError:
    """The error for a body that is not the message it should be.

    Not CORRUPT_MESSAGE: that code is retriable, and real clients would send the same bytes for ever. They all raise
    UNSUPPORTED_VERSION to the user, and it says what is wrong: the two sides do not agree on the message.
    """
    text = f"The body of this {api_name} request can't be read: {reason}."
    return CorruptDataError(text, ErrorCode.UNSUPPORTED_VERSION)
