"""A Kafka broker on loopback, fetched with Maven: broker and controller in one process, one replica of everything."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

from fluss.testing.apache import fetch_jars
from fluss.testing.processes import LOOPBACK, POLL_INTERVAL_S, ManagedProcess, free_ports

KAFKA_VERSION = "4.3.1"
_ARTIFACTS = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",)
_CLUSTER_ID = "flussbettbenchmarkrunA"  # any 16 bytes in Base64
# What its own scripts give it.
_JVM_OPTIONS = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:-UsePerfData")
_START_TIMEOUT_S = 60.0


class KafkaBroker:
    """One broker whose files are all below `folder`; its settings are those it ships with, flushing included."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._controller_port = free_ports(2)
        self._process: ManagedProcess | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    def __enter__(self) -> KafkaBroker:
        self._folder.mkdir(parents=True)
        settings = self._folder / "server.properties"
        settings.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()))
        formatting = self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(settings))
        done = subprocess.run(formatting, capture_output=True, text=True, timeout=_START_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"Kafka's storage could not be formatted: {(done.stdout + done.stderr)[-2000:]}")
        command = self._java("kafka.Kafka", str(settings))
        self._process = ManagedProcess("Kafka", command, log_file=self._folder / "broker.log")
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()

    def _settings(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{LOOPBACK}:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{LOOPBACK}:{self._port},CONTROLLER://{LOOPBACK}:{self._controller_port}",
            "log.dirs": str(self._folder / "data"),
            "offsets.topic.replication.factor": "1",
        }

    def _java(self, *arguments: str) -> list[str]:
        java = shutil.which("java")
        if java is None:
            raise RuntimeError("a Java 17 runtime (java) is needed to run Kafka and is not on the PATH")
        # Native libraries are unpacked there; a killed JVM would leave them behind.
        temporary = f"-Djava.io.tmpdir={self._folder}"
        return [java, *_JVM_OPTIONS, temporary, "-cp", f"{fetch_jars('kafka', _ARTIFACTS)}/*", *arguments]

    def _wait_until_ready(self, process: ManagedProcess) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            process.check_running()
            try:
                socket.create_connection((LOOPBACK, self._port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise process.failed(f"was not ready within {_START_TIMEOUT_S:g} s") from None
                time.sleep(POLL_INTERVAL_S)
