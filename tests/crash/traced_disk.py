"""What a disk may hold after a loss of power, from a trace of the system calls of a run.

RocksDB does its own I/O, so its syncs can't be replaced by ours; strace sees them. `Disk` plays the calls of a trace on
a directory held in memory and remembers what each sync made durable: the bytes of a file, the names in a directory. An
image takes, for each file and each name, what is durable, or all, or something between.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath

CALLS = "openat,write,pwrite64,fsync,fdatasync,rename,unlink,link,mkdir,rmdir,ftruncate"
STRING_BYTES_MAX = 64 << 20
RESUMED = "resumed"
_LINE = re.compile(
    r"^(?P<thread>\d+) +(?P<call>\w+)\((?P<arguments>.*?)(?:\) += (?P<result>-?\d+).*| <unfinished \.\.\.>)$"
)
_RESUMED = re.compile(r"^(?P<thread>\d+) +<\.\.\. \w+ resumed>.*\) += (?P<result>-?\d+).*$")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_DESCRIPTOR = re.compile(r"^\d+<([^>]*)>")


def can_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run([*traced(Path("/dev/null")), "true"], check=False, capture_output=True).returncode == 0


def traced(trace: Path) -> tuple[str, ...]:
    """The start of a command that leaves a trace."""
    return ("strace", "-f", "-y", "-xx", "-s", str(STRING_BYTES_MAX), "-e", f"trace={CALLS}", "-o", str(trace))


@dataclass(eq=False)
class File:
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


@dataclass(eq=False)
class Directory:
    names: dict[str, File | Directory] = field(default_factory=dict)
    durable: dict[str, File | Directory] = field(default_factory=dict)


@dataclass
class Call:
    """One that succeeded, where it began. RESUMED: the end of one that others came between."""

    thread: str
    name: str
    strings: list[bytes]
    descriptor: Path | None
    arguments: str
    is_done: bool


class Disk:
    def __init__(self, root: Path) -> None:
        self._prefix = root
        self._root = Directory()

    def play(self, calls: list[Call]) -> None:
        syncs: dict[str, tuple[File | Directory, bytes | dict[str, File | Directory]]] = {}
        for call in calls:
            if call.name == RESUMED:
                # A sync covers what was there when it began.
                if call.thread in syncs:
                    _synced(*syncs.pop(call.thread))
            elif self._concerns(call):
                if call.name in ("fsync", "fdatasync"):
                    node = self._find(call.descriptor)
                    durable = bytes(node.data) if isinstance(node, File) else dict(node.names)
                    syncs[call.thread] = (node, durable)
                    if call.is_done:
                        _synced(*syncs.pop(call.thread))
                else:
                    self._change(call)

    def listing(self) -> list[Path]:
        return sorted(_paths(self._prefix, self._root))

    def size_bytes(self, path: Path) -> int:
        """Of a file as its writer sees it; 0 when it is not there."""
        try:
            return len(_file(self._find(path)).data)
        except KeyError:
            return 0

    def write_image(self, path: Path, chance: random.Random) -> None:
        path.mkdir()
        self._write_directory(path, self._root, chance)

    def _write_directory(self, path: Path, directory: Directory, chance: random.Random) -> None:
        for name in sorted(directory.names.keys() | directory.durable.keys()):
            node = chance.choice((directory.names, directory.durable)).get(name)
            if isinstance(node, Directory):
                (path / name).mkdir()
                self._write_directory(path / name, node, chance)
            elif node is not None:
                (path / name).write_bytes(_content(node, chance))

    def _concerns(self, call: Call) -> bool:
        paths = [Path(text.decode()) for text in call.strings] if call.descriptor is None else [call.descriptor]
        if call.name == "openat" and "O_CREAT" not in call.arguments:
            return False
        if paths[-1] == self._prefix:
            return call.name == "fsync"
        return paths[-1].is_relative_to(self._prefix)

    def _change(self, call: Call) -> None:
        paths = [Path(text.decode()) for text in call.strings] if call.descriptor is None else []
        match call.name:
            case "mkdir":
                self._parent(paths[0]).names.setdefault(paths[0].name, Directory())
            case "openat":
                file = self._parent(paths[0]).names.setdefault(paths[0].name, File())
                if "O_TRUNC" in call.arguments:
                    _file(file).data.clear()
            case "write":
                _file(self._find(call.descriptor)).data += call.strings[0]
            case "pwrite64":
                position = int(call.arguments.rsplit(",", 1)[1])
                _file(self._find(call.descriptor)).data[position : position + len(call.strings[0])] = call.strings[0]
            case "ftruncate":
                data = _file(self._find(call.descriptor)).data
                size_bytes = int(call.arguments.rsplit(",", 1)[1])
                data[size_bytes:] = bytes(max(0, size_bytes - len(data)))
            case "rename":
                self._parent(paths[1]).names[paths[1].name] = self._parent(paths[0]).names.pop(paths[0].name)
            case "link":
                self._parent(paths[1]).names[paths[1].name] = self._find(paths[0])
            case "unlink" | "rmdir":
                del self._parent(paths[0]).names[paths[0].name]

    def _parent(self, path: Path) -> Directory:
        node = self._find(path.parent)
        assert isinstance(node, Directory)
        return node

    def _find(self, path: PurePath | None) -> File | Directory:
        assert path is not None
        node: File | Directory = self._root
        for name in path.relative_to(self._prefix).parts:
            assert isinstance(node, Directory)
            node = node.names[name]
        return node


def _content(file: File, chance: random.Random) -> bytes:
    """What is durable, or all, or what is durable and a part of the rest, which may be followed by zeros."""
    data = bytes(file.data)
    choice = chance.randrange(4)
    if choice == 0:
        return file.durable
    if choice == 1:
        return data
    start = len(file.durable) if data.startswith(file.durable) else 0
    kept = data[: chance.randint(start, max(start, len(data)))]
    return kept if choice == 2 else kept.ljust(len(data), b"\0")


def _file(node: File | Directory) -> File:
    assert isinstance(node, File)
    return node


def _paths(path: Path, directory: Directory) -> Iterator[Path]:
    for name, node in directory.names.items():
        yield path / name
        if isinstance(node, Directory):
            yield from _paths(path / name, node)


def read_trace(trace: Path) -> list[Call]:
    calls: list[Call] = []
    with trace.open() as lines:
        for line in lines:
            resumed = _RESUMED.match(line)
            if resumed and resumed["result"] == "0":
                calls.append(Call(resumed["thread"], RESUMED, [], None, "", is_done=True))
            found = _LINE.match(line)
            if found and not (found["result"] or "0").startswith("-"):
                calls.append(_call(found))
    return calls


def _call(found: re.Match[str]) -> Call:
    arguments = found["arguments"]
    strings = [_bytes(text) for text in _STRING.findall(arguments)]
    descriptor = None if found["call"] == "openat" else _DESCRIPTOR.match(arguments)
    path = Path(_bytes(descriptor[1]).decode()) if descriptor else None
    rest = _STRING.sub("", arguments)
    return Call(found["thread"], found["call"], strings, path, rest, is_done=found["result"] is not None)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _synced(node: File | Directory, durable: bytes | dict[str, File | Directory]) -> None:
    if isinstance(node, File):
        assert isinstance(durable, bytes)
        node.durable = durable
    else:
        assert isinstance(durable, dict)
        node.durable = durable
