"""A thread that follows a table from its first row and notes everything it sees."""

from __future__ import annotations

import threading

import fluss
from tests.kit.loads.oracle import Bucket, ReaderLog
from tests.kit.loads.writers import opened_table
from tests.kit.rows import rows_of

_POLL_MS = 200


class Follower(threading.Thread):
    """Reads until told to stop; `failure` says why it ended early."""

    def __init__(self, config: fluss.Config, path: fluss.TablePath, buckets: int, log: ReaderLog) -> None:
        super().__init__(name=f"follower-{path.table_name}", daemon=True)
        self.path = path
        self.log = log
        self.failure: BaseException | None = None
        self._config = config
        self._buckets = buckets
        self._stop_asked = threading.Event()

    def stop(self) -> None:
        self._stop_asked.set()

    def run(self) -> None:
        try:
            self._follow()
        except BaseException as error:
            self.failure = error

    def _follow(self) -> None:
        with opened_table(self._config, self.path) as table:
            scanner = table.new_scan().create_record_batch_log_scanner()
            scanner.subscribe_buckets(dict.fromkeys(range(self._buckets), fluss.EARLIEST_OFFSET))
            while not self._stop_asked.is_set():
                for batch in scanner.poll_record_batch(_POLL_MS):
                    bucket = Bucket(self.path.table_name, batch.bucket.bucket_id)
                    self.log.see(bucket, batch.base_offset, rows_of(batch.batch))
            scanner.close()
