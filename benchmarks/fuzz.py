"""Fuzzing: every hostile input must end in exit code 0 or 2 with one sentence, without a traceback and without a hang.

    python -m benchmarks.fuzz --minutes 10               all rooms in turn, until the time is over
    python -m benchmarks.fuzz --seed 7 --cases 50        50 cases of every room from another seed
    python -m benchmarks.fuzz --only "data files/0/17"   one case again, by the name that a fault was printed with

Every case is drawn from a seed of its own, which is its name: room/seed/number. Commands run in this process.
"""

import argparse
import contextlib
import gzip
import io
import json
import os
import random
import shutil
import signal
import socket
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import numpy as np
import torch
from click.testing import CliRunner
from typer.main import get_command

import trustmix as tm
from trustmix.cli import app
from trustmix.errors import TrustmixError
from trustmix.settings.recipe import setting_names
from trustmix.wire import CODECS, MessageHeader, decode_public_set, decode_teacher, decode_upload, encode_teacher

SECONDS = 300
"""A case that takes longer counts as one that hangs, on a busy machine too."""
COMMANDS = get_command(app)
"""The command line, put together once for all cases."""
MAX_LINE = 1100
"""Characters of the sentence at most."""
TINY = ("clients=3", "rounds=1", "split.samples_per_client=30", "public.samples=40", "split.classes_per_client=4")
QUICK = (*TINY, "engine.mode=sequential", "engine.precision=float32", "train.first_epochs=1")

TEXTS = (
    *("", " ", "0", "-1", "1", "3", "1e400", "nan", "inf", "-inf", "true", "null", "[]", "{}", "[[[]]]", "{ a = 1 }"),
    *("'", '"', "\\", "9" * 30, "9" * 5000, "0x" + "f" * 5000, "[" * 3000, "{a=" * 2000, "\x00", "\udce9", "\u202e"),
    *("\u0663", "\xe9" * 300, "a" * 5000, "../x", "/", ".", "..", "~", "~nobody-here", "/dev/null", "/dev/zero"),
    *("/proc/self/mem", "/etc/passwd", "os:system", "a:b", "%s%n", "$(touch x)", "`id`", "<script>", "2026-01-01"),
    *("00:00:61", "=", "a=b=c", "--help", "-", "--", "\n", "\r\n\t"),
)
"""Texts that break parsers."""
VALUES = (
    *("NaN", "Infinity", "-Infinity", "null", "true", '"text"', "[]", "{}", "-1", "0", "1e308", "1e400", "9" * 4000),
    *("9" * 5000, "[[[[1]]]]", '{"a": {"b": NaN}}', '"\\u0000"', '"\\ud800"', "[" * 3000, '"' + "x" * 5000 + '"'),
    *("[1, 2, 3]", '{"0": "x"}'),
)
"""JSON values, and some that are none."""

Fault: TypeAlias = str
Case: TypeAlias = Callable[[random.Random, Path], Iterator[str]]
"""Does one case in a folder of its own, and yields how each of its steps ended: "exit 0", "refused", or a fault."""


