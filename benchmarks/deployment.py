"""A federation of real processes on loopback, to be disturbed: one `trustmix serve`, some `trustmix join`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from trustmix.transport.flower_processes import flower_env, free_port
from trustmix.transport.keys import make_keys

COMMAND = [sys.executable, "-m", "trustmix.cli"]
BIN = Path(sys.executable).parent


class Deployment:
    """A server and nodes under one folder; with keys unless `secure` is false."""

    def __init__(
        self, folder: Path, recipe: str, settings: Sequence[str], nodes: Sequence[str], *, secure: bool = True
    ):
        self.folder, self.recipe, self.settings, self.secure = folder, recipe, list(settings), secure
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        if secure:
            names = ",".join(nodes)
            self.command("keys", str(folder / "keys"), "--host", "127.0.0.1", "--nodes", names)

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """A command of trustmix, done."""
        return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=True, cwd=self.folder)

    @property
    def out(self) -> Path:
        """The run directory."""
        return self.folder / "run"

    @property
    def address(self) -> str:
        """Where nodes join."""
        return f"127.0.0.1:{self.port}"

    def serve(self, *options: str) -> "subprocess.Popen[bytes]":
        """Start the server."""
        sets = [part for setting in self.settings for part in ("--set", setting)]
        keys = ["--keys", str(self.folder / "keys" / "server")] if self.secure else ["--insecure"]
        return self._start(
            "serve", "serve", self.recipe, *sets, "--address", self.address, "--out", str(self.out), *keys, *options
        )

    def join(self, node: str, file: str | None = None, keys: Path | None = None) -> "subprocess.Popen[bytes]":
        """Start a node; by default its id is the number of its share in the recipe's split."""
        place = self.folder / f"node-{node}.toml"
        place.write_text(file or f"share = {node}\n")
        given = ["--keys", str(keys or self.folder / "keys" / node)] if self.secure else ["--insecure"]
        return self._start(node, "join", self.address, "--node", str(place), *given)

    def _start(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen([*COMMAND, *arguments], stdout=log, stderr=log, cwd=self.folder)
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        """What a process has printed."""
        file = self.folder / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def rounds(self) -> list[dict[str, Any]]:
        """The lines of rounds.jsonl."""
        file = self.out / "rounds.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def wait(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for something to be so."""
        end = time.monotonic() + seconds
        while not ready():
            failed = [name for name, process in self.processes.items() if name == "serve" and process.poll()]
            if time.monotonic() > end or failed:
                logs = "\n".join(f"--- {name}\n{self.log(name)[-1500:]}" for name in self.processes)
                raise TimeoutError(f"{what} did not happen within {seconds} s\n{logs}")
            time.sleep(0.1)

    def finish(self, seconds: float) -> int:
        """Wait for the server to end, and tell its exit code."""
        self.wait(lambda: self.processes["serve"].poll() is not None, seconds, "the end of the run")
        return int(self.processes["serve"].returncode)

    def kill_child(self, name: str, program: str) -> None:
        """Kill -9 the Flower program that a process looks after."""
        os.kill(child_of(self.processes[name].pid, program), signal.SIGKILL)

    def close(self) -> None:
        """End everything."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def child_of(parent: int, program: str) -> int:
    """The process id of a running child by its program."""
    for child in psutil.Process(parent).children():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if program in " ".join(child.cmdline()):
                return int(child.pid)
    raise LookupError(f"process {parent} has no child {program}")


class FlowerCommands:
    """Flower's own programs on loopback: a SuperLink with TLS and keys of nodes, SuperNodes, `flwr run`."""

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        self.folder, self.port = folder, free_port()
        self.environment = {**os.environ, **flower_env(folder), "PATH": f"{BIN}:{os.environ['PATH']}"}
        self.programs: list[subprocess.Popen[bytes]] = []
        keys = folder / "keys"
        make_keys(keys, ["127.0.0.1"], nodes)
        home = Path(self.environment["FLWR_HOME"])
        home.mkdir(parents=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "mine"\n[superlink.mine]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{keys / "ca.crt"}"\n'
        )
        server = keys / "server"
        files = ["--ssl-ca-certfile", server / "ca.crt", "--ssl-certfile", server / "server.crt"]
        files += ["--ssl-keyfile", server / "server.key", "--enable-supernode-auth"]
        self.start("flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), *map(str, files))

    def start(self, program: str, *options: str) -> None:
        """Start one of Flower's programs."""
        with open(self.folder / f"{program}.log", "ab") as log:
            command = [str(BIN / program), *options]
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, cwd=self.folder)
        self.programs.append(process)

    def flwr(self, *arguments: str, seconds: float) -> "subprocess.CompletedProcess[str]":
        """A command of `flwr`, done."""
        command, environment = [str(BIN / "flwr"), *arguments], self.environment
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, cwd=self.folder, timeout=seconds
        )

    def join(self, node: str, config: str, seconds: float) -> None:
        """Register a node's key, once the SuperLink answers, and start its SuperNode."""
        keys, end = self.folder / "keys", time.monotonic() + seconds
        public = str(keys / "server" / "nodes" / f"{node}.pub")
        while (done := self.flwr("supernode", "register", public, "mine", "--name", node, seconds=seconds)).returncode:
            if time.monotonic() > end:
                raise TimeoutError(done.stdout + done.stderr)
            time.sleep(0.5)
        files = ["--root-certificates", str(keys / node / "ca.crt")]
        files += ["--auth-supernode-private-key", str(keys / node / "node.key")]
        where = ["--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(free_port())]
        self.start("flower-supernode", *where, *files, "--node-config", config)

    def run(self, app: Path, config: str, seconds: float) -> str:
        """Run an app to its end; what it printed."""
        done = self.flwr("run", str(app), "mine", "--stream", "--run-config", config, seconds=seconds)
        return done.stdout + done.stderr

    def close(self) -> None:
        """End everything."""
        for program in reversed(self.programs):
            program.terminate()
        for program in self.programs:
            try:
                program.wait(20)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
