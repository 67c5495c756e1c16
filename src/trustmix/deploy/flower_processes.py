"""Flower's own programs as child processes: flower-superlink beside the server, flower-supernode beside a client.

Both run with `--isolation process`: the app's part is then played by the calling process (see `tasks`), so that a node
never runs code that came over the network, and a round does not wait for a Python process to start. A secret that only
the caller and its child know keeps other users of the machine from taking the tasks.
"""

import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trustmix.deploy.keys import NodeKeys, ServerKeys
from trustmix.engines.process_pool import die_with_parent
from trustmix.errors import TrustmixError


@dataclass
class FlowerProcess:
    """One of Flower's programs and what it needs: a folder for its log and its secret, and a port on loopback."""

    name: str
    folder: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def address(self) -> str:
        """Where its runtime interface listens; on loopback, always."""
        return f"127.0.0.1:{self.port}"

    @property
    def secret(self) -> bytes:
        """What tells the caller from other users of this machine; made once."""
        file = self.folder / "secret"
        if not file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(handle, secrets.token_bytes(32))
            os.close(handle)
        return file.read_bytes()

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.folder / f"{self.name}.log"

    def start(self, options: Sequence[str]) -> None:
        """Start it anew; it ends with this process, however that ends."""
        self.stop()
        program = Path(sys.executable).with_name(self.name)
        if not program.exists():
            raise TrustmixError(
                f'{program} is not there; install Flower beside trustmix: pip install "trustmix[flower]".'
            )
        _ = self.secret
        common = ["--isolation", "process", "--superexec-auth-secret-file", str(self.folder / "secret")]
        common += ["--host", "127.0.0.1", "--port", str(self.port)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - Flower's own programs, beside this Python
                [str(program), *common, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **flower_env(self.folder)},
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """End it, at first kindly: a node that ends says goodbye to its server."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.process = None

    def last_words(self) -> str:
        """The end of its log, on one line."""
        text = self.log.read_text("utf-8", "replace") if self.log.exists() else ""
        lines = [" ".join(re.sub(r"\x1b\[\d*m", "", line).split()) for line in text.splitlines()]
        errors = [index for index, line in enumerate(lines) if line.startswith("ERROR")]
        return " ".join(lines[errors[-1] :][:3] if errors else lines[-2:])[-400:]


def flower_env(folder: Path) -> dict[str, str]:
    """Settings under which Flower calls nobody and writes nowhere but into the folder."""
    return {
        "FLWR_HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }


class SuperLink(FlowerProcess):
    """The server's post office. It forgets everything when it ends: what lasts is in the run directory."""

    def __init__(self, folder: Path, keys: ServerKeys | None) -> None:
        super().__init__("flower-superlink", folder, free_port())
        self.keys = keys

    def launch(self) -> None:
        """Start it."""
        if self.keys is None:
            self.start(["--insecure"])
            return
        files = ["--ssl-ca-certfile", str(self.keys.authority), "--ssl-certfile", str(self.keys.certificate)]
        self.start([*files, "--ssl-keyfile", str(self.keys.key), "--enable-supernode-auth"])


class SuperNode(FlowerProcess):
    """A node's postman: it fetches messages from the server and brings the answers."""

    def __init__(self, folder: Path, server: str, keys: NodeKeys | None) -> None:
        super().__init__("flower-supernode", folder, free_port())
        self.server, self.keys = server, keys

    def launch(self) -> None:
        """Start it."""
        if self.keys is None:
            self.start(["--superlink", self.server, "--insecure"])
            return
        files = ["--root-certificates", str(self.keys.authority), "--auth-supernode-private-key", str(self.keys.key)]
        self.start(["--superlink", self.server, *files])


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(ready: Callable[[], bool], seconds: float, program: FlowerProcess) -> None:
    """Wait for a program to answer; `ready` is a function that says whether it does."""
    end = time.monotonic() + seconds
    while not ready():
        if not program.alive:
            raise TrustmixError(f"{program.name} ended as soon as it was started: {program.last_words()}")
        if time.monotonic() > end:
            raise TrustmixError(f"{program.name} did not answer within {seconds:g} s; see {program.log}.")
        time.sleep(0.2)
