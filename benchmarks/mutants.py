"""Which changes of the heart do its tests not notice? Mutation testing of a random sample, room by room.

    python -m benchmarks.mutants                      60 mutants of each room, resumed where runs/mutants.json ends
    python -m benchmarks.mutants --fresh              the same from the beginning
    python -m benchmarks.mutants wire --seed 1 -n 90  another sample of one room
    python -m benchmarks.mutants wire --files codecs.py messages.py   a sample of these files of it
    python -m benchmarks.mutants --again survived     the survivors once more, after tests were improved

A mutant is one small change of one expression or statement. It is applied in a copy of the repository, in which the
tests and doctests of its room run until the first one fails. A mutant that no test notices has survived: a test is
missing, or the change cannot be noticed, which `benchmarks/equivalent_mutants.toml` then states with the reason.
"""

import argparse
import ast
import copy
import hashlib
import importlib.util
import itertools
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "runs" / "mutants.json"
EQUIVALENT = ROOT / "benchmarks" / "equivalent_mutants.toml"
ROOMS = ("aggregation", "density", "wire")
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
UNNOTICED = "equivalent"
TIMEOUT_FACTOR, MIN_TIMEOUT = 6, 60
"""A mutant may take so many times the CPU time of the tests without one, and at least so many seconds of it."""
NO_TESTS = 5
"""The exit code of pytest if a file has no tests."""
PATIENCE = 20
"""A mutant that waits for ever has timed out after so many times its CPU time, even if the machine is busy."""
PRELOADED = ("torch", "scipy.stats", "sklearn", "hypothesis", "pydantic", "zstandard", "safetensors.torch")
"""Libraries that mutants need: they are imported once, before the processes of the mutants are forked."""

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
PAIRS = [
    ("min", "max"),
    ("amin", "amax"),
    ("minimum", "maximum"),
    ("cummin", "cummax"),
    ("argmin", "argmax"),
    ("any", "all"),
    ("clamp_min", "clamp_max"),
    ("floor", "ceil"),
    ("sum", "mean"),
]
SWAPPED = {**dict(PAIRS), **{after: before for before, after in PAIRS}}
"""Names of functions and methods that are exchanged for each other."""
REMOVED = {"abs", "clamp", "clamp_min", "clamp_max", "clone", "exp", "flip", "log", "round", "sort", "sqrt", "square"}
"""Methods whose call is replaced by the value they are called on."""


@dataclass(frozen=True)
class Mutant:
    """One change of a source file."""

    file: str
    line: int
    before: str
    """The line, or the lines, as they are."""
    after: str
    start: int
    """Where the changed text begins in the file, in bytes."""
    end: int
    text: str
    """What stands there instead."""

    @property
    def key(self) -> str:
        """What names the mutant in records; line numbers may change."""
        return f"{self.file}: {self.before} -> {self.after}"


Result: TypeAlias = dict[str, str | int | float]
"""A mutant in the record: its room, seed, file, line, text before and after, status and seconds."""


def key_of(entry: Mapping[str, str | int | float]) -> str:
    """The key of a mutant of the record or of the file of equivalents."""
    return f"{entry['file']}: {entry['before']} -> {entry['after']}"


def replacements(node: ast.AST) -> Iterator[ast.AST | None]:
    """The nodes that may stand in the place of a node; None removes a statement."""
    match node:
        case ast.Compare(ops=ops):
            for index, operator in enumerate(ops):
                for other in COMPARISONS.get(type(operator), ()):
                    changed = copy.deepcopy(node)
                    changed.ops[index] = other()
                    yield changed
        case ast.BinOp(op=operator) if type(operator) in OPERATORS:
            yield ast.BinOp(node.left, OPERATORS[type(operator)](), node.right)
        case ast.AugAssign(op=operator) if type(operator) in OPERATORS:
            yield ast.AugAssign(node.target, OPERATORS[type(operator)](), node.value)
        case ast.BoolOp(op=operator):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(value * 10 if value else 1.0)
        case ast.IfExp(test=test):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), node.body, node.orelse)
        case ast.Call(func=ast.Attribute(value=value, attr=name)):
            if (name in REMOVED and not isinstance(value, ast.Name | ast.Attribute)) or name in {"clone", "clamp_min"}:
                yield value
            if name in SWAPPED:
                yield ast.Call(ast.Attribute(value, SWAPPED[name], ast.Load()), node.args, node.keywords)
        case ast.Call(func=ast.Name(id=name)) if name in SWAPPED:
            yield ast.Call(ast.Name(SWAPPED[name], ast.Load()), node.args, node.keywords)
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield None


