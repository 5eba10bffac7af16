"""The process of the bystander: one request after another, each timed from call to answer.

Between two requests it pauses: it is a bystander and no load of its own. While the server answers nothing, nothing is
asked, so a stall is one long answer among many short ones; that is why the longest one counts, too.
"""

from __future__ import annotations

import gc
import json
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pyarrow as pa

import fluss.sync as fluss
from tests.kit.child import serve

DATABASE = "fluss"
KEYS = 1_000
PAUSE_S = 0.002
SELDOM_S = 1.0
WARM_UP = 300
WARM_UP_LOGINS = 5
APPENDED_BYTES = 100_000  # more than what a server takes of any connection at once
ERROR_REST_S = 0.05


class Question(ABC):
    """What is asked again and again."""

    warm_up = WARM_UP
    pause_s = PAUSE_S

    def __init__(self, address: str, options: dict[str, str]) -> None:
        self.address = address
        self.options = options

    @abstractmethod
    def ask(self, number: int) -> None:
        """One request; its answer is checked."""


class Lookups(Question):
    """Of two small tables that nobody else uses, of one of them about once a second: its store is no less in use."""

    def __init__(self, address: str, options: dict[str, str]) -> None:
        super().__init__(address, options)
        connection = fluss.connect(address, **options)
        self._often, self._seldom = (self._lookuper(connection, name) for name in ("bystander", "bystander_seldom"))
        self._next_seldom_s = 0.0

    @staticmethod
    def _lookuper(connection: fluss.FlussConnection, name: str) -> Any:
        path = fluss.TablePath(DATABASE, name)
        columns = pa.schema([("id", pa.int64()), ("text", pa.string())])
        descriptor = fluss.TableDescriptor(fluss.Schema(columns, primary_keys=["id"]), bucket_count=1)
        connection.get_admin().create_table(path, descriptor, ignore_if_exists=True)
        table = connection.get_table(path)
        with table.new_upsert().create_writer() as writer:
            writer.write_arrow(pa.table([range(KEYS), [f"text {n}" for n in range(KEYS)]], schema=columns))
        return table.new_lookup().create_lookuper()

    def ask(self, number: int) -> None:
        now_s, lookuper = time.monotonic(), self._often
        if now_s >= self._next_seldom_s:
            self._next_seldom_s, lookuper = now_s + SELDOM_S, self._seldom
        row = lookuper.lookup([number % KEYS])
        assert row == {"id": number % KEYS, "text": f"text {number % KEYS}"}, row


class Appends(Question):
    """Of more bytes than a small request has."""

    pause_s = 0.02

    def __init__(self, address: str, options: dict[str, str]) -> None:
        super().__init__(address, options)
        connection = fluss.connect(address, **options)
        path = fluss.TablePath(DATABASE, "bystander_log")
        plain = {"table.log.arrow.compression.type": "NONE"}
        descriptor = fluss.TableDescriptor(fluss.Schema(pa.schema([("blob", pa.binary())])), properties=plain)
        connection.get_admin().create_table(path, descriptor, ignore_if_exists=True)
        self._writer = connection.get_table(path).new_append().create_writer()

    def ask(self, number: int) -> None:
        self._writer.append([bytes(APPENDED_BYTES)])
        self._writer.flush()


class Logins(Question):
    """With the right password, each on a connection of its own."""

    pause_s = 0.05
    warm_up = WARM_UP_LOGINS

    def ask(self, number: int) -> None:
        with fluss.connect(self.address, **self.options) as connection:
            assert DATABASE in connection.get_admin().list_databases()


QUESTIONS: dict[str, type[Question]] = {"lookups": Lookups, "appends": Appends, "logins": Logins}


class Watch:
    """Commands of the process."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._samples: list[tuple[float, float]] = []
        self._errors: list[str] = []
        self._question: Question | None = None

    def begin(self, address: str, options: dict[str, str], question: str) -> None:
        """Make the table, warm up, and begin to ask."""
        self._question = QUESTIONS[question](address, options)
        for number in range(self._question.warm_up):
            self._question.ask(number)
        gc.collect()
        gc.freeze()
        gc.disable()
        threading.Thread(target=self._ask, args=(self._question,), daemon=True, name="bystander").start()

    def _ask(self, question: Question) -> None:
        number = 0
        while not self._stop.is_set():
            began_s = time.monotonic()
            try:
                question.ask(number)
            except Exception as error:
                # It took so long to get no answer.
                self._errors.append(f"{type(error).__name__}: {error}")
                time.sleep(ERROR_REST_S)
            self._samples.append((began_s, time.monotonic() - began_s))
            number += 1
            time.sleep(question.pause_s)
        self._stop.clear()

    def count(self) -> int:
        """How many answers there have been."""
        return len(self._samples)

    def stop(self, file: str) -> list[str]:
        """Wait for the last answer and write all times, begin and duration in seconds; returns errors."""
        self._stop.set()
        while self._stop.is_set():
            time.sleep(0.005)
        Path(file).write_text(json.dumps(self._samples))
        return self._errors


if __name__ == "__main__":
    serve(Watch())
