"""Files read at a bounded rate to see whether they are still what was written, and the report of it, `server.scrub`.

Files are read in a thread. Bytes that nobody else reads are asked from the disk and not from the page cache, and leave
the page cache as it was. A file that is gone raises FileNotFoundError; whether that is right is the caller's to say.

The report says what the scrubber has read and found, and how far it has come. It is disposable: without it, a pass
begins anew.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from fluss.doors import clock, threads
from fluss.formats.batches.log_batch import crc32c, head_checksum
from fluss.model.errors import CorruptDataError
from fluss.storage import files
from fluss.storage.directory import SCRUB_NAME
from fluss.storage.failpoints import Site
from fluss.storage.kv.rocks_files import (
    CURRENT_NAME,
    DamagedRocksFileError,
    StoreManifest,
    UnknownEditError,
    check_table,
    manifest_name,
    table_name,
)
from fluss.storage.log.index import Checkpoint, CorruptBatchError, OffsetIndex, scan
from fluss.storage.log.marks import UNKNOWN_HEADS
from fluss.storage.log.segment import INDEX_SUFFIX, segment_path

_log = logging.getLogger(__name__)

FINDINGS_MAX: Final = 1_000
_VERSION: Final = 1

# What is scrubbed at a time, in order: table id, partition id, bucket id; with negative numbers for what is no bucket.
UnitKey: TypeAlias = tuple[int, int, int]
BEFORE_ALL: Final[UnitKey] = (-2, 0, 0)


class ScrubFinding(NamedTuple):
    """A damaged file."""

    unit: UnitKey
    file: str  # below the data directory
    reason: str
    advice: str
    found_ms: int
    pass_number: int
    is_mended: bool = False  # what it was part of was made anew


@dataclass(slots=True)
class ScrubReport:
    """The pass under way, if any, the last one that was finished, and what is damaged."""

    pass_number: int = 0  # of the pass that began last; 0: none ever did
    started_ms: int = 0  # of the same
    done: UnitKey | None = None  # the last unit of the pass under way that is done; None: no pass is under way
    # A bucket of which some segments are done, and the base offset of the last of those.
    partly: tuple[UnitKey, int] | None = None
    seconds: float = 0.0  # of the pass under way
    size_bytes: int = 0
    last_ended_ms: int = 0  # of the last pass that was finished; 0: none was
    last_seconds: float = 0.0
    last_size_bytes: int = 0
    findings: list[ScrubFinding] = field(default_factory=list)

    def begin(self, now_ms: int) -> None:
        self.pass_number += 1
        self.started_ms = now_ms
        self.done, self.partly = BEFORE_ALL, None
        self.seconds, self.size_bytes = 0.0, 0

    def end(self, now_ms: int) -> None:
        self.last_ended_ms, self.last_seconds, self.last_size_bytes = now_ms, self.seconds, self.size_bytes
        self.done = self.partly = None

    def forget(self, findings: Iterable[ScrubFinding]) -> None:
        """Forget findings of what was looked at anew; the new ones may be equal."""
        gone = set(map(id, findings))
        self.findings = [finding for finding in self.findings if id(finding) not in gone]

    def add(self, finding: ScrubFinding) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)

    def mend(self, mended: Iterable[ScrubFinding | None]) -> None:
        """Note that what these were found in was made anew."""
        gone = set(mended)
        self.findings = [one._replace(is_mended=True) if one in gone else one for one in self.findings]

    @property
    def damaged(self) -> list[ScrubFinding]:
        return [finding for finding in self.findings if not finding.is_mended]

    def encode(self) -> bytes:
        content = {"version": _VERSION, **asdict(self)}
        return json.dumps({"crc32": _crc(content), "report": content}).encode()


def read_report(root: Path) -> ScrubReport | None:
    """The report in a data directory; None where there is none that can be used."""
    try:
        content = json.loads((root / SCRUB_NAME).read_bytes())
        return _decode(content["report"]) if content["crc32"] == _crc(content["report"]) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _crc(content: dict[str, Any]) -> int:
    return crc32(json.dumps(content).encode())


def _decode(content: dict[str, Any]) -> ScrubReport:
    if content.pop("version") != _VERSION:
        raise ValueError("another version")
    report = ScrubReport(**content)
    done, partly = report.done, report.partly
    return replace(
        report,
        done=None if done is None else _unit(done),
        partly=None if partly is None else (_unit(partly[0]), int(partly[1])),
        findings=[ScrubFinding(_unit(one[0]), *one[1:]) for one in report.findings],
    )


def _unit(numbers: Iterable[int]) -> UnitKey:
    table_id, partition_id, bucket_id = map(int, numbers)
    return table_id, partition_id, bucket_id


def write_report(root: Path, data: bytes) -> None:
    """Put a report in place; that it can't be written costs a pass its place after a restart."""
    try:
        files.replace(root / SCRUB_NAME, data, Site.SCRUB_REPORT, durable=False)
    except OSError as error:
        _log.warning("%s could not be written: %s", root / SCRUB_NAME, error)