class HangError(BaseException):
    """A case took too long; no handler of errors catches it."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise in the block once it has taken so many seconds.

    Parameters
    ----------
    seconds
        The limit.
    """

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise HangError(f"no end after {seconds} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def run_command(command: Sequence[str], seconds: int = SECONDS) -> tuple[int, str]:
    """Run a command of the command line in this process.

    Parameters
    ----------
    command
        The arguments.
    seconds
        When the command counts as one that hangs.

    Returns
    -------
    int
        The exit code; -1 for a fault.
    str
        What it printed to stderr, or the fault.
    """
    try:
        with time_limit(seconds):
            result = CliRunner().invoke(COMMANDS, list(command))
    except HangError as error:
        return -1, f"hang: {error}"
    if isinstance(result.exception, HangError):
        return -1, f"hang: {result.exception}"
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return -1, "".join(traceback.format_exception(result.exception))[-2500:]
    if result.exit_code not in (0, 2):
        return -1, f"exit code {result.exit_code}: {result.output[-500:]}"
    sentence = next((line for line in result.stderr.splitlines() if line.startswith("Error: ")), "")
    too_long = len(sentence) > MAX_LINE and not result.stderr.startswith("Usage: ")  # which quotes whole arguments
    if result.exit_code == 2 and (too_long or not sentence):
        return -1, f"exit code 2 without a short sentence: {result.stderr[-500:]}"
    return result.exit_code, result.stderr


def steps(commands: Sequence[Sequence[str]]) -> Iterator[str]:
    """Run commands, and yield how each ended."""
    for arguments in commands:
        command = [argument.replace("\x00", "") for argument in arguments]  # a process cannot be given a zero byte
        code, text = run_command(command)
        shown = " ".join(part[:60] for part in command)
        yield f"exit {code}" if code >= 0 else f"{shown!a}\n{text}"


def draw_text(draw: random.Random) -> str:
    """A hostile text, sometimes two of them or random bytes."""
    kind = draw.random()
    if kind < 0.7:
        return draw.choice(TEXTS)
    if kind < 0.85:
        return draw.choice(TEXTS)[:100] + draw.choice(TEXTS)[:100]
    return draw.randbytes(draw.randint(1, 30)).decode("utf-8", "replace")


def damage(content: bytes, draw: random.Random) -> bytes:
    """Bytes that are cut, flipped, doubled or overwritten."""
    if not content:
        return draw.randbytes(20)
    place, length = draw.randrange(len(content)), draw.randint(1, 60)
    return draw.choice(
        [
            content[:place],
            content[place:],
            content[:place] + draw.randbytes(length) + content[place + length :],
            content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :],
            content + content[:place],
            b"",
            content[:place] + draw.choice(TEXTS).encode("utf-8", "replace") + content[place:],
        ]
    )


def command_line(draw: random.Random, _folder: Path) -> Iterator[str]:
    """Any command with hostile arguments and options."""
    options = {
        "run": ["--set", "--out"],
        "plan": ["--set"],
        "report": ["--out", "--figures"],
        "theory": ["--out", "--reference"],
        "predict": ["--client", "--out"],
        "mix": ["--rule", "--tau", "--out"],
        "audit": [],
        "check": [],
        "recipes": [],
        "keys": ["--host", "--nodes"],
    }
    name = draw.choice(sorted(options))
    arguments = [draw_text(draw) for _ in range(draw.randint(0, 3))]
    for option in options[name]:
        if draw.random() < 0.6:
            arguments += [option, draw_text(draw)]
    arguments = [argument for argument in arguments if not argument.startswith("~")]  # no file in a home directory
    yield from steps([[name, *arguments]])


def recipes(draw: random.Random, _folder: Path) -> Iterator[str]:
    """A recipe with hostile settings, as a file or on the command line; what is valid is run."""
    names = [name for name in setting_names() if not name.startswith(("track", "engine.name", "engine.workers"))]
    changes = [f"{draw.choice(names)}={draw_text(draw)}" for _ in range(draw.randint(1, 3))]
    if draw.random() < 0.5:
        given = [part for change in (*QUICK, *changes) for part in ("--set", change)]
        yield from steps([["run", "demo", *given, "--out", "out", "--quiet"]])
        return
    text = "\n".join(f"{key} = {value}" for key, _, value in (change.partition("=") for change in (*QUICK, *changes)))
    content = f'data.name = "digits"\n{text}\n'.replace("sequential", '"sequential"').replace("float32", '"float32"')
    raw = content.encode("utf-8", "replace")
    Path("mine.toml").write_bytes(damage(raw, draw) if draw.random() < 0.3 else raw)
    yield from steps([["run", "mine.toml", "--out", "out", "--quiet"], ["check", "mine.toml"]])


def run_directories(draw: random.Random, folder: Path) -> Iterator[str]:
    """A run directory, finished or stopped, with one file damaged, and the commands that read it."""
    run = Path(shutil.copytree(folder.parent / "finished", "run"))
    files = [file for file in sorted(run.rglob("*")) if file.is_file() and file.name not in (".lock", "report.html")]
    if draw.random() < 0.4:
        (run / "summary.json").unlink()
        files.remove(run / "summary.json")
    file = draw.choice(files)
    if file.suffix in (".json", ".jsonl") and draw.random() < 0.7:
        _damage_record(file, draw)
    else:
        _replace_file(file, draw)
    client = draw.choice(["0", "1", "student", draw_text(draw)])
    yield from steps(
        [
            ["report", "run", "--out", "page.html"],
            ["predict", "run", "digits", f"--client={client}", "--out", "p.npz"],
            ["run", "run/recipe.toml", "--out", "run", "--resume", "--quiet"],
        ]
    )