def mutable_nodes(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Nodes below a node whose change changes what code does, and whether each is a condition.

    Annotations, decorators, error messages and assertions, `strict` of zip among them, are left out.
    """
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.Raise | ast.Assert):
                yield child, name == "test" and not isinstance(node, ast.IfExp)
                yield from mutable_nodes(child)


def mutants_of(path: Path, root: Path = ROOT) -> Iterator[Mutant]:
    """All mutants of a source file."""
    source = path.read_bytes()
    starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
    for node, condition in mutable_nodes(ast.parse(source)):
        found = list(replacements(node))
        if condition and isinstance(node, ast.expr):
            found.append(ast.UnaryOp(ast.Not(), node))
        for replacement in found:
            assert isinstance(node, ast.expr | ast.stmt)  # other nodes have no replacements
            last_line, last_column = node.end_lineno or node.lineno, node.end_col_offset or 0
            start, end = starts[node.lineno - 1] + node.col_offset, starts[last_line - 1] + last_column
            text = _text_of(replacement)
            before, after = source[starts[node.lineno - 1] : start], source[end : starts[last_line]]
            lines = [b"".join([before, middle, after]).decode() for middle in (source[start:end], text.encode())]
            old, new = (" ".join(line.split()) for line in lines)
            yield Mutant(str(path.relative_to(root)), node.lineno, old, new, start, end, text)


def _text_of(replacement: ast.AST | None) -> str:
    """The source of a replacement, in parentheses where its surroundings could bind more tightly."""
    if replacement is None:
        return "pass"
    text = ast.unparse(ast.fix_missing_locations(replacement))
    alone = isinstance(replacement, ast.stmt | ast.Constant | ast.Call | ast.Name)
    return text if alone else f"({text})"


def sample_mutants(room: str, number: int, seed: int, names: Sequence[str] = ()) -> list[Mutant]:
    """So many mutants of a room, or of its files of these names.

    Which ones depends on the seed and their text; a change elsewhere changes no other.
    """
    files = sorted((ROOT / "src" / "trustmix" / room).glob("*.py"))
    files = [file for file in files if file.name != "__init__.py" and (not names or file.name in names)]
    unique = {mutant.key: mutant for file in files for mutant in mutants_of(file)}
    order = sorted(unique.values(), key=lambda mutant: hashlib.sha256(f"{seed} {mutant.key}".encode()).digest())
    return order[:number]


class Workplace:
    """A copy of the repository in which one mutant at a time is tested."""

    def __init__(self, parent: Path, number: int) -> None:
        self.path = parent / str(number)
        self.path.mkdir()
        for part in ("src", "tests", "benchmarks"):
            shutil.copytree(ROOT / part, self.path / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        shutil.copy(ROOT / "pyproject.toml", self.path)

    def start(self, room: str, mutant: Mutant | None = None, seconds: int | None = None) -> ForkProcess:
        """Run the tests of a room in a process, with the mutant, if there is one, in place, for so much CPU time."""
        if mutant is not None:
            whole = (ROOT / mutant.file).read_bytes()
            self._write(mutant.file, whole[: mutant.start] + mutant.text.encode() + whole[mutant.end :])
        process = multiprocessing.get_context("fork").Process(
            target=_run_tests, args=(self.path, room, mutant, seconds)
        )
        process.start()
        return process

    def restore(self, mutant: Mutant) -> None:
        """Undo the mutant."""
        self._write(mutant.file, (ROOT / mutant.file).read_bytes())

    def _write(self, file: str, source: bytes) -> None:
        path = self.path / file
        path.write_bytes(source)
        # bytecode is checked by time and size only, which two mutants can have in common
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def _run_tests(path: Path, room: str, mutant: Mutant | None, seconds: int | None) -> None:
    """Run the tests of a room in a copy of the repository, those of the mutant's own file first, which are quick."""
    if seconds is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # the kernel ends the process after that
    os.setsid()  # whatever the tests start ends with them
    os.chdir(path)
    sys.path[:0] = [str(path / "src"), str(path)]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    if mutant is not None:
        own = [place for place in (f"tests/{room}/test_{Path(mutant.file).name}", mutant.file) if Path(place).exists()]
        child = os.fork()
        if child == 0:
            os._exit(_pytest(own))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            os.kill(os.getpid(), -code)
        if code not in (0, NO_TESTS):
            os._exit(code)
    os._exit(_pytest([f"tests/{room}", f"src/trustmix/{room}"]))


def _pytest(places: Sequence[str]) -> int:
    """The exit code of pytest with the tests at some places, without a word."""
    import pytest
    from hypothesis import Phase, settings

    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        # one failure is enough: no smaller example of it is searched for
        settings.register_profile("quick", deadline=None, phases=[Phase.explicit, Phase.generate], database=None)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
        options += ["--hypothesis-profile=quick", "--hypothesis-seed=0"]
        options += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
        return int(pytest.main([*options, *places]))


def measure_baseline(workplace: Workplace, room: str) -> float:
    """CPU seconds that the tests of a room take without a mutant; they must pass."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = workplace.start(room)
    process.join()
    if process.exitcode != 0:
        raise SystemExit(f"The tests of {room} fail without a mutant; run them with pytest first.")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime


def run_mutants(todo: Sequence[tuple[str, Mutant]], jobs: int) -> Iterator[tuple[str, Mutant, str, float]]:
    """Test mutants, several at a time; room, mutant, status and seconds of each, as they end."""
    with tempfile.TemporaryDirectory(prefix="trustmix-mutants-") as directory:
        free = [Workplace(Path(directory), number) for number in range(jobs)]
        limits = {
            room: round(max(MIN_TIMEOUT, TIMEOUT_FACTOR * measure_baseline(free[0], room)))
            for room in {r for r, _ in todo}
        }
        waiting, running = list(reversed(todo)), list[tuple[ForkProcess, Workplace, str, Mutant, float]]()
        try:
            while waiting or running:
                while waiting and free:
                    workplace, (room, mutant) = free.pop(), waiting.pop()
                    process = workplace.start(room, mutant, limits[room])
                    running.append((process, workplace, room, mutant, time.monotonic()))
                wait([process.sentinel for process, *_ in running], timeout=1)
                for entry in list(running):
                    process, workplace, room, mutant, began = entry
                    seconds = time.monotonic() - began
                    if process.is_alive() and seconds < PATIENCE * limits[room]:
                        continue
                    late = process.is_alive() or process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
                    status = TIMED_OUT if late else SURVIVED if process.exitcode == 0 else KILLED
                    _end(process)
                    workplace.restore(mutant)
                    running.remove(entry)
                    free.append(workplace)
                    yield room, mutant, status, seconds
        finally:
            for process, *_ in running:
                _end(process)


def _end(process: ForkProcess) -> None:
    """End a process and whatever it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()


def read_equivalents() -> dict[str, str]:
    """The reasons why mutants cannot be noticed, by mutant."""
    entries = tomllib.loads(EQUIVALENT.read_text()).get("mutant", []) if EQUIVALENT.exists() else []
    return {key_of(entry): entry["reason"] for entry in entries}


def score_table(results: Sequence[Result]) -> str:
    """Killed, survived, timed out and equivalent mutants of each room and seed, and the part that was noticed."""
    equivalent = read_equivalents()
    counts: dict[tuple[str, int], Counter[str]] = {}
    for result in results:
        unnoticed = result["status"] == SURVIVED and key_of(result) in equivalent
        status = UNNOTICED if unnoticed else str(result["status"])
        counts.setdefault((str(result["room"]), int(result["seed"])), Counter())[status] += 1
    lines = [
        "| room | seed | mutants | killed | timed out | survived | equivalent | score |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (room, seed), found in sorted(counts.items()):
        noticed = found[KILLED] + found[TIMED_OUT]
        numbers = [found.total(), found[KILLED], found[TIMED_OUT], found[SURVIVED], found[UNNOTICED]]
        score = noticed / max(1, noticed + found[SURVIVED])
        lines.append(f"| {room} | {seed} | {' | '.join(map(str, numbers))} | {score:.0%} |")
    return "\n".join(lines)


def print_report(results: Sequence[Result], rooms: Sequence[str]) -> None:
    """Print the survivors of these rooms that have no excuse, and the scores of all."""
    equivalent = read_equivalents()
    for result in results:
        if result["room"] in rooms and result["status"] == SURVIVED and key_of(result) not in equivalent:
            print(f"\nsurvived (seed {result['seed']}): {result['file']}:{result['line']}")
            print(f"  - {result['before']}\n  + {result['after']}")
    print(f"\n{score_table(results)}")


def main() -> None:
    """Test a sample of mutants, write the record after each, and print survivors and scores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rooms", nargs="*", default=ROOMS, help="packages of trustmix (the three of the heart)")
    parser.add_argument("--files", nargs="+", default=[], metavar="NAME", help="only files of these names (all)")
    parser.add_argument("-n", "--number", type=int, default=60, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0, help="which sample")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument(
        "--again", choices=[KILLED, SURVIVED, TIMED_OUT], action="append", default=[], help="test these once more"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what the record has of this seed and these rooms")
    parser.add_argument("--out", type=Path, default=RECORD, help="the record, JSON")
    given = parser.parse_args()

    # torch in the parent must not start threads, which a fork would lose
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in PRELOADED:
        importlib.import_module(name)
    results: list[Result] = json.loads(given.out.read_text()) if given.out.exists() else []
    chosen = [
        (room, mutant) for room in given.rooms for mutant in sample_mutants(room, given.number, given.seed, given.files)
    ]

    def remains(result: Result) -> bool:
        asked = result["room"] in given.rooms and result["seed"] == given.seed
        return not asked or (not given.fresh and result["status"] not in given.again)

    results = [result for result in results if remains(result)]
    done = {(result["seed"], key_of(result)) for result in results}
    todo = [(room, mutant) for room, mutant in chosen if (given.seed, mutant.key) not in done]
    for count, (room, mutant, status, seconds) in enumerate(run_mutants(todo, given.jobs), 1):
        facts = {key: value for key, value in asdict(mutant).items() if key in ("file", "line", "before", "after")}
        results.append({"room": room, "seed": given.seed, **facts, "status": status, "seconds": round(seconds, 1)})
        results.sort(key=lambda result: (str(result["room"]), int(result["seed"]), str(result["file"]), result["line"]))
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{count}/{len(todo)} {status:9} {mutant.file}:{mutant.line}  {mutant.after}", flush=True)
    print_report(results, given.rooms)


if __name__ == "__main__":
    main()