CHUNK_BYTES: Final = 256 << 10  # read at a time
_MANIFEST_LOOKS: Final = 3  # a database that is opened in this moment gets another manifest
_CRC_BYTES: Final = 4
_UNBOUNDED_BYTES_PER_SECOND: Final = 1 << 50
_TRANSIENT_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class FileDamage(NamedTuple):
    """What is wrong with a file; the reason has the position, where there is one."""

    path: Path
    reason: str


class ScrubStoppedError(Exception):
    """The server stops."""


class ScrubPace:
    """Lets bytes through at a rate: a chunk waits until those before it have had their time. Idle time is not saved."""

    def __init__(
        self,
        bytes_per_second: int,
        monotonic: Callable[[], float] | None = None,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """`wait` sleeps for seconds and tells whether to stop; without one, `stop` ends a wait."""
        self._bytes_per_second = bytes_per_second
        self._monotonic = monotonic or clock.monotonic
        self._stopping = threads.event()
        self._wait = wait or self._stopping.wait
        self._free_at_s = self._monotonic()
        self.taken_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Return when so many bytes may be read."""
        now_s = self._monotonic()
        begin_s = max(now_s, self._free_at_s)
        self._free_at_s = begin_s + size_bytes / self._bytes_per_second
        if (begin_s > now_s and self._wait(begin_s - now_s)) or self._stopping.is_set():
            raise ScrubStoppedError
        self.taken_bytes += size_bytes

    def stop(self) -> None:
        """End all waits, now and from now on."""
        self._stopping.set()


class PacedFile:
    """A file that is read at a pace."""

    def __init__(self, path: Path, pace: ScrubPace, *, is_cold: bool) -> None:
        self.path = path
        self._pace = pace
        self._is_cold = is_cold  # nobody else reads it
        if not stat.S_ISREG(os.stat(path).st_mode):
            # Whoever opens a pipe waits.
            raise OSError(errno.EINVAL, "it is not a file")
        self._fd = files.open_existing(path, writable=False)
        status = os.fstat(self._fd)
        self.size_bytes = status.st_size
        self.identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
        if is_cold:
            files.forget_cached(self._fd, 0, 0)

    def __enter__(self) -> PacedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        files.close(self._fd)

    def read_at(self, size_bytes: int, position: int) -> bytes:
        """Read at the bounded rate, otherwise as `files.read_at` does."""
        chunks = []
        for start in range(position, position + size_bytes, CHUNK_BYTES):
            wanted_bytes = min(CHUNK_BYTES, position + size_bytes - start)
            self._pace.take(wanted_bytes)
            chunks.append(files.read_at(self._fd, wanted_bytes, start))
            if self._is_cold:
                files.forget_cached(self._fd, start, wanted_bytes)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """All of it."""
        for position in range(start, self.size_bytes, CHUNK_BYTES):
            yield self.read_at(min(CHUNK_BYTES, self.size_bytes - position), position)

    def read_from(self, _: int, size_bytes: int, position: int) -> bytes:
        """Read at the bounded rate, for callers that pass a descriptor."""
        return self.read_at(size_bytes, position)


def damage_of(path: Path, check: Callable[[], str | None]) -> FileDamage | None:
    """What a check says of a file, or the disk; FileNotFoundError when it is gone."""
    try:
        reason = check()
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _TRANSIENT_ERRNOS:
            raise
        reason = f"can't be read: {files.reason(error)}"
    return None if reason is None else FileDamage(path, reason)


def check_segment(
    file: PacedFile, base_offset: int, end_position: int | None, end_offset: int, heads_checksum: int
) -> str | None:
    """Compare the checksums of all batches up to a position, or all; `end_offset` follows them.

    The checksum of their heads, which a batch's own leaves out, is in the index of a sealed segment.
    """
    end = file.size_bytes if end_position is None else end_position
    if file.size_bytes < end:
        return f"the file has {file.size_bytes} bytes and had {end}"
    offset, heads = base_offset, 0
    try:
        for _, header in scan(-1, file.path, 0, end, base_offset, verify=True, read_at=file.read_from):
            offset = header.next_offset
            heads = head_checksum(header, header.base_offset, header.commit_timestamp_ms, heads)
    except CorruptBatchError as error:
        return error.message.partition(": ")[2]
    if offset != end_offset:
        return f"the file ends at offset {offset}, {end_offset} should follow at byte {end}"
    if end_position is None:
        heads_checksum = _sealed_heads(file, base_offset)
    if heads_checksum not in (UNKNOWN_HEADS, heads):
        return f"the checksum of commit times and offsets before byte {end} does not fit"
    return None


def _sealed_heads(file: PacedFile, base_offset: int) -> int:
    checkpoint = read_checkpoint(file.path.parent, base_offset)
    if checkpoint is None or checkpoint.size_bytes != file.size_bytes:
        return UNKNOWN_HEADS
    return checkpoint.heads_checksum or UNKNOWN_HEADS


def read_checkpoint(directory: Path, base_offset: int) -> Checkpoint | None:
    """What the index of a segment says of it; None without an index that can be used."""
    try:
        data = segment_path(directory, base_offset, INDEX_SUFFIX).read_bytes()
    except OSError:
        return None
    loaded = OffsetIndex.decode(data, base_offset)
    return None if loaded is None else loaded[1]


def check_staged(file: PacedFile) -> str | None:
    """A staged request begins with the checksum of what follows."""
    expected = int.from_bytes(file.read_at(_CRC_BYTES, 0), "little")
    crc = 0
    for chunk in file.chunks(_CRC_BYTES):
        crc = crc32c(chunk, crc)
    return None if crc == expected and file.size_bytes > _CRC_BYTES else "the checksum of the staged rows does not fit"


def check_lake_offsets(file: PacedFile, table_id: int) -> str | None:
    """The offsets of a lake snapshot."""
    from fluss.storage import lake_offsets

    try:
        lake_offsets.decode(b"".join(file.chunks()), table_id, file.path.name)
    except CorruptDataError as error:
        return error.message.partition(": ")[2]
    return None


def file_crc32(file: PacedFile) -> tuple[int, int]:
    """Size and CRC-32, as the mark of the catalog has them."""
    crc = 0
    for chunk in file.chunks():
        crc = zlib.crc32(chunk, crc)
    return file.size_bytes, crc


def database_damages(snapshot: Path) -> list[FileDamage]:
    """What is wrong with the files of a snapshot, read as fast as the disk can."""
    try:
        return DatabaseCheck(ScrubPace(_UNBOUNDED_BYTES_PER_SECOND)).run(snapshot, is_snapshot=True, is_open=True)
    except FileNotFoundError:
        return [FileDamage(snapshot / CURRENT_NAME, "the file is missing")]


class _DamagedDatabaseError(Exception):
    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.damage = FileDamage(path, reason)


class DatabaseCheck:
    """Checks RocksDB databases that share files by hard links: each file is read once."""

    def __init__(self, pace: ScrubPace) -> None:
        self._pace = pace
        self._seen: dict[tuple[int, ...], str | None] = {}

    def run(self, directory: Path, *, is_snapshot: bool, is_open: bool) -> list[FileDamage]:
        """What is wrong with a database; FileNotFoundError when it is gone.

        Whoever has it, or the one it has files from, open reads its files, too. A snapshot has no writer: its manifest
        does not end within a record.
        """
        try:
            name, manifest = self._read_manifest(directory)
        except _DamagedDatabaseError as error:
            return [error.damage]
        if manifest is None:
            return []
        damages = []
        if is_snapshot and manifest.cut_at is not None:
            damages.append(FileDamage(directory / name, f"damaged at byte {manifest.cut_at}: a record is cut off"))
        for number, size_bytes in manifest.tables.items():
            damage = self._check(directory / table_name(number), size_bytes, is_snapshot, is_open)
            if damage is not None and (is_snapshot or self._has_table(directory, number)):
                damages.append(damage)
        return damages

    def _check(self, path: Path, size_bytes: int, is_snapshot: bool, is_open: bool) -> FileDamage | None:
        try:
            is_read = is_open and not (is_snapshot and os.stat(path).st_nlink == 1)
            return damage_of(path, lambda: self._check_table(path, size_bytes, is_cold=not is_read))
        except FileNotFoundError:
            return FileDamage(path, "the file is missing")

    def _check_table(self, path: Path, size_bytes: int, *, is_cold: bool) -> str | None:
        with PacedFile(path, self._pace, is_cold=is_cold) as file:
            if file.size_bytes != size_bytes:
                return f"the file has {file.size_bytes} bytes and should have {size_bytes}"
            if file.identity not in self._seen:
                try:
                    check_table(file.read_at, size_bytes)
                    self._seen[file.identity] = None
                except DamagedRocksFileError as error:
                    self._seen[file.identity] = str(error)
            return self._seen[file.identity]

    def _read_manifest(self, directory: Path) -> tuple[str, StoreManifest | None]:
        """The manifest of a database, with its name; None for one of a RocksDB that this program does not know."""
        path = directory / CURRENT_NAME
        for _ in range(_MANIFEST_LOOKS):
            path = directory / CURRENT_NAME
            try:
                name = manifest_name(self._read(path))
                path = directory / name
                return name, StoreManifest(self._read(path))
            except DamagedRocksFileError as error:
                raise _DamagedDatabaseError(path, str(error)) from None
            except UnknownEditError:
                return path.name, None
            except FileNotFoundError:
                # If it was opened in this moment, it has another manifest now.
                if path.name == CURRENT_NAME:
                    raise
        raise _DamagedDatabaseError(path, f"the file is missing, or {CURRENT_NAME} should not name it")

    def _read(self, path: Path) -> bytes:
        with PacedFile(path, self._pace, is_cold=False) as file:
            return b"".join(file.chunks())

    def _has_table(self, directory: Path, number: int) -> bool:
        """Whether a store still has a table that was found damaged: compaction and rebuilds remove tables."""
        try:
            _, manifest = self._read_manifest(directory)
        except (OSError, _DamagedDatabaseError):
            return False
        return manifest is not None and manifest.cut_at is None and number in manifest.tables
