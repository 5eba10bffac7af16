"""`python -m benchmarks.soak`, called by `make soak`: hours of mixed load, and whether anything grows."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from benchmarks.environment import describe
from benchmarks.soak_clients import ROLES, STOP_FILE
from benchmarks.soak_report import JUDGED_HOURS_MIN, ClientResult, draw, page, problems, trends
from benchmarks.soak_samples import Journal, columns, second_half, take, trend
from fluss.testing import FlussServer
from fluss.testing.processes import ManagedProcess, ProcessFailedError, free_ports

_ROOT = Path(__file__).parents[1]
_REPORTS = _ROOT / "docs" / "benchmarks"
_SAMPLE_S = 5.0
_LINE_S = 60.0
_KEPT_HOURS_MIN = 0.95  # of runs whose report belongs to the documentation
_PICTURE_S = 600.0
_STOP_S_MAX = 120.0
_DATA_MB_MAX = 5_000  # some hundred are normal, and the disk must not fill up
_ERROR_CHARACTERS_SHOWN = 4_000
# What takes hours elsewhere happens often here.
_SETTINGS = {
    "log.segment.file-size": 1 << 20,
    "kv.memory-bytes": 64 << 20,
    "kv.snapshot.interval-ms": 20_000,
    "log.retention.check-interval-ms": 5_000,
    "scrub.interval-ms": 600_000,
    "staging.expire-ms": 60_000,
}


class Soak:
    """One run in a folder of its own: data, logs, journal, picture."""

    def __init__(self, folder: Path, hours: float) -> None:
        self._folder = folder
        self._ends_s = hours * 3_600
        folder.mkdir(parents=True, exist_ok=True)
        settings = folder / "fluss.toml"
        settings.write_text("".join(f'"{key}" = {value}\n' for key, value in _SETTINGS.items()))
        self._metrics_port = free_ports(1)[0]
        arguments = ["--config", str(settings), "--metrics-port", str(self._metrics_port)]
        self._server = FlussServer(folder / "data", args=arguments, log_file=folder / "server.log")
        self.failed: list[str] = []
        self.journal = Journal(folder / "soak.csv", columns(ROLES))

    @property
    def picture(self) -> Path:
        return self._folder / "soak.svg"

    def server_errors(self) -> list[str]:
        """Lines of the server's log that should not be there."""
        with (self._folder / "server.log").open(errors="replace") as log:
            return [line.rstrip() for line in log if " ERROR " in line or line.startswith("Traceback")]

    def run(self) -> dict[str, ClientResult]:
        (self._folder / STOP_FILE).unlink(missing_ok=True)
        with self._server, self._clients() as clients:
            try:
                self._watch(clients)
            except KeyboardInterrupt:
                click.echo("ends early", err=True)
            except (ProcessFailedError, ProcessLookupError, FileNotFoundError) as error:
                self.failed.append(f"the server is gone: {error}")
            (self._folder / STOP_FILE).touch()
            return {name: self._result(name, client) for name, client in clients.items()}

    @contextmanager
    def _clients(self) -> Iterator[dict[str, ManagedProcess]]:
        clients: dict[str, ManagedProcess] = {}
        try:
            for name in ROLES:
                command = [sys.executable, "-m", "benchmarks.soak_clients", name]
                command += [self._server.bootstrap_servers, str(self._folder)]
                log_file = self._folder / f"{name}.log"
                clients[name] = ManagedProcess(f"client {name}", command, log_file=log_file, cwd=_ROOT)
            yield clients
        finally:
            for client in clients.values():
                client.kill()

    def _watch(self, clients: dict[str, ManagedProcess]) -> None:
        began_s = time.monotonic()
        told_s, drawn_s = 0.0, 0.0
        pids = {name: client.pid for name, client in clients.items()}
        for number in range(1, int(self._ends_s / _SAMPLE_S) + 1):
            time.sleep(max(0.0, began_s + number * _SAMPLE_S - time.monotonic()))
            self._server.process.check_running()
            elapsed_s = time.monotonic() - began_s
            self.journal.add(take(elapsed_s / 60, self._server.pid, self._metrics_port, self._server.data_dir, pids))
            if self.journal.samples[-1]["data_mb"] > _DATA_MB_MAX:
                self.failed.append(f"the data directory has more than {_DATA_MB_MAX:,} MB")
                return
            if elapsed_s - told_s >= _LINE_S:
                told_s = elapsed_s
                self._tell(clients)
            if elapsed_s - drawn_s >= _PICTURE_S:
                drawn_s = elapsed_s
                draw(self.journal.samples, self.picture)

    def _tell(self, clients: dict[str, ManagedProcess]) -> None:
        sample = self.journal.samples[-1]
        slope = trend(second_half(self.journal.samples), "rss_mb").slope
        results = [self._status(name) for name in clients]
        gone = [name for name, client in clients.items() if client.returncode is not None]
        click.echo(
            f"{sample['minutes']:6.1f} min: {sample['rss_mb']:.1f} MB ({slope:+.3f} MB/min in the second half), "
            f"{sample['descriptors']:.0f} descriptors, {sample['threads']:.0f} threads, {sample['data_files']:.0f} "
            f"files, {sample['data_mb']:.0f} MB; {sum(r.steps for r in results):,} steps, "
            f"{sum(r.rows for r in results):,} rows, {sum(r.errors for r in results)} errors"
            + (f"; ended: {', '.join(gone)}" if gone else "")
        )

    def _status(self, name: str) -> ClientResult:
        try:
            found = json.loads((self._folder / f"{name}.status").read_text())
        except FileNotFoundError:
            return ClientResult(0, 0, 0)
        return ClientResult(found["steps"], found["rows"], found["errors"])

    def _result(self, name: str, client: ManagedProcess) -> ClientResult:
        """What a client has done in the end; one that hangs or broke has one error more."""
        deadline = time.monotonic() + _STOP_S_MAX
        while client.returncode is None and time.monotonic() < deadline:
            time.sleep(0.1)
        result = self._status(name)
        if client.returncode != 0:
            click.echo(str(client.failed("did not end well")), err=True)
            return result._replace(errors=result.errors + 1)
        if result.errors:
            click.echo(f"{name}:\n{client.output()[:_ERROR_CHARACTERS_SHOWN]}", err=True)
        return result


