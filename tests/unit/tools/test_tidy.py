"""tools/tidy.py on small trees, each with one thing that a rule forbids, and the tree of this project."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tools import tidy

ROOT = Path(__file__).parents[3]
Plant = Callable[[Mapping[str, str]], Path]

# Long enough for a module, and nothing that a rule is about.
FILLER = "\n".join(f"VALUE_{number} = {number}" for number in range(tidy.MODULE_LINES_MIN))


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Makes a tree of modules below src/fluss; a text that has no line break gets the length of a module."""

    def made(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / "src" / "fluss" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            init = path.parent / "__init__.py"
            if not init.exists():
                init.write_text('"""A folder."""\n')
            path.write_text(text if "\n" in text else f"{text}\n{FILLER}\n")
        return tmp_path

    return made


def except_(root: Path, text: str) -> None:
    path = root / tidy.EXCEPTIONS
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_a_clean_tree_has_no_problems(plant: Plant) -> None:
    assert tidy.problems(plant({"client/writer.py": "import os", "model/paths.py": "class TablePath: ..."})) == []


def test_a_small_module_needs_a_reason(plant: Plant) -> None:
    root = plant({"client/tiny.py": "VALUE = 1\n"})
    (problem,) = tidy.problems(root)
    assert problem.startswith("src/fluss/client/tiny.py:1: module-small: 1 lines, 80 at least: merge it")
    plant({"client/tiny.py": '"""One value.\n\nSmall on purpose: everybody loads it.\n"""\nVALUE = 1\n'})
    assert tidy.problems(root) == []
    plant({"client/tiny.py": "# Small on purpose: everybody loads it.\nVALUE = 1\n"})
    assert tidy.problems(root) == []
    plant({"client/tiny.py": "# Small on purpose:\nVALUE = 1\n"})
    assert len(tidy.problems(root)) == 1  # a reason, not the words alone


def test_entries_of_packages_may_be_small(plant: Plant) -> None:
    assert tidy.problems(plant({"cli/__main__.py": "pass\n"})) == []


@pytest.mark.parametrize(
    ("lines", "reason", "wrong"), [(600, "", False), (601, "", True), (900, "a list", False), (901, "a list", True)]
)
def test_a_large_module_needs_a_reason_and_has_a_limit(plant: Plant, lines: int, reason: str, wrong: bool) -> None:
    text = f"# Large on purpose: {reason}\n" + "VALUE = 1\n" * (lines - 1)
    found = tidy.problems(plant({"client/long.py": text}))
    assert [problem.split(": ")[1] for problem in found] == ["module-large"] * wrong


def test_the_tree_has_a_bounded_number_of_modules(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidy, "TREE_MODULES_MAX", 3)
    root = plant({f"client/module_{number}.py": "" for number in range(3)})  # the folder's own file does not count
    assert tidy.problems(root) == []
    plant({"model/one_more.py": ""})
    (problem,) = tidy.problems(root)
    assert problem.startswith("src: tree-modules: 4 modules, 3 at most")


def test_a_folder_has_at_most_eighteen_modules(plant: Plant) -> None:
    root = plant({f"client/module_{number}.py": "" for number in range(18)})
    assert tidy.problems(root) == []
    plant({"client/one_more.py": ""})
    (problem,) = tidy.problems(root)
    assert problem.startswith("src/fluss/client: folder-modules: 19 modules, 18 at most")


def test_a_folder_says_what_it_holds(plant: Plant) -> None:
    root = plant({"client/writer.py": ""})
    (root / "src/fluss/client/__init__.py").write_text("")
    (problem,) = tidy.problems(root)
    assert problem.startswith("src/fluss/client/__init__.py:1: folder-docstring:")


def test_a_function_fits_on_a_screen(plant: Plant) -> None:
    body = "class Writer:\n    async def flush(self):\n" + "        pass\n" * 70 + FILLER
    (problem,) = tidy.problems(plant({"client/writer.py": body}))
    assert problem.startswith("src/fluss/client/writer.py:2: function-long: Writer.flush has 71 lines, 70 at most")


def test_a_class_name_stands_for_one_thing(plant: Plant) -> None:
    twice = {"client/pool.py": "class Pool: ...", "storage/pool.py": "class Pool: ...", "lake/x.py": "class _Pool: ..."}
    (problem,) = tidy.problems(plant(twice))
    assert problem.startswith(
        "src/fluss/client/pool.py:1: class-name: the class name Pool is also used in src/fluss/sto"
    )


def test_facades_share_their_names(plant: Plant) -> None:
    assert tidy.problems(plant({"api/table.py": "class Table: ...", "api/table_sync.py": "class Table: ..."})) == []


@pytest.mark.parametrize(
    "link",
    [
        "from fluss.client.writer import Writer",
        "from fluss.client import writer",
        "import fluss.client.writer",
        "from . import writer",
        "def late():\n    from .writer import Writer\n" + FILLER,
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fluss.client.writer import Writer\n" + FILLER,
    ],
)
def test_modules_of_a_package_import_each_other_in_no_circle(plant: Plant, link: str) -> None:
    root = plant({"client/writer.py": "from fluss.client.sender import Sender", "client/sender.py": link})
    (problem,) = tidy.problems(root)
    assert ": cycle: modules import each other in circles (2: sender writer)" in problem


def test_cycles_are_counted_by_their_members(plant: Plant) -> None:
    ring = {f"client/m{number}.py": f"from fluss.client import m{(number + 1) % 40}" for number in range(40)}
    root = plant({**ring, "client/user.py": "from fluss.client import m0"})
    except_(root, '[folder-modules]\n"src/fluss/client" = 41\n[cycle]\n"fluss.client" = 39\n')
    (problem,) = tidy.problems(root)
    assert "(40: m0 m1 " in problem
    assert problem.endswith("(39 are excepted)")


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("clock", "import time; now = time.monotonic()"),
        ("clock", "from time import perf_counter as counter; now = counter()"),
        ("clock", "import datetime as dt; now = dt.datetime.now()"),
        ("clock", "from datetime import datetime; now = datetime.now()"),
        ("clock", "import time; wait = dict(sleep=time.sleep)"),
        ("clock", "from fluss.doors.clock import monotonic"),  # would be kept
        ("randomness", "from fluss.doors.randomness import chance"),
        ("randomness", "import os; key = os.urandom(8)"),
        ("randomness", "from secrets import token_hex; key = token_hex()"),
        ("randomness", "import uuid; name = f'{uuid.uuid4()}.parquet'"),
        ("threads", "import threading; threading.Thread(target=print)"),
        ("threads", "from fluss.doors.threads import pool"),
        ("threads", "from concurrent.futures import ThreadPoolExecutor; pool = ThreadPoolExecutor(1)"),
        ("sockets", "import socket; end = socket.socket()"),
        ("sockets", "from fluss.doors.sockets import connect"),
        ("sockets", "import asyncio; ends = asyncio.open_connection('', 1)"),
        ("sockets", "async def connect(loop): return await loop.create_connection(object, '', 1)"),
        ("sockets", "import asyncio; end = asyncio.get_running_loop().create_server(object)"),
    ],
)
def test_doors(plant: Plant, rule: str, text: str) -> None:
    (problem,) = tidy.problems(plant({"client/writer.py": text}))
    assert problem.startswith(f"src/fluss/client/writer.py:1: {rule}: ")


