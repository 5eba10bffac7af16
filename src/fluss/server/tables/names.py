"""Names in requests, checked before anything is done with them."""

from __future__ import annotations

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.paths import TablePath, check_database_name, check_table_name
from fluss.protocol import messages_pb2 as pb


def database_name(name: str) -> str:
    """The name, or code 16."""
    check_database_name(name)
    return name


def table_path(path: pb.PbTablePath | pb.PbPhysicalTablePath) -> TablePath:
    """The path, or code 16 or 15."""
    check_database_name(path.database_name)
    check_table_name(path.table_name)
    return TablePath(path.database_name, path.table_name)


def check_count(count: int, limit: int, what: str) -> None:
    """Refuse a request that names too many things."""
    if count > limit:
        raise InvalidRequestError(
            f"One request may name {limit} {what}, not {count}; send several.", ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        )
