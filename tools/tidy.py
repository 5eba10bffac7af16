"""Checks the rules of docs/style.md that a program can check: `python -m tools.tidy`, a part of `make check`.

What does not keep a rule yet is in tidy-exceptions.toml. That list may only shrink: the check fails for anything new
that is wrong, and for an exception that is not needed any more.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeGuard

EXCEPTIONS: Final = Path("tools", "tidy-exceptions.toml")

TREE_MODULES_MAX: Final = 320
FOLDER_MODULES_MAX: Final = 18
MODULE_LINES_MIN, MODULE_LINES_MAX, MODULE_LINES_LIMIT = 80, 600, 900
FUNCTION_LINES_MAX: Final = 70
SUBJECT_LENGTH_MAX: Final = 72
SMALL, LARGE = "Small on purpose:", "Large on purpose:"
_REASON: Final = re.compile(rf"^(?:# )?({SMALL}|{LARGE}) \S", re.MULTILINE)


class Door(NamedTuple):
    """The only module that may use something directly, and what that is."""

    what: str
    names: frozenset[str]
    """Full names of functions and classes"""
    methods: frozenset[str] = frozenset()
    """Names of methods of whatever object"""
    module: str | None = None
    """The module that is the door; None while there is none"""
    packages: frozenset[str] | None = None
    """The packages that have to use it; None: all of them"""


def _names(module: str, names: str) -> frozenset[str]:
    return frozenset(f"{module}.{name}" for name in names.split())


DOORS: Final = {
    "clock": Door(
        "the clock",
        _names("time", "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns clock_gettime sleep")
        | _names("datetime", "datetime.now datetime.utcnow datetime.today date.today"),
        module="fluss.doors.clock",
    ),
    "randomness": Door(
        "randomness",
        _names("random", "random randrange randint choice choices sample shuffle uniform SystemRandom")
        | _names("secrets", "token_bytes token_hex token_urlsafe randbits randbelow choice SystemRandom")
        | _names("uuid", "uuid1 uuid4")
        | {"os.urandom"},
        module="fluss.doors.randomness",
    ),
    "threads": Door(
        "threads",
        _names("threading", "Thread Timer Lock RLock Condition Event Semaphore BoundedSemaphore Barrier")
        | _names("concurrent.futures", "ThreadPoolExecutor ProcessPoolExecutor")
        | {"asyncio.to_thread", "asyncio.new_event_loop", "asyncio.run", "concurrent.futures.wait"},
        module="fluss.doors.threads",
    ),
    "sockets": Door(
        "sockets",
        _names("socket", "socket socketpair fromfd create_connection create_server getaddrinfo")
        | _names("asyncio", "open_connection start_server open_unix_connection start_unix_server"),
        frozenset({"create_connection", "create_server", "create_unix_connection", "create_unix_server"}),
        "fluss.doors.sockets",
    ),
    "disk": Door(
        "the disk",
        _names("os", "open write pwrite replace rename unlink remove mkdir makedirs rmdir link symlink truncate")
        | _names("os", "ftruncate fsync fdatasync")
        | _names("shutil", "copy copy2 copyfile copytree move rmtree")
        | {"open"},
        frozenset({"write_text", "write_bytes", "unlink", "touch", "mkdir", "rmdir", "hardlink_to", "symlink_to"}),
        "fluss.storage.files",
        frozenset({"storage"}),
    ),
}
# They time and start real processes: a simulated clock or network would be of no use to them.
WITHOUT_DOORS: Final = frozenset({"fluss.bench", "fluss.testing", "pytest_fluss"})
# The same names in every facade are its purpose.
FACADES: Final = "api"

HEADER: Final = """\
# What does not keep the rules of docs/style.md yet. The list may only shrink: `python -m tools.tidy --prune` takes out
# what is not needed any more. Where files move, write their new paths here."""
# Exceptions of lengths are rounded up to these, so that not every edit touches the list.
STEPS: Final = {"module-large": 100, "function-long": 10}


@dataclass(frozen=True, order=True)
class Finding:
    """Something that does not keep a rule; exceptions name it by rule and key, and say how much of it there may be."""

    rule: str
    key: str
    count: int
    place: str
    """File and line"""
    text: str
    """What is wrong, and what to do"""