def test_only_storage_needs_the_door_to_the_disk(plant: Plant) -> None:
    text = "import os; os.fsync(3); file = open('x'); __import__('pathlib').Path('x').write_text('')"
    root = plant({"storage/log.py": text, "storage/files.py": text, "cli/output.py": text})
    (problem,) = tidy.problems(root)
    assert problem.startswith(
        "src/fluss/storage/log.py:1: disk: the disk used directly in line 1, 1, 1: go through fluss"
    )


def test_doors_themselves_and_tools_of_measurement_are_free(plant: Plant) -> None:
    text = "import time; now = time.time()"
    assert tidy.problems(plant({"doors/clock.py": text, "bench/bench.py": text, "testing/processes.py": text})) == []


@pytest.mark.parametrize(
    "text",
    [
        "import random; chance = random.Random(7)",  # says what comes
        "import socket; family = socket.AF_INET",
        "import socket\nheld: socket.socket | None = None\n" + FILLER,
        "import socket\ndef close(held: socket.socket) -> socket.socket: ...\n" + FILLER,
        "def read(time, open=None): return time.monotonic()",  # another's clock
        "import asyncio; now = asyncio.get_running_loop().time()",
        "from fluss.doors import clock; now = clock.monotonic()",
    ],
)
def test_what_is_no_use_of_a_door(plant: Plant, text: str) -> None:
    assert tidy.problems(plant({"client/writer.py": text})) == []


