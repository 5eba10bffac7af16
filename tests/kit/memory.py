"""How much memory a process takes at most while something happens."""

from __future__ import annotations

import threading

import psutil

MIB = 1 << 20


class Memory:
    """The largest resident size of a server, sampled in a thread."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.before_bytes = self.peak_bytes = self._resident()

    @property
    def growth_bytes(self) -> int:
        return self.peak_bytes - self.before_bytes

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        print(f"memory: {self.before_bytes / MIB:.0f} MiB before, {self.growth_bytes / MIB:.0f} MiB more at the peak")

    def _sample(self) -> None:
        while not self._stop.wait(0.01):
            self.peak_bytes = max(self.peak_bytes, self._resident())

    def _resident(self) -> int:
        return int(self._process.memory_info().rss)
