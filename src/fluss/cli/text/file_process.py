"""Parquet and Arrow files, opened in a process of their own: a damaged one can end the library that reads it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa

STDIN: Final = "-"
BATCH_ROWS_MAX: Final = 65_536
# Parquet and Arrow files are read from their end, so standard input is kept until then.
STDIN_BYTES_MAX: Final = 1 << 30
COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_ARROW_FILE_MAGIC: Final = b"ARROW1"
_ROW_COUNT: Final = b"row_count"
_REASON_CHARACTERS_MAX: Final = 500


@contextmanager
def opened(path: str, format: str) -> Iterator[pa.RecordBatchReader]:
    """The batches of a file, or of standard input, as they are; raises ArrowInvalid when it can't be read."""
    arguments = [path if path == STDIN else str(Path(path).absolute()), format]
    # By its file, so that nothing else of this package has to be found or loaded.
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, *arguments],
        stdin=None if path == STDIN else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    with process:
        try:
            reader = _Reader(process)
            yield pa.RecordBatchReader.from_batches(reader.schema, reader.batches())
        finally:
            process.kill()


def row_count(schema: pa.Schema) -> int | None:
    """How many rows a file has, by the schema of its reader, where that is told without reading them."""
    count = (schema.metadata or {}).get(_ROW_COUNT)
    return None if count is None else int(count)


class _Reader:
    """What the process sends; it has to end by itself, and well."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        try:
            self._stream = pa.ipc.open_stream(process.stdout)
        except pa.ArrowInvalid:
            raise self._failure() from None
        self.schema: pa.Schema = self._stream.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._stream
        except (pa.ArrowInvalid, OSError):
            raise self._failure() from None
        if self._process.wait():
            raise self._failure()

    def _failure(self) -> pa.ArrowInvalid:
        assert self._process.stderr is not None
        said = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        status = self._process.wait()
        if status < 0:
            return pa.ArrowInvalid(f"it is damaged, its reader ended by {signal.Signals(-status).name}.")
        return pa.ArrowInvalid(said[-1][:_REASON_CHARACTERS_MAX] if said else f"its reader ended with status {status}.")


def uncompressed(path: str) -> Any:
    """A stream of a file's bytes, or of standard input."""
    if path == STDIN:
        return sys.stdin.buffer
    compression = COMPRESSIONS.get(Path(path).suffix.lower())
    return open(path, "rb") if compression is None else pa.CompressedInputStream(pa.OSFile(path), compression)


def _parquet(stream: IO[bytes]) -> pa.RecordBatchReader:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(stream if stream.seekable() else _kept(stream))
    metadata = {**(file.schema_arrow.metadata or {}), _ROW_COUNT: str(file.metadata.num_rows).encode()}
    schema = file.schema_arrow.with_metadata(metadata)
    batches = (batch.replace_schema_metadata(metadata) for batch in file.iter_batches(BATCH_ROWS_MAX))
    return pa.RecordBatchReader.from_batches(schema, batches)


def _arrow(stream: IO[bytes]) -> pa.RecordBatchReader:
    """The reader of an Arrow file or stream."""
    peek = getattr(stream, "peek", None)
    if peek is None or peek(len(_ARROW_FILE_MAGIC))[: len(_ARROW_FILE_MAGIC)] != _ARROW_FILE_MAGIC:
        return pa.ipc.open_stream(stream)
    file = pa.ipc.open_file(stream if stream.seekable() else _kept(stream))
    parts = (file.get_batch(index) for index in range(file.num_record_batches))
    return pa.RecordBatchReader.from_batches(file.schema, parts)


def _kept(stream: IO[bytes]) -> pa.BufferReader:
    data = stream.read(STDIN_BYTES_MAX + 1)
    if len(data) > STDIN_BYTES_MAX:
        raise pa.ArrowInvalid(f"more than {STDIN_BYTES_MAX >> 20} MiB; write it to a file and name that.")
    return pa.BufferReader(data)


def _main(path: str, format: str) -> str | None:
    """Write the batches of a file to standard output, each checked; returns what is wrong."""
    try:
        with uncompressed(path) as stream:
            reader = (_parquet if format == "parquet" else _arrow)(stream)
            with pa.ipc.new_stream(sys.stdout.buffer, reader.schema) as writer:
                for batch in reader:
                    batch.validate(full=True)
                    writer.write_batch(batch)
    except BrokenPipeError:
        return None
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        return (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip().splitlines()[0]
    return None


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