def _damage_record(file: Path, draw: random.Random) -> None:
    """Replace, remove or add one field of a JSON record."""
    texts = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    place = draw.randrange(len(texts))
    record = json.loads(texts[place])
    name = draw.choice([*record, "further"]) if isinstance(record, dict) else ""
    if draw.random() < 0.2 and isinstance(record, dict):
        record.pop(name, None)
    elif isinstance(record, dict):
        record[name] = "HERE"
    texts[place] = json.dumps(record).replace('"HERE"', draw.choice(VALUES)) if name else draw.choice(VALUES)
    file.write_text("\n".join(texts) + "\n", errors="surrogatepass")


def _replace_file(file: Path, draw: random.Random) -> None:
    """Damage, remove, move, or replace a file by something that is no regular file."""
    content = file.read_bytes()
    kind = draw.choice(["damage", "damage", "damage", "remove", "folder", "pipe", "null", "loop", "stray", "link"])
    if kind == "damage":
        file.write_bytes(damage(content, draw))
    elif kind == "stray":
        file.with_name(draw.choice(["x", "-1", "1e3", "٣", "9" * 100]) + file.suffix).write_bytes(content)
    elif kind == "link":
        Path("mine.txt").write_text("mine")
        file.with_name(file.name + ".tmp").symlink_to(Path("mine.txt").absolute())
    else:
        file.unlink()
        _make_irregular(file, kind)


def _make_irregular(file: Path, kind: str) -> None:
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "null":
        file.symlink_to("/dev/null")
    elif kind == "loop":
        file.symlink_to(file)


def data_files(draw: random.Random, folder: Path) -> Iterator[str]:
    """A table, arrays, images or predictions, damaged, and the commands that read them."""
    kind = draw.choice(["csv", "csv.gz", "jsonl", "npz", "predictions.csv", "predictions.npz", "png", "irregular"])
    file = Path(
        f"x.{draw.choice(['csv', 'npz', 'jsonl', 'csv.gz', 'png', 'parquet'])}" if kind == "irregular" else f"x.{kind}"
    )
    if kind == "irregular":
        _make_irregular(file, draw.choice(["folder", "pipe", "null", "loop"]))
    else:
        content = _sound_file(kind, draw)
        file.write_bytes(damage(content, draw) if draw.random() < 0.8 else content)
    name = {"csv": "table", "jsonl": "table", "npz": "npz", "png": "images"}.get(kind.split(".")[0], "table")
    name = draw.choice([name, name, name, "table", "npz", "text", "images", "shared"])
    given = [part for change in (f"data.name={name}", f"data.path={file}", *QUICK) for part in ("--set", change)]
    Path("node.toml").write_text(f'id = "north"\ndata = "{file}"\n')
    commands = [
        ["run", "demo", *given, "--quiet", "--out", "out"],
        ["check", "node.toml"],
        ["mix", str(file), "--out", "t.csv"],
    ]
    shutil.copytree(folder.parent / "finished", "run")
    yield from steps([*commands, ["predict", "run", str(file), "--out", "p.npz"]])


def _sound_file(kind: str, draw: random.Random) -> bytes:
    """The content of a file as it should be, with some hostile fields."""
    strange = [draw_text(draw) if draw.random() < 0.1 else str(number) for number in range(60)]
    text = "a,b,label\n" + "".join(f"{number % 7},{value},{'xy'[number % 2]}\n" for number, value in enumerate(strange))
    if kind == "jsonl":
        rows = [{"a": number, "b": value, "label": number % 2} for number, value in enumerate(strange)]
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    if kind == "predictions.csv":
        text = "cat,dog,score\n" + "".join(f"0.9,0.1,{value}\n" for value in strange[:10])
    if kind == "png":
        return bytes.fromhex("89504e470d0a1a0a0000000d4948445200000002000000020800000000") + draw.randbytes(60)
    if kind.endswith("npz"):
        return _sound_arrays(kind, draw)
    raw = text.encode("utf-8", "replace")
    return gzip.compress(raw) if kind.endswith("gz") else raw