@dataclass
class Module:
    """What the rules ask of a module, gathered in one walk through its syntax tree."""

    path: str
    name: str
    is_package: bool
    line_count: int
    has_docstring: bool
    reasons: frozenset[str]
    """Which of `SMALL` and `LARGE` a line of its docstring or a comment has"""
    imports: list[tuple[str, int]] = field(default_factory=list)
    """Dotted names that may be modules, each with its line"""
    uses: list[tuple[str, int]] = field(default_factory=list)
    """Full names of what is used, with the line; methods of unknown objects as `.name`"""
    classes: list[tuple[str, int]] = field(default_factory=list)
    functions: list[tuple[str, int, int]] = field(default_factory=list)
    """Qualified name, line, number of lines"""

    @property
    def package(self) -> str:
        """The folder of `fluss` that it lies in; empty for what lies beside them."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 2 or (len(parts) == 2 and self.is_package) else ""

    @property
    def is_entry(self) -> bool:
        """Whether Python itself gives it its name, so that it may be of any size."""
        return self.path.endswith(("__init__.py", "__main__.py"))


class _Walk(ast.NodeVisitor):
    """Fills a module. Annotations are left out: a name in one is not a use."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[str, str] = {}  # local names of what is imported
        self._scope: list[str] = []

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._module.imports.append((alias.name, node.lineno))
            bound = alias.asname or alias.name.partition(".")[0]
            self._known[bound] = alias.name if alias.asname else bound

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        source = node.module or ""
        if node.level:
            own = self._module.name.split(".")
            kept = own[: len(own) - node.level + self._module.is_package]
            source = ".".join([*kept, *([source] if source else [])])
        for alias in node.names:
            self._module.imports.append((f"{source}.{alias.name}", node.lineno))
            self._known[alias.asname or alias.name] = f"{source}.{alias.name}"

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if not self._scope and not node.name.startswith("_"):
            self._module.classes.append((node.name, node.lineno))
        self._enter(node.name, node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        line_count = (node.end_lineno or node.lineno) - node.lineno + 1
        self._module.functions.append((".".join([*self._scope, node.name]), node.lineno, line_count))
        for default in [*node.args.defaults, *node.args.kw_defaults, *node.decorator_list]:
            if default is not None:
                self.visit(default)
        self._enter(node.name, *node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._full_name(node)
        self._module.uses.append((name or f".{node.attr}", node.lineno))
        if name is None:
            self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._module.uses.append((self._known.get(node.id, node.id), node.lineno))

    def _enter(self, name: str, *nodes: ast.AST) -> None:
        self._scope.append(name)
        for node in nodes:
            self.generic_visit(node) if isinstance(node, ast.ClassDef) else self.visit(node)
        self._scope.pop()

    def _full_name(self, node: ast.expr) -> str | None:
        """The dotted name, if it begins with something imported."""
        if isinstance(node, ast.Name):
            return self._known.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._full_name(node.value)
            return owner and f"{owner}.{node.attr}"
        return None


def read_modules(root: Path) -> list[Module]:
    """Every module below `src` of a tree."""
    source = root / "src"
    modules = []
    for path in sorted(source.rglob("*.py")):
        if path.name.endswith("_pb2.py"):
            continue  # generated
        parts = path.relative_to(source).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, str(path))
        name = ".".join(parts[:-1] if is_package else parts)
        place = path.relative_to(root).as_posix()
        reasons = frozenset(_REASON.findall(text))
        module = Module(place, name, is_package, len(text.splitlines()), bool(ast.get_docstring(tree)), reasons)
        _Walk(module).visit(tree)
        modules.append(module)
    return modules


def check_folders(modules: Iterable[Module]) -> Iterator[Finding]:
    """A folder has few modules and says in its docstring what they are."""
    counts: dict[str, int] = {}
    for module in modules:
        folder = module.path.rpartition("/")[0]
        counts[folder] = counts.get(folder, 0) + (not module.is_package)
        if module.is_package and not module.has_docstring:
            text = "it has no docstring: say in a sentence what the folder holds, and in which order to read it"
            yield Finding("folder-docstring", module.path, 1, f"{module.path}:1", text)
    for folder, count in counts.items():
        if count > FOLDER_MODULES_MAX:
            text = f"{count} modules, {FOLDER_MODULES_MAX} at most: divide the folder by subject, or merge modules"
            yield Finding("folder-modules", folder, count, folder, text)


def check_tree(modules: Iterable[Module]) -> Iterator[Finding]:
    """The tree has no more modules than a reader can know, the sentences of folders apart."""
    count = sum(not module.is_package for module in modules)
    if count > TREE_MODULES_MAX:
        text = f"{count} modules, {TREE_MODULES_MAX} at most: merge what is always read together"
        yield Finding("tree-modules", "src", count, "src", text)


def check_sizes(modules: Iterable[Module]) -> Iterator[Finding]:
    """A module is large enough to be worth a name and small enough to be read."""
    for module in modules:
        lines, place = module.line_count, f"{module.path}:1"
        if lines < MODULE_LINES_MIN and not module.is_entry and SMALL not in module.reasons:
            text = (
                f"{lines} lines, {MODULE_LINES_MIN} at least: merge it with the module that uses it, or give the "
                f"reason in a comment '{SMALL} …'"
            )
            yield Finding("module-small", module.path, 1, place, text)
        reason = f", or give the reason in a comment '{LARGE} …'" if lines <= MODULE_LINES_LIMIT else ""
        if lines > MODULE_LINES_LIMIT or (lines > MODULE_LINES_MAX and LARGE not in module.reasons):
            text = f"{lines} lines, {MODULE_LINES_MAX} at most: divide it by subject{reason}"
            yield Finding("module-large", module.path, lines, place, text)


def check_functions(modules: Iterable[Module]) -> Iterator[Finding]:
    """A function fits on a screen."""
    for module in modules:
        for name, line, count in module.functions:
            if count > FUNCTION_LINES_MAX:
                text = f"{name} has {count} lines, {FUNCTION_LINES_MAX} at most: divide it"
                yield Finding("function-long", f"{module.path}:{name}", count, f"{module.path}:{line}", text)


def check_classes(modules: Iterable[Module]) -> Iterator[Finding]:
    """A public class name stands for one thing in the whole tree; the facades' common names count once."""
    places: dict[str, dict[str, str]] = {}
    for module in modules:
        owner = FACADES if module.package == FACADES else module.name
        for name, line in module.classes:
            places.setdefault(name, {}).setdefault(owner, f"{module.path}:{line}")
    for name, found in places.items():
        if len(found) > 1:
            first, *others = found.values()
            text = f"the class name {name} is also used in {', '.join(others)}: rename all but one"
            yield Finding("class-name", name, len(found), first, text)


def check_cycles(modules: Iterable[Module]) -> Iterator[Finding]:
    """No modules of a package import each other, in a circle, in functions or for types."""
    packages: dict[str, list[Module]] = {}
    for module in modules:
        packages.setdefault(module.package, []).append(module)
    for package, members in packages.items():
        graph = import_graph(members)
        knots = [sorted(knot) for knot in components(graph) if len(knot) > 1]
        if knots:
            knots.sort(key=len, reverse=True)
            place = next(module.path for module in members if module.name == knots[0][0])
            shown = "; ".join(f"{len(knot)}: {' '.join(name.rpartition('.')[2] for name in knot)}" for knot in knots)
            text = f"modules import each other in circles ({shown}): move what both need to a module below them"
            yield Finding("cycle", f"fluss.{package}".rstrip("."), sum(map(len, knots)), place, text)


def import_graph(modules: Iterable[Module]) -> dict[str, dict[str, int]]:
    """For each module those among `modules` that it imports, with the line of the first import."""
    members = list(modules)
    names = {module.name for module in members}
    graph: dict[str, dict[str, int]] = {}
    for module in members:
        edges = graph[module.name] = {}
        for name, line in module.imports:
            target = name if name in names else name.rpartition(".")[0]
            if target in names and target != module.name:
                edges.setdefault(target, line)
    return graph


def components(graph: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """The strongly connected components: modules each of which reaches all others of its component."""
    order: list[str] = []
    seen: set[str] = set()
    for start in graph:
        _visit(graph, start, seen, order)
    reverse: dict[str, list[str]] = {name: [] for name in graph}
    for name, targets in graph.items():
        for target in targets:
            reverse[target].append(name)
    found: list[set[str]] = []
    seen = set()
    for start in reversed(order):
        members: list[str] = []
        _visit(reverse, start, seen, members)
        if members:
            found.append(set(members))
    return found


def _visit(graph: Mapping[str, Iterable[str]], start: str, seen: set[str], finished: list[str]) -> None:
    """Walk depth first; names are appended when all they lead to is done."""
    if start in seen:
        return
    seen.add(start)
    path = [(start, iter(graph[start]))]
    while path:
        name, targets = path[-1]
        target = next((target for target in targets if target not in seen), None)
        if target is None:
            finished.append(name)
            path.pop()
        else:
            seen.add(target)
            path.append((target, iter(graph[target])))


def check_doors(modules: Iterable[Module]) -> Iterator[Finding]:
    """Time, chance, threads, sockets and the disk are reached through one module each."""
    for module in modules:
        if ".".join(module.name.split(".")[:2]) in WITHOUT_DOORS:
            continue
        for rule, door in DOORS.items():
            if module.name == door.module or (door.packages is not None and module.package not in door.packages):
                continue
            lines = [line for name, line in module.uses if _is_direct(door, name)]
            lines += [line for name, line in module.imports if _is_kept(door, name)]
            if lines:
                text = f"{door.what} used directly in line {', '.join(map(str, lines))}: {_way(door)}"
                yield Finding(rule, module.path, len(lines), f"{module.path}:{lines[0]}", text)


def _is_direct(door: Door, name: str) -> bool:
    return name in door.names or name.rpartition(".")[2] in door.methods


def _is_kept(door: Door, imported: str) -> bool:
    """Whether a module imports something out of a door of `fluss.doors`: what it keeps is not replaced there."""
    return imported.startswith(f"{door.module}.") and imported.startswith("fluss.doors.")


def _way(door: Door) -> str:
    if door.module is None:
        return "there is no door for it yet; use a place that has it already, or take it as an argument"
    return f"go through {door.module}"


def check_tests(root: Path) -> Iterator[Finding]:
    """Nothing is imported from a test module: what tests share is beside them, or in tests/kit."""
    for path in sorted((root / "tests").rglob("*.py")):
        sources = [
            node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))) if _is_of_test(node)
        ]
        if sources:
            place = path.relative_to(root).as_posix()
            names = ", ".join(sorted({source.module or "" for source in sources}))
            text = (
                f"imports from {names}: move what both use to a module of the folder that is no test, or to tests/kit"
            )
            yield Finding("test-import", place, len(sources), f"{place}:{sources[0].lineno}", text)