@click.command()
@click.option("--hours", type=click.FloatRange(min=0.01), default=2.0, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="For data and journal.  [default: below build]")
@click.option(
    "--output", type=click.Path(path_type=Path), help="For the report.  [default: docs/benchmarks, of an hour or more]"
)
def main(hours: float, folder: Path | None, output: Path | None) -> None:
    """Run the load, sample the server, say whether something grew; status 1 if it did, or a client failed."""
    is_kept = folder is not None
    folder = folder or _ROOT / "build" / f"soak-{time.strftime('%Y-%m-%d-%H%M%S')}"
    click.echo(f"{hours:g} hours; follow {folder / 'soak.csv'}")
    soak = Soak(folder, hours)
    facts = describe(folder)
    results = soak.run()
    soak.journal.close()
    samples = soak.journal.samples
    elapsed_h = samples[-1]["minutes"] / 60 if samples else 0.0
    failed = [*soak.failed, *problems(samples, results, is_judged=elapsed_h >= JUDGED_HOURS_MIN)]
    if errors := soak.server_errors():
        failed.append(f"{len(errors)} errors in the server's log, the first: {errors[0][:300]}")
    draw(samples, soak.picture)
    click.echo(trends(samples))
    for name, result in results.items():
        click.echo(f"{name}: {result.steps:,} steps, {result.rows:,} rows compared, {result.errors} errors")
    target = output or (_REPORTS if elapsed_h >= _KEPT_HOURS_MIN else folder)
    _keep(target, soak.picture, page(samples, results, facts, failed, "soak-latest.svg"), folder / "soak.csv")
    click.echo(f"report: {target / 'soak-latest.md'}")
    if not failed and not is_kept:
        shutil.rmtree(folder / "data")
    for line in failed:
        click.echo(f"FAILED: {line}", err=True)
    sys.exit(1 if failed else 0)


def _keep(target: Path, picture: Path, text: str, journal: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(picture, target / "soak-latest.svg")
    shutil.copyfile(journal, target / "soak-latest.csv")
    (target / "soak-latest.md").write_text(text)


if __name__ == "__main__":
    main()
