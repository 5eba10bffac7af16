"""What `fluss doctor` tells of the server's scrubber: when it read the directory, and what it found."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fluss.cli.doctor.findings import Finding, ok, problem, warning
from fluss.cli.text.progress import size_text

if TYPE_CHECKING:
    from fluss.storage.damage.scrub_files import ScrubFinding, ScrubReport

_NAMED_MAX: Final = 20
_CHECK: Final = "scrub"


def scrub_findings(root: Path) -> Iterator[Finding]:
    """The last scrub of a directory; nothing where there was none yet."""
    from fluss.storage.damage.scrub_files import read_report

    report = read_report(root)
    if report is None:
        return
    yield ok(_CHECK, _summary(report))
    for finding in report.findings[:_NAMED_MAX]:
        yield _finding(root, finding)
    if len(report.findings) > _NAMED_MAX:
        text = f"{len(report.findings) - _NAMED_MAX} more files were found damaged"
        yield problem(_CHECK, text, "The log of the server has all of them.")


def _summary(report: ScrubReport) -> str:
    texts = []
    if report.last_ended_ms:
        size, ended = size_text(report.last_size_bytes), _time(report.last_ended_ms)
        texts.append(f"last one ended {ended}, {size} read in {report.last_seconds:.0f} s")
    if report.done is not None:
        texts.append(f"one that began {_time(report.started_ms)} is under way, {size_text(report.size_bytes)} read")
    return "; ".join(texts) or "none has ended yet"


def _finding(root: Path, finding: ScrubFinding) -> Finding:
    text = f"{finding.file}: {finding.reason} (found {_time(finding.found_ms)})"
    if finding.is_mended:
        return warning(_CHECK, f"{text}; it was replaced", "Have a look at the disk: it loses what it was given.")
    if _changed_since(root / finding.file, finding):
        return warning(_CHECK, f"{text}; it was changed or removed since", "The server looks again after its start.")
    return problem(_CHECK, text, f"{finding.advice}.")


def _changed_since(path: Path, finding: ScrubFinding) -> bool:
    try:
        return path.stat().st_mtime_ns // 1_000_000 > finding.found_ms
    except FileNotFoundError:
        return "missing" not in finding.reason


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1_000).astimezone().isoformat(sep=" ", timespec="seconds")