def _sound_arrays(kind: str, draw: random.Random) -> bytes:
    shape = draw.choice([(60, 3), (60,), (0, 3), (1, 1), (2, 3, 4), ()])
    dtype = draw.choice(["float32", "float64", "int64", "uint8", "bool", "complex64", "U3", "float16", "uint64"])
    inputs: Any = np.zeros(shape, dtype)
    if dtype.startswith("float") and draw.random() < 0.3:
        inputs = inputs + draw.choice([np.nan, np.inf, 1e30])
    labels = np.arange(inputs.shape[0] if inputs.ndim else 0) % draw.choice([1, 2, 3, 10**6])
    labels = labels.astype(draw.choice(["int64", "int64", "float32", "uint64", "U3", "bool"]))
    arrays = {"x_train": inputs, "y_train": labels, "x_test": inputs, "y_test": labels, "x": inputs, "y": labels}
    if kind.startswith("predictions"):
        arrays = {"predictions": inputs, "logits": inputs, "scores": labels, "id": labels}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            one = io.BytesIO()
            np.save(one, array)
            archive.writestr(f"{name}.npy", damage(one.getvalue(), draw) if draw.random() < 0.1 else one.getvalue())
    return packed.getvalue()


def messages(draw: random.Random, folder: Path) -> Iterator[str]:
    """Messages of a client and of a server, damaged: refused with a reason, or read."""
    header = MessageHeader("7", 3, "f" * 16, 24, 7)
    logits = torch.randn(24, 7, generator=torch.Generator().manual_seed(draw.randrange(1000)))
    density = tm.ClassGaussians.fit(
        torch.randn(30, 7, generator=torch.Generator().manual_seed(1)), torch.arange(30) % 3
    )
    codec = draw.choice(CODECS.names())
    upload = tm.wire.UPLOAD_ENCODERS["scores"](logits, density, header, codec)
    teacher = encode_teacher(torch.softmax(logits, 1), header, codec)
    readers: list[tuple[bytes, Callable[[bytes], object]]] = [
        (upload, lambda message: decode_upload(message, header)),
        (teacher, lambda message: decode_teacher(message, header)),
        (teacher, lambda message: decode_public_set(message, "f" * 16)),
    ]
    for content, read in readers:
        for _ in range(5):
            yield _attempt(partial(read, damage(content, draw)))
    facts = {"run": "0123456789abcdef", "round": 1, "train": True, "upload": True}
    yield from _node_messages(facts, draw, folder)


def _node_messages(facts: dict[str, Any], draw: random.Random, folder: Path) -> Iterator[str]:
    """Messages to a node: it answers each, with a reply or a reason."""
    from flwr.app import ConfigRecord, RecordDict

    from trustmix.deploy.message_handler import MessageHandler
    from trustmix.transport.flower_records import FACTS, parse_request, unpack_record

    def refuse(*_: object) -> tm.Client:
        raise TrustmixError("no run")

    name = draw.choice([*facts, "further"])
    text = json.dumps(facts | {name: "HERE"}).replace('"HERE"', draw.choice(VALUES))
    content = RecordDict({draw.choice([FACTS, FACTS, "other"]): ConfigRecord({"json": text})})
    yield _attempt(lambda: parse_request(*unpack_record(content)))
    handler = MessageHandler("north", folder / "node", refuse)
    kind = draw.choice(["query.hello", "query.public", "train", draw_text(draw)])

    def dispatch() -> None:
        found, payload = unpack_record(content)
        handler._dispatch(kind, found, payload)

    yield _attempt(dispatch)


def _attempt(action: Callable[[], object]) -> str:
    """How a function ends that must return or refuse with a TrustmixError."""
    try:
        with time_limit(SECONDS):
            action()
    except TrustmixError:
        return "refused"
    except HangError as error:
        return f"hang: {error}"
    except Exception:  # noqa: BLE001 - any other error is the fault that is looked for
        return traceback.format_exc()[-2500:]
    return "read"


def proxy(draw: random.Random, folder: Path) -> Iterator[str]:
    """Bytes to the server's reverse proxy: each request gets an answer of HTTP or the connection is closed."""
    port = int((folder.parent / "proxy-port").read_text())
    method, path = (
        draw.choice(["GET", "POST", "PUT", draw_text(draw)]),
        draw.choice(
            ["/", "/v1/fleet/pull-messages", "/v1/control/start-run", "/v1/fleet/%2e%2e/control", "/" + draw_text(draw)]
        ),
    )
    length = draw.choice(["0", "5", "-1", "9" * 30, str(10**10), draw_text(draw)])
    extra = draw.choice(["", "Transfer-Encoding: chunked\r\n", f"X: {draw_text(draw)}\r\n", "Expect: 100-continue\r\n"])
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{extra}\r\n".encode("utf-8", "replace")
    content = damage(head + b"12345", draw) if draw.random() < 0.5 else head + b"12345"
    yield _send(port, content)
    yield _send(port, b"POST /v1/control/start-run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", must_be=b"404")


