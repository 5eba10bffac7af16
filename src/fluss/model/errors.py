"""The errors of all parts, in one small tree.

FlussError
    ConnectError            no server there, connection lost, wrong port
    AuthenticationError     wrong user or password, or not logged in
    NotFoundError           database, table, partition, schema or snapshot does not exist
    AlreadyExistsError      database, table or partition exists
    InvalidRequestError     a name, descriptor, option or argument is not acceptable
    SchemaMismatchError     a row or column does not fit the table's schema
    TimeoutError            a deadline passed (also a builtin TimeoutError)
    CorruptDataError        bytes on disk or from the wire fail their checks

Every error has `message`, `error_code` (the server's code, or `ErrorCode.CLIENT_ERROR`) and `is_retriable`.
"""

from __future__ import annotations

import builtins


class ErrorCode:
    """Codes of Apache Fluss's protocol. A server newer than this list may send others: codes are plain ints."""

    CLIENT_ERROR = -2
    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    NETWORK_EXCEPTION = 1
    UNSUPPORTED_VERSION = 2
    CORRUPT_MESSAGE = 3
    DATABASE_NOT_EXIST = 4
    DATABASE_NOT_EMPTY = 5
    DATABASE_ALREADY_EXIST = 6
    TABLE_NOT_EXIST = 7
    TABLE_ALREADY_EXIST = 8
    SCHEMA_NOT_EXIST = 9
    LOG_STORAGE_EXCEPTION = 10
    KV_STORAGE_EXCEPTION = 11
    NOT_LEADER_OR_FOLLOWER = 12
    RECORD_TOO_LARGE_EXCEPTION = 13
    CORRUPT_RECORD_EXCEPTION = 14
    INVALID_TABLE_EXCEPTION = 15
    INVALID_DATABASE_EXCEPTION = 16
    INVALID_REPLICATION_FACTOR = 17
    INVALID_REQUIRED_ACKS = 18
    LOG_OFFSET_OUT_OF_RANGE_EXCEPTION = 19
    NON_PRIMARY_KEY_TABLE_EXCEPTION = 20
    UNKNOWN_TABLE_OR_BUCKET_EXCEPTION = 21
    INVALID_UPDATE_VERSION_EXCEPTION = 22
    INVALID_COORDINATOR_EXCEPTION = 23
    FENCED_LEADER_EPOCH_EXCEPTION = 24
    REQUEST_TIME_OUT = 25
    STORAGE_EXCEPTION = 26
    OPERATION_NOT_ATTEMPTED_EXCEPTION = 27
    NOT_ENOUGH_REPLICAS_AFTER_APPEND_EXCEPTION = 28
    NOT_ENOUGH_REPLICAS_EXCEPTION = 29
    SECURITY_TOKEN_EXCEPTION = 30
    OUT_OF_ORDER_SEQUENCE_EXCEPTION = 31
    DUPLICATE_SEQUENCE_EXCEPTION = 32
    UNKNOWN_WRITER_ID_EXCEPTION = 33
    INVALID_COLUMN_PROJECTION = 34
    INVALID_TARGET_COLUMN = 35
    PARTITION_NOT_EXISTS = 36
    TABLE_NOT_PARTITIONED_EXCEPTION = 37
    INVALID_TIMESTAMP_EXCEPTION = 38
    INVALID_CONFIG_EXCEPTION = 39
    LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION = 40
    KV_SNAPSHOT_NOT_EXIST = 41
    PARTITION_ALREADY_EXISTS = 42
    PARTITION_SPEC_INVALID_EXCEPTION = 43
    LEADER_NOT_AVAILABLE_EXCEPTION = 44
    PARTITION_MAX_NUM_EXCEPTION = 45
    AUTHENTICATE_EXCEPTION = 46
    SECURITY_DISABLED_EXCEPTION = 47
    AUTHORIZATION_EXCEPTION = 48
    BUCKET_MAX_NUM_EXCEPTION = 49
    FENCED_TIERING_EPOCH_EXCEPTION = 50
    RETRIABLE_AUTHENTICATE_EXCEPTION = 51
    INVALID_SERVER_RACK_INFO_EXCEPTION = 52
    LAKE_SNAPSHOT_NOT_EXIST = 53
    LAKE_TABLE_ALREADY_EXIST = 54
    INELIGIBLE_REPLICA_EXCEPTION = 55
    INVALID_ALTER_TABLE_EXCEPTION = 56
    DELETION_DISABLED_EXCEPTION = 57
    SERVER_NOT_EXIST_EXCEPTION = 58
    SEVER_TAG_ALREADY_EXIST_EXCEPTION = 59  # the protocol's spelling
    SEVER_TAG_NOT_EXIST_EXCEPTION = 60
    REBALANCE_FAILURE_EXCEPTION = 61
    NO_REBALANCE_IN_PROGRESS_EXCEPTION = 62
    INVALID_PRODUCER_ID_EXCEPTION = 63
    CONFIG_EXCEPTION = 64
    NOT_COORDINATOR_LEADER_EXCEPTION = 65
    SCANNER_EXPIRED = 66
    UNKNOWN_SCANNER_ID = 67
    INVALID_SCAN_REQUEST = 68
    TOO_MANY_SCANNERS = 69
    DISK_WRITE_LOCKED = 70
    INSUFFICIENT_KV_LEADER_REPLICA_CAPACITY = 71
    STORAGE_BACKPRESSURE_EXCEPTION = 72
    HISTORICAL_PARTITION_THROTTLED = 73
    INVALID_BUCKET_ROUTING = 74