@pytest.mark.parametrize("text", ["from tests.crash.test_kill import HEAL_S_MAX", "from tests.crash import test_kill"])
def test_nothing_is_imported_from_a_test_module(plant: Plant, text: str) -> None:
    root = plant({"client/writer.py": "import os"})
    (root / "tests" / "crash").mkdir(parents=True)
    (root / "tests" / "crash" / "test_kv_kill.py").write_text(
        f"import os\nfrom tests.crash.kills import WAIT_S\n{text}\n"
    )
    (problem,) = tidy.problems(root)
    assert problem.startswith("tests/crash/test_kv_kill.py:3: test-import: imports from tests.crash")


def test_exceptions_allow_what_they_name_and_no_more(plant: Plant) -> None:
    root = plant({"client/writer.py": "import time; a = time.time(), time.time()"})
    except_(root, '[clock]\n"src/fluss/client/writer.py" = 2\n')
    assert tidy.problems(root) == []
    except_(root, '[clock]\n"src/fluss/client/writer.py" = 1\n')
    assert [problem.endswith("(1 are excepted)") for problem in tidy.problems(root)] == [True]


def test_exceptions_that_are_not_needed_are_problems(plant: Plant) -> None:
    root = plant({"client/writer.py": "import time; a = time.time(), time.time()"})
    except_(root, '[module-small]\nkeys = ["src/fluss/gone.py"]\n\n[clock]\n"src/fluss/client/writer.py" = 3\n')
    gone, lower = tidy.problems(root)
    assert gone.endswith("module-small: the exception for src/fluss/gone.py is not needed any more: remove it")
    assert lower.endswith("clock: the exception for src/fluss/client/writer.py is not needed any more: write 2")
    assert tidy.problems(root, prune=True) == []
    assert (root / tidy.EXCEPTIONS).read_text() == tidy.HEADER + '\n\n[clock]\n"src/fluss/client/writer.py" = 2\n'


def test_exceptions_of_lengths_bear_small_edits(plant: Plant) -> None:
    root = plant({"client/long.py": "VALUE = 1\n" * 950})
    except_(root, '[module-large]\n"src/fluss/client/long.py" = 1000\n')
    assert tidy.problems(root) == []
    plant({"client/long.py": "VALUE = 1\n" * 900})
    (problem,) = tidy.problems(root)
    assert problem.endswith("write 900")


def test_pruning_adds_nothing(plant: Plant) -> None:
    root = plant({"client/writer.py": "import time; a = time.time(), time.time()", "client/tiny.py": "VALUE = 1\n"})
    except_(root, '[clock]\n"src/fluss/client/writer.py" = 1\n')
    assert len(tidy.problems(root, prune=True)) == 2


def test_an_unknown_rule_is_named(plant: Plant) -> None:
    root = plant({"client/writer.py": ""})
    except_(root, '[clocks]\n"src/fluss/client/writer.py" = 3\n')
    with pytest.raises(SystemExit, match=r"no such rule: clocks\. There are: tree-modules"):
        tidy.problems(root)


def git(root: Path, *arguments: str) -> None:
    who = ["-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


def test_commits_have_short_subjects_and_no_new_exceptions(plant: Plant) -> None:
    root = plant({"client/writer.py": "import time; a = time.time(), time.time()"})
    except_(root, '[clock]\n"src/fluss/client/writer.py" = 2\n')
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "A" * 100)
    git(root, "tag", "base")
    git(root, "commit", "-q", "--allow-empty", "-m", "B" * 72)
    assert tidy.problems(root, "base") == []
    plant({"client/sender.py": "import time; a = time.time()"})
    except_(root, '[clock]\n"src/fluss/client/writer.py" = 2\n"src/fluss/client/sender.py" = 1\n')
    git(root, "commit", "-q", "--allow-empty", "-m", "C" * 73)
    subject, grown = tidy.problems(root, "base")
    assert "commit-subject: 73 characters, 72 at most" in subject
    assert "clock: 3 in all, 2 at base: it may only shrink" in grown


def test_an_unknown_base_is_an_error(plant: Plant) -> None:
    root = plant({"client/writer.py": ""})
    git(root, "init", "-q")
    with pytest.raises(SystemExit, match=r"git log .* failed"):
        tidy.problems(root, "nowhere")


def test_this_project_is_tidy() -> None:
    assert tidy.problems(ROOT) == []
