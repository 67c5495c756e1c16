"""Flower's own programs as child processes: flower-superlink beside the server, flower-supernode beside a client.

Both run with `--isolation process`: the calling process does the app's tasks (see `superlink`). So a node never runs
code that came over the network, and no round waits for a Python process to start. A secret that only the caller and
its child have keeps other users of the machine from taking the tasks.
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

from trustmix import storage
from trustmix.engines.process_pool import die_with_parent
from trustmix.errors import TrustmixError
from trustmix.transport.keys import NodeKeys, ServerKeys

STOP_TIMEOUT = 5.0
"""Seconds that a program may take to end before it is killed."""
MAX_LOG_BYTES = 10 * 2**20
"""The size of a program's log from which on a new start begins a new one; the last one is kept."""
LOST_REPLY = b"Failed to send message "
"""What flower-supernode prints if a connection breaks while it sends a reply, which it then forgets."""
READY_POLL_INTERVAL = 0.2
"""Seconds between two checks whether a program answers."""


@dataclass
class FlowerProcess:
    """One of Flower's programs as a child process.

    Parameters
    ----------
    name : str
        The program.
    folder : Path
        Where its log, its secret and its own files go.
    port : int
        Where its runtime interface listens, always on loopback.
    """

    name: str
    folder: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def address(self) -> str:
        """The address of its runtime interface."""
        return f"127.0.0.1:{self.port}"

    @property
    def secret_file(self) -> Path:
        """The file of the secret."""
        return self.folder / "secret"

    @property
    def secret(self) -> bytes:
        """The secret that a process needs to take tasks; created at first use."""
        if not self.secret_file.exists():
            storage.make_private_directory(self.folder)
            handle = os.open(self.secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(handle, secrets.token_bytes(32))
            os.close(handle)
        return self.secret_file.read_bytes()

    @property
    def log_file(self) -> Path:
        """The file of its output."""
        return self.folder / f"{self.name}.log"

    def start(self, options: Sequence[str]) -> None:
        """Start the program, or start it again; it ends with this process, however that ends.

        Parameters
        ----------
        options : sequence of str
            Command line options in addition to those of every program.

        Raises
        ------
        TrustmixError
            If Flower is not installed beside this Python.
        """
        self.stop()
        program = Path(sys.executable).with_name(self.name)
        if not program.exists():
            raise TrustmixError(
                f'{program} is not there; install Flower beside trustmix: pip install "trustmix[flower]".'
            )
        storage.make_private_directory(self.folder)
        _ = self.secret  # the program reads its file
        common = ["--isolation", "process", "--superexec-auth-secret-file", str(self.secret_file)]
        common += ["--host", "127.0.0.1", "--port", str(self.port)]
        if self.log_file.exists() and self.log_file.stat().st_size > MAX_LOG_BYTES:
            self.log_file.replace(self.log_file.with_name(self.log_file.name + ".1"))
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - Flower's own programs, beside this Python
                [str(program), *common, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **flower_env(self.folder)},
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )

    @property
    def is_running(self) -> bool:
        """Whether the program runs."""
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """Terminate the program, which lets a node deactivate itself at its server; kill it after a timeout."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.process = None

    def log_tail(self) -> str:
        """The last error in its log, or the last two lines, on one line."""
        text = self.log_file.read_text("utf-8", "replace") if self.log_file.exists() else ""
        lines = [" ".join(re.sub(r"\x1b\[\d*m", "", line).split()) for line in text.splitlines()]
        errors = [index for index, line in enumerate(lines) if line.startswith("ERROR")]
        return " ".join(lines[errors[-1] :][:3] if errors else lines[-2:])[-400:]


def flower_env(folder: Path) -> dict[str, str]:
    """Environment variables under which Flower contacts no other host and writes into the folder only.

    Parameters
    ----------
    folder : Path
        The folder for Flower's files.

    Returns
    -------
    dict of str to str

    Examples
    --------
    >>> flower_env(Path("run"))["FLWR_TELEMETRY_ENABLED"]
    '0'
    """
    return {
        "FLWR_HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }


class SuperLink(FlowerProcess):
    """The server's message queue. It keeps nothing when it ends: the state of a run is in the run directory.

    Parameters
    ----------
    folder : Path
        Where its log and its secret go.
    keys : ServerKeys, optional
        The server's keys; without them there is no TLS.
    """

    def __init__(self, folder: Path, keys: ServerKeys | None) -> None:
        super().__init__("flower-superlink", folder, free_port())
        self.keys = keys

    def launch(self) -> None:
        """Start the program."""
        if self.keys is None:
            self.start(["--insecure"])
            return
        files = ["--ssl-ca-certfile", str(self.keys.ca_certificate), "--ssl-certfile", str(self.keys.certificate)]
        self.start([*files, "--ssl-keyfile", str(self.keys.private_key), "--enable-supernode-auth"])


class SuperNode(FlowerProcess):
    """A node's connection: it fetches messages from the server and delivers the replies.

    Parameters
    ----------
    folder : Path
        Where its log and its secret go.
    server : str
        The server's address, HOST:PORT.
    keys : NodeKeys, optional
        The node's keys; without them there is no TLS.
    """

    def __init__(self, folder: Path, server: str, keys: NodeKeys | None) -> None:
        super().__init__("flower-supernode", folder, free_port())
        self.server, self.keys = server, keys
        self._read_to = 0

    def has_lost_reply(self) -> bool:
        """Whether the program has given up sending a reply since the last call; it does not send it again.

        Returns
        -------
        bool
        """
        if not self.log_file.exists():
            return False
        with open(self.log_file, "rb") as log:
            begin = log.seek(self._read_to if log.seek(0, os.SEEK_END) >= self._read_to else 0)
            text = log.read()
        end = text.rfind(b"\n") + 1  # a line that is being written is read the next time
        self._read_to = begin + end
        return LOST_REPLY in text[:end]

    def launch(self) -> None:
        """Start the program."""
        self._read_to = self.log_file.stat().st_size if self.log_file.exists() else 0
        if self.keys is None:
            self.start(["--superlink", self.server, "--insecure"])
            return
        ca, key = str(self.keys.ca_certificate), str(self.keys.private_key)
        self.start(["--superlink", self.server, "--root-certificates", ca, "--auth-supernode-private-key", key])


def free_port() -> int:
    """A port of loopback that no process uses now.

    Returns
    -------
    int
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(program: FlowerProcess, is_ready: Callable[[], bool], timeout: float) -> None:
    """Wait until a program answers.

    Parameters
    ----------
    program : FlowerProcess
        The program, started.
    is_ready : callable
        Whether the program answers.
    timeout : float
        Seconds to wait.

    Raises
    ------
    TrustmixError
        If the program ends or does not answer in time.
    """
    end = time.monotonic() + timeout
    while not is_ready():
        if not program.is_running:
            raise TrustmixError(f"{program.name} ended as soon as it was started: {program.log_tail()}")
        if time.monotonic() > end:
            raise TrustmixError(f"{program.name} did not answer within {timeout:g} s; see {program.log_file}.")
        time.sleep(READY_POLL_INTERVAL)
