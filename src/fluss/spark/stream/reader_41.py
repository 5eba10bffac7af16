"""The stream reader for Spark 4.0 and 4.1, which know no limits: it remembers where the last micro-batch ended.

There `Trigger.AvailableNow` is one micro-batch, and a reader is not told of it. Together with a limit such a query
reads as much as the limit allows and ends; what is left is read when it is started again.
"""

# Small on purpose: it must import nothing that these versions of Spark lack.

from __future__ import annotations

import logging

import pyspark

from fluss.spark.read.parts import BucketPart
from fluss.spark.stream.reader import FlussStreamReader, Stored
from fluss.spark.waiting import told_shortly

_log = logging.getLogger(__name__)


class RememberingStreamReader(FlussStreamReader):
    """Knows how far it came."""

    _end: Stored | None = None
    _has_warned = False

    @told_shortly()
    def latestOffset(self) -> Stored:  # noqa: N802
        """The end of the next micro-batch."""
        self._end = self.next_offset(self._end or self.initialOffset(), is_limited=self.is_limited)
        if self.was_cut and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "The stream of %s has more rows than a micro-batch may have. With Trigger.AvailableNow, Spark %s ends "
                "after one micro-batch: leave out maxRowsPerTrigger and maxBytesPerTrigger there, or use Spark 4.2.",
                self.table_path,
                pyspark.__version__,
            )
        return self._end

    def partitions(self, start: Stored, end: Stored) -> list[BucketPart]:
        """What the tasks of a micro-batch read. A query that is started again calls this first."""
        self._end = end
        return super().partitions(start, end)
