"""Data sources to compare with: one that reads Arrow files, one that throws rows away. Pickled to Spark's workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class _File(InputPartition):  # type: ignore[misc]
    path: str


class ArrowFiles(DataSource):  # type: ignore[misc]
    """Reads a folder of Arrow files, one Spark partition each: the least that a Python source can do."""

    @classmethod
    def name(cls) -> str:
        return "arrow_files"

    def reader(self, schema: Any) -> _FileReader:
        return _FileReader(self.options["path"])


class _FileReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> list[_File]:
        return [_File(str(path)) for path in sorted(Path(self._folder).glob("*.arrow"))]

    def read(self, partition: _File) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with pa.OSFile(partition.path) as file, pa.ipc.open_file(file) as batches:
            for number in range(batches.num_record_batches):
                yield batches.get_batch(number)


class Discard(DataSource):  # type: ignore[misc]
    """Takes rows as Arrow batches and forgets them."""

    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: Any, overwrite: bool) -> _Discarding:
        return _Discarding()


class _Discarding(DataSourceArrowWriter):  # type: ignore[misc]
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
