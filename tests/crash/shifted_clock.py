"""The wall clock of a server process, moved at will: a library that is loaded before libc adds what a file says."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

_VARIABLE = "FLUSS_TEST_CLOCK"
_OFFSET = struct.Struct("=q")  # milliseconds

_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;

__attribute__((constructor)) static void open_shift(void) {
    const char *path = getenv("FLUSS_TEST_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *at = mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) shift = at;
    close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (failed || !shift || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
    int64_t ms = *shift;
    now->tv_sec += ms / 1000;
    now->tv_nsec += ms % 1000 * 1000000;
    if (now->tv_nsec < 0) { now->tv_nsec += 1000000000; now->tv_sec--; }
    if (now->tv_nsec >= 1000000000) { now->tv_nsec -= 1000000000; now->tv_sec++; }
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (where) *where = exact.tv_sec;
    return exact.tv_sec;
}
"""


class ShiftedClock:
    """`env` is for the process; `set` moves its clock away from this process's."""

    def __init__(self, directory: Path) -> None:
        source, library = directory / "shifted_clock.c", directory / "shifted_clock.so"
        source.write_text(_SOURCE)
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self._path = directory / "shift"
        self._path.write_bytes(_OFFSET.pack(0))
        self.env = {"LD_PRELOAD": str(library), _VARIABLE: str(self._path)}

    def set(self, ahead_ms: int) -> None:
        """Show a time that is so far ahead of the right one from now on."""
        # In place: the process has this file mapped.
        with self._path.open("r+b") as file:
            file.write(_OFFSET.pack(ahead_ms))