# Codes a client may answer by trying again; equals the Java client's list for codes up to 57.
RETRIABLE_CODES = frozenset({1, 3, 9, 10, 11, 12, 14, 21, 25, 26, 28, 29, 44, 70, 72, 73})


class FlussError(Exception):
    """Anything that goes wrong in Flussbett."""

    def __init__(self, message: str, error_code: int = ErrorCode.CLIENT_ERROR) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r}, error_code={self.error_code})"

    def __reduce__(self) -> tuple[type[FlussError], tuple[str, int]]:
        return type(self), (self.message, self.error_code)

    @property
    def is_retriable(self) -> bool:
        """True when the same call may succeed later."""
        return self.error_code in RETRIABLE_CODES


class ConnectError(FlussError):
    """The server can't be reached, or went away."""

    def __init__(self, message: str, error_code: int = ErrorCode.NETWORK_EXCEPTION) -> None:
        super().__init__(message, error_code)


class AuthenticationError(FlussError):
    """The server does not accept the user."""


class NotFoundError(FlussError):
    """The thing named does not exist."""


class AlreadyExistsError(FlussError):
    """The thing to be made exists."""


class InvalidRequestError(FlussError):
    """A name, descriptor, option or argument is not acceptable."""


class SchemaMismatchError(FlussError):
    """A row or column does not fit the table's schema."""


class TimeoutError(FlussError, builtins.TimeoutError):
    """A deadline passed."""

    def __init__(self, message: str, error_code: int = ErrorCode.REQUEST_TIME_OUT) -> None:
        super().__init__(message, error_code)


class CorruptDataError(FlussError):
    """Bytes fail their checks."""

    def __init__(self, message: str, error_code: int = ErrorCode.CORRUPT_RECORD_EXCEPTION) -> None:
        super().__init__(message, error_code)


for _class in (FlussError, *FlussError.__subclasses__()):
    _class.__module__ = "fluss"  # where users find them, and what tracebacks should say

_NOT_FOUND = (4, 7, 9, 36, 41, 53, 58, 60, 62)
_ALREADY_EXISTS = (6, 8, 42, 54, 59)
_INVALID = (5, 13, 15, 16, 17, 18, 19, 20, 34, 35, 37, 38, 39, 43, 45, 49, 56, 57, 63, 64, 68)
_CLASS_BY_CODE: dict[int, type[FlussError]] = {
    ErrorCode.NETWORK_EXCEPTION: ConnectError,
    ErrorCode.CORRUPT_MESSAGE: CorruptDataError,
    ErrorCode.CORRUPT_RECORD_EXCEPTION: CorruptDataError,
    ErrorCode.REQUEST_TIME_OUT: TimeoutError,
    ErrorCode.AUTHENTICATE_EXCEPTION: AuthenticationError,
    ErrorCode.AUTHORIZATION_EXCEPTION: AuthenticationError,
    **dict.fromkeys(_NOT_FOUND, NotFoundError),
    **dict.fromkeys(_ALREADY_EXISTS, AlreadyExistsError),
    **dict.fromkeys(_INVALID, InvalidRequestError),
}


def error_from_code(error_code: int, message: str) -> FlussError:
    """The error class that belongs to a server's code."""
    text = message or f"The server answered with error code {error_code} and no text."
    return _CLASS_BY_CODE.get(error_code, FlussError)(text, error_code)
