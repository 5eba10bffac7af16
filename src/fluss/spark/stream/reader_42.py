"""The stream reader for Spark 4.2 and newer, which says where a micro-batch begins and whether it is limited."""

# Small on purpose: it imports what older versions of Spark lack.

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from fluss.spark.stream.reader import FlussStreamReader, Stored
from fluss.spark.waiting import told_shortly


class AskedStreamReader(FlussStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Holds both limits itself: Spark passes on one of them, and leaves it out where a trigger has no limit."""

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """The limit of the options."""
        options = self._read_options
        if options.rows_per_trigger_max is not None:
            return ReadMaxRows(options.rows_per_trigger_max)
        return (
            ReadAllAvailable() if options.bytes_per_trigger_max is None else ReadMaxBytes(options.bytes_per_trigger_max)
        )

    @told_shortly()
    def latestOffset(self, start: Stored, limit: Any) -> Stored:  # noqa: N802
        """The end of the micro-batch that begins at `start`."""
        return self.next_offset(start, is_limited=self.is_limited and not isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> Stored | None:  # noqa: N802
        """How far the stream could have read, for the query's progress."""
        return None if self._latest is None else self._latest.to_json()

    @told_shortly()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now, in as many micro-batches as the limit makes of it."""
        self.prepare_to_end()