def _is_of_test(node: ast.AST) -> TypeGuard[ast.ImportFrom]:
    names = (
        [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        if isinstance(node, ast.ImportFrom)
        else ()
    )
    return any(name.startswith("test_") for name in names)


CHECKS: Final = (check_tree, check_folders, check_sizes, check_functions, check_classes, check_cycles, check_doors)
RULES: Final = (
    *("tree-modules", "folder-modules", "folder-docstring", "module-small", "module-large", "function-long"),
    *("class-name", "cycle"),
    *DOORS,
    "test-import",
)


def load_exceptions(text: str) -> dict[str, dict[str, int]]:
    """Rule by rule what is excepted: for each key how much of it there may be."""
    tables = tomllib.loads(text)
    if unknown := sorted(set(tables) - set(RULES)):
        raise SystemExit(f"{EXCEPTIONS}: no such rule: {', '.join(unknown)}. There are: {', '.join(RULES)}.")
    return {rule: dict.fromkeys(table["keys"], 1) if "keys" in table else dict(table) for rule, table in tables.items()}


def compare(findings: Iterable[Finding], exceptions: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """A line for whatever is wrong: findings beyond their exception, and exceptions beyond what is found."""
    found = {(finding.rule, finding.key): finding for finding in findings}
    for (rule, key), finding in sorted(found.items()):
        allowed = exceptions.get(rule, {}).get(key)
        if allowed is None or finding.count > allowed:
            excepted = "" if allowed is None else f" ({allowed} are excepted)"
            yield f"{finding.place}: {rule}: {finding.text}{excepted}"
    for rule, table in exceptions.items():
        for key, allowed in table.items():
            count = found[rule, key].count if (rule, key) in found else 0
            if (needed := rounded(rule, count)) < allowed:
                todo = f"write {needed}" if needed else "remove it"
                yield f"{EXCEPTIONS}: {rule}: the exception for {key} is not needed any more: {todo}"


def rounded(rule: str, count: int) -> int:
    """The number that an exception has for this count."""
    step = STEPS.get(rule, 1)
    return -(-count // step) * step


def pruned(findings: Iterable[Finding], exceptions: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """The exceptions that are needed, as small as they can be."""
    counts = {(finding.rule, finding.key): finding.count for finding in findings}
    return {
        rule: {
            key: min(allowed, rounded(rule, counts[rule, key]))
            for key, allowed in table.items()
            if (rule, key) in counts
        }
        for rule, table in exceptions.items()
    }


def render(exceptions: Mapping[str, Mapping[str, int]]) -> str:
    """The file of exceptions, a line for each so that branches merge."""
    lines = [HEADER]
    for rule in RULES:
        table = sorted(exceptions.get(rule, {}).items())
        if not table:
            continue
        lines += ["", f"[{rule}]"]
        if all(count == 1 for _, count in table):
            lines += ["keys = [", *(f'    "{key}",' for key, _ in table), "]"]
        else:
            lines += [f'"{key}" = {count}' for key, count in table]
    return "\n".join(lines) + "\n"


def check_history(root: Path, base: str, exceptions: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Subjects of commits since `base` are short, and the exceptions have not grown since."""
    for line in _git(root, "log", "--no-merges", "--format=%h %s", f"{base}..HEAD").splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > SUBJECT_LENGTH_MAX:
            yield (
                f"commit {commit}: commit-subject: {len(subject)} characters, {SUBJECT_LENGTH_MAX} at most: say the "
                "rest in the body (git commit --amend, git rebase -i)"
            )
    if not _git(root, "ls-tree", base, str(EXCEPTIONS)):
        return
    before = load_exceptions(_git(root, "show", f"{base}:{EXCEPTIONS.as_posix()}"))
    for rule in RULES:
        was, now = (sum(tables.get(rule, {}).values()) for tables in (before, exceptions))
        if now > was:
            yield f"{EXCEPTIONS}: {rule}: {now} in all, {was} at {base}: it may only shrink; put right what is new"


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout


def problems(root: Path, base: str | None = None, *, prune: bool = False) -> list[str]:
    """What is wrong with a tree, a line for each."""
    path = root / EXCEPTIONS
    exceptions = load_exceptions(path.read_text(encoding="utf-8")) if path.exists() else {}
    modules = read_modules(root)
    findings = [*(finding for check in CHECKS for finding in check(modules)), *check_tests(root)]
    if prune:
        exceptions = pruned(findings, exceptions)
        path.write_text(render(exceptions), encoding="utf-8")
    return [*compare(findings, exceptions), *(check_history(root, base, exceptions) if base else ())]


def main() -> int:
    """Print what is wrong; 0 when nothing is."""
    parser = argparse.ArgumentParser(prog="python -m tools.tidy", description="Check the rules of docs/style.md.")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="another tree than this one")
    parser.add_argument("--since", metavar="COMMIT", help="also check the commits since this one")
    parser.add_argument("--prune", action="store_true", help="take out exceptions that are not needed any more")
    options = parser.parse_args()
    lines = problems(options.root, options.since, prune=options.prune)
    print(*lines, sep="\n", end="\n" if lines else "")
    if lines:
        print(f"{len(lines)} problems; docs/style.md has the rules and their reasons.", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