def _send(port: int, content: bytes, must_be: bytes = b"") -> str:
    """Send bytes on a connection of its own, and read the first line of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        try:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4096)
        except (TimeoutError, ConnectionError) as error:
            return f"hang: {error}" if isinstance(error, TimeoutError) else "refused"
    status = answer.split(b"\r\n")[0]
    if answer and not status.startswith(b"HTTP/1."):
        return f"the proxy answered {status[:100]!r}"
    if must_be not in status:
        return f"the proxy answered {status[:100]!r} where {must_be!r} was due"
    return "refused" if not answer or status[9:10] != b"2" else "read"


ROOMS: dict[str, Case] = {
    "command line": command_line,
    "recipes": recipes,
    "run directories": run_directories,
    "data files": data_files,
    "messages": messages,
    "proxy": proxy,
}


@dataclass
class Findings:
    """How the cases ended, by room, and the faults by the name of the case."""

    endings: dict[str, Counter[str]] = field(default_factory=lambda: {room: Counter() for room in ROOMS})
    cases: Counter[str] = field(default_factory=Counter)
    faults: dict[str, Fault] = field(default_factory=dict)

    def table(self) -> str:
        """Format the counts as a table of Markdown."""
        lines = ["| room | cases | steps read or done | steps refused | faults |", "|---|---|---|---|---|"]
        for room, endings in self.endings.items():
            faults = sum(name.startswith(room + "/") for name in self.faults)
            done, refused = endings["exit 0"] + endings["read"], endings["exit 2"] + endings["refused"]
            lines.append(f"| {room} | {self.cases[room]:,} | {done:,} | {refused:,} | {faults} |")
        return "\n".join(lines)


def fuzz(names: Iterator[str], work: Path, show: Callable[[str], None] = print) -> Findings:
    """Do the named cases.

    Parameters
    ----------
    names
        Names of cases, as room/seed/number.
    work
        An empty folder; cases run in folders of their own in it.
    show
        Called with every fault.

    Returns
    -------
    Findings
    """
    findings = Findings()
    before = Path.cwd()
    with _stage(work):
        for name in names:
            room = name.partition("/")[0]
            folder = work / "case"
            folder.mkdir()
            os.chdir(folder)
            try:
                for ending in ROOMS[room](random.Random(name), folder):
                    if ending in ("exit 0", "exit 2", "read", "refused"):
                        findings.endings[room][ending] += 1
                    else:
                        findings.faults[name] = ending
                        show(f"FAULT in {name}: {ending}")
            finally:
                os.chdir(before)
                shutil.rmtree(folder, ignore_errors=True)
            findings.cases[room] += 1
    return findings


@contextlib.contextmanager
def _stage(work: Path) -> Iterator[None]:
    """A finished run to damage and, where Flower is installed, a proxy without a SuperLink behind it."""
    tm.run(tm.Recipe.load("demo", [*QUICK, "rounds=2", "student.name=mlp"]), out=work / "finished")
    from trustmix.transport.flower_processes import free_port
    from trustmix.transport.proxy import run_proxy

    port = free_port()
    (work / "proxy-port").write_text(str(port))
    with run_proxy("127.0.0.1", port, f"127.0.0.1:{free_port()}", None) as ready:
        ready.set()
        yield


def case_names(seed: int, minutes: float | None, cases: int | None) -> Iterator[str]:
    """Names of cases, the rooms in turn, until the time is over or every room has had so many."""
    end = time.monotonic() + 60 * minutes if minutes is not None else None
    number = 0
    while cases is None or number < cases:
        for room in ROOMS:
            if end is not None and time.monotonic() > end:
                return
            yield f"{room}/{seed}/{number}"
        number += 1


def main() -> None:
    """Fuzz, print the faults and the counts; exit code 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="how long; 10 if neither this nor --cases is given")
    parser.add_argument("--cases", type=int, help="cases of every room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one case, by its name")
    given = parser.parse_args()
    minutes = 10 if given.minutes is None and given.cases is None else given.minutes
    names = iter([given.only]) if given.only else case_names(given.seed, minutes, given.cases)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        findings = fuzz(names, Path(work))
    print(findings.table())
    raise SystemExit(1 if findings.faults else 0)


if __name__ == "__main__":
    main()
