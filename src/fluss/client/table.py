"""A table: where its writers and scanners come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from fluss.client.append import AppendWriterCore
from fluss.client.scanner import LogScannerCore
from fluss.model.arrow_types import arrow_schema
from fluss.model.descriptor import LogFormat
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.table_options import LOG_FORMAT

if TYPE_CHECKING:
    from fluss.client.core import ClientCore


class TableCore:
    """A table as it was when it was looked up."""

    def __init__(self, client: ClientCore, info: TableInfo) -> None:
        self._client = client
        self.info = info
        self.arrow_schema: pa.Schema = arrow_schema(info.schema)

    def append_writer(self) -> AppendWriterCore:
        """A writer of rows and batches; all writers of a client share its sender."""
        self._client.check_usable()
        if self.info.has_primary_key():
            raise InvalidRequestError(
                f"Table {self.info.table_path} has a primary key: its rows are upserted, not appended."
            )
        if self.info.is_partitioned():
            raise InvalidRequestError(
                f"Table {self.info.table_path} is partitioned; writing to it is not supported yet."
            )
        self._check_arrow("appending to it")
        return AppendWriterCore(self._client, self.info)

    def log_scanner(self, projection: list[int] | None = None) -> LogScannerCore:
        """A reader of the table's log; `projection` has column indexes in the order wanted."""
        self._client.check_usable()
        self._check_arrow("reading it")
        count = len(self.info.schema.columns)
        for index in projection or ():
            if not 0 <= index < count:
                raise InvalidRequestError(
                    f"Column index {index} is not in the range 0 to {count - 1} of table {self.info.table_path}.",
                    ErrorCode.INVALID_COLUMN_PROJECTION,
                )
        return LogScannerCore(self._client, self.info, projection)

    def _check_arrow(self, what: str) -> None:
        log_format = self.info.properties.get(LOG_FORMAT, LogFormat.ARROW).upper()
        if log_format != LogFormat.ARROW:
            raise InvalidRequestError(
                f"Table {self.info.table_path} has the log format {log_format}; {what} is not supported yet."
            )
