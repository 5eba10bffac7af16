"""What the scrubber has read and found, and how far it has come: the file `server.scrub` of a data directory.

The file is disposable: without it, a pass begins anew.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from fluss.storage import files
from fluss.storage.directory import SCRUB_NAME
from fluss.storage.failpoints import Site

_log = logging.getLogger(__name__)

BYTES_PER_SECOND: Final = 4 << 20
OFF: Final = 0
INTERVAL_MS: Final = 7 * 24 * 60 * 60 * 1_000
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
