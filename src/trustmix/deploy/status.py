"""How a served run is doing: `status.json` in the run directory, written while `serve` runs, and what is made of it.

`trustmix status` prints it, the monitor's /health and /metrics are computed from it. It has names of clients and
figures of the record, no data.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trustmix import records, storage
from trustmix.errors import TrustmixError
from trustmix.experiment.run_directory import RunDirectory
from trustmix.federation import Round

if TYPE_CHECKING:
    from trustmix.deploy.membership import Membership

STATUS_FORMAT = 1
"""The version of status.json."""
STATUS_FILE = "status.json"
WRITE_INTERVAL = 2.0
"""Seconds between two writes while nothing but the time changes."""
FETCH_TIMEOUT = 10.0
"""Seconds that a monitor may take for an answer."""
STALE_AFTER = 60.0
"""Seconds after which a server that writes no status counts as stopped."""


@dataclass
class StatusWriter:
    """Keeps the status of a run in its directory.

    Parameters
    ----------
    folder : Path
        The run directory.
    rounds : int
        The rounds of the run.
    membership : Membership
        The clients of the run.
    expected : sequence of str
        The ids of the nodes whose keys are registered.
    certificate_expires : float, optional
        When the server's certificate expires, in seconds since 1970.
    """

    folder: Path
    rounds: int
    membership: "Membership"
    expected: Sequence[str] = ()
    certificate_expires: float | None = None
    clock: Callable[[], float] = time.time
    _round: int = field(default=0, init=False)
    _totals: dict[str, float | None] = field(default_factory=dict, init=False)
    _refused: dict[str, str] = field(default_factory=dict, init=False)
    _written: float = field(default=0.0, init=False)

    def begin(self, lines: Sequence[Round]) -> None:
        """Start with the rounds that are recorded.

        Parameters
        ----------
        lines : sequence of Round
            The rounds of a run that is resumed, or none.
        """
        self._totals = {"bytes_up": 0, "bytes_down": 0, "epsilon": None, "accuracy": None}
        for line in lines:
            self._add(line)
        self.write([])

    def add(self, line: Round) -> None:
        """Take in a round that is recorded.

        Parameters
        ----------
        line : Round
            The round.
        """
        self._add(line)
        self.write([], finished=line.round >= self.rounds)

    def _add(self, line: Round) -> None:
        totals = self._totals
        totals["bytes_up"] = (totals["bytes_up"] or 0) + line.bytes_up
        totals["bytes_down"] = (totals["bytes_down"] or 0) + line.bytes_down
        totals["epsilon"] = line.epsilon if line.epsilon is not None else totals["epsilon"]
        totals["accuracy"] = line.accuracy_mean
        self._round, self._refused = line.round, self._refused | line.refused

    def update(self, awaited: Collection[str]) -> None:
        """Write the status, unless it was written a moment ago.

        Parameters
        ----------
        awaited : collection of str
            The clients whose answers the round waits for.
        """
        if self.clock() - self._written >= WRITE_INTERVAL:
            self.write(awaited)

    def write(self, awaited: Collection[str], *, finished: bool = False) -> None:
        """Write the status.

        Parameters
        ----------
        awaited : collection of str
            The clients whose answers the round waits for.
        finished : bool
            Whether the run is over.
        """
        self._written = self.clock()
        members, here = self.membership, self.membership.connected
        known = [*members.clients, *(name for name in self.expected if name not in members.clients)]
        clients = {
            name: {
                "state": "computing" if name in awaited else "connected" if name in here else "absent",
                "heard": members.last_heard.get(name),
            }
            for name in known
        }
        record = {
            "format": STATUS_FORMAT,
            "updated": self._written,
            "finished": finished,
            "round": self._round,
            "rounds": self.rounds,
            "clients": clients,
            "refused": {
                name: reason for name, reason in {**self._refused, **members.refusals}.items() if name not in here
            },
            "certificate_expires": self.certificate_expires,
            **self._totals,
        }
        storage.write_json(self.folder / STATUS_FILE, record)


def read_status(folder: Path) -> dict[str, object]:
    """Read the status of a served run.

    Parameters
    ----------
    folder : Path
        The run directory.

    Returns
    -------
    dict of str to JSON values

    Raises
    ------
    TrustmixError
        If the directory has no status: it is no run directory, or the run was not served.
    """
    file = folder / STATUS_FILE
    if not file.is_file():
        there = (folder / "recipe.toml").is_file()
        reason = "its run was not served to nodes" if there else "it is no run directory"
        raise TrustmixError(f"{folder} has no {STATUS_FILE}: {reason}.")
    found = dict(records.validate_record(storage.read_json(file), STATUS_FORMAT, str(file)))
    found["finished"] = RunDirectory(folder).finished
    return found


def fetch_status(address: str) -> dict[str, object]:
    """The status of a run from the monitor of its server.

    Parameters
    ----------
    address : str
        HOST:PORT, or a URL that a reverse proxy has for it.

    Returns
    -------
    dict of str to JSON values

    Raises
    ------
    TrustmixError
        If the monitor does not answer, or answers with something else.
    """
    import httpx

    url = f"{address.rstrip('/') if '//' in address else f'http://{address}'}/status"
    try:
        response = httpx.get(url, timeout=FETCH_TIMEOUT)
        response.raise_for_status()
        found = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise TrustmixError(f"{url} does not answer with the status of a run ({error}).") from error
    return dict(records.validate_record(found, STATUS_FORMAT, url))


def is_alive(status: Mapping[str, object], now: float) -> bool:
    """Whether the server of a run is at work, or the run is over.

    Parameters
    ----------
    status : mapping of str to JSON values
        The result of `read_status`.
    now : float
        Seconds since 1970.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_alive({"updated": 100.0}, 110.0), is_alive({"updated": 100.0}, 1000.0)
    (True, False)
    """
    return bool(status.get("finished")) or now - _number(status.get("updated")) < STALE_AFTER


def describe_status(status: Mapping[str, object], now: float) -> list[str]:
    r"""The lines that `trustmix status` prints.

    Parameters
    ----------
    status : mapping of str to JSON values
        The result of `read_status`.
    now : float
        Seconds since 1970.

    Returns
    -------
    list of str

    Examples
    --------
    >>> clients = {"north": {"state": "computing", "heard": 98.0}, "south": {"state": "absent", "heard": None}}
    >>> status = {"updated": 99.0, "round": 3, "rounds": 20, "clients": clients, "bytes_up": 2000, "bytes_down": 0}
    >>> print("\n".join(describe_status(status, 100.0)))
    round 4 of 20 (3 recorded), 1 of 2 clients connected
      north: computing, heard 2 s ago
      south: absent, never heard
    bytes: 2,000 up, 0 down
    """
    clients = _table(status.get("clients"))
    done, rounds = int(_number(status.get("round"))), int(_number(status.get("rounds")))
    here = [name for name, client in clients.items() if _table(client).get("state") != "absent"]
    if status.get("finished"):
        first = f"finished: {done} rounds"
    elif not is_alive(status, now):
        first = f"stopped after round {done} of {rounds}; the same `trustmix serve` goes on"
    else:
        first = f"round {min(done + 1, rounds)} of {rounds} ({done} recorded)"
        first += f", {len(here)} of {len(clients)} clients connected"
    lines = [first]
    for name, client in clients.items():
        heard = _table(client).get("heard")
        ago = "never heard" if heard is None else f"heard {max(0.0, now - _number(heard)):.0f} s ago"
        lines.append(f"  {name}: {_table(client).get('state')}, {ago}")
    lines += [f"  {name}: refused, {reason}" for name, reason in _table(status.get("refused")).items()]
    lines.append(f"bytes: {int(_number(status.get('bytes_up'))):,} up, {int(_number(status.get('bytes_down'))):,} down")
    if status.get("epsilon") is not None:
        lines.append(f"epsilon spent: {_number(status['epsilon']):.3g}")
    if status.get("accuracy") is not None:
        lines.append(f"accuracy, mean over clients: {100 * _number(status['accuracy']):.1f} %")
    if status.get("certificate_expires") is not None:
        day = datetime.fromtimestamp(_number(status["certificate_expires"]), UTC).date()
        lines.append(f"the server's certificate expires on {day}")
    return lines


def format_metrics(status: Mapping[str, object], now: float) -> str:
    """The status in the text format of Prometheus.

    Parameters
    ----------
    status : mapping of str to JSON values
        The result of `read_status`.
    now : float
        Seconds since 1970.

    Returns
    -------
    str

    Examples
    --------
    >>> text = format_metrics({"updated": 99.0, "round": 3, "rounds": 20, "clients": {}}, 100.0)
    >>> "trustmix_round 3" in text.splitlines()
    True
    """
    clients = _table(status.get("clients"))
    lines: list[str] = []

    def add(name: str, text: str, samples: Mapping[str, object], kind: str = "gauge") -> None:
        known = {label: value for label, value in samples.items() if value is not None}
        if known:
            lines.extend([f"# HELP trustmix_{name} {text}", f"# TYPE trustmix_{name} {kind}"])
            lines.extend(f"trustmix_{name}{label} {_number(value):.15g}" for label, value in known.items())

    labels = {name: f'{{client="{_escape(name)}"}}' for name in clients}
    add("up", "Whether the server is at work or the run is over.", {"": float(is_alive(status, now))})
    add("finished", "Whether all rounds are done.", {"": float(bool(status.get("finished")))})
    add("round", "The last recorded round.", {"": status.get("round")})
    add("rounds", "The rounds of the run.", {"": status.get("rounds")})
    connected = {labels[name]: float(_table(client).get("state") != "absent") for name, client in clients.items()}
    add("client_connected", "Whether a client is connected.", connected)
    heard = {labels[name]: _table(client).get("heard") for name, client in clients.items()}
    add("client_last_heard_timestamp_seconds", "When a client was connected for the last time.", heard)
    add("refused_nodes", "Nodes that were refused.", {"": float(len(_table(status.get("refused"))))})
    add("upload_bytes_total", "Bytes of all uploads.", {"": status.get("bytes_up")}, "counter")
    add("teacher_bytes_total", "Bytes of all teachers.", {"": status.get("bytes_down")}, "counter")
    add("epsilon_spent", "The largest epsilon that a client has spent.", {"": status.get("epsilon")})
    add("accuracy_mean", "The mean accuracy of the clients in the last round.", {"": status.get("accuracy")})
    expiry = {"": status.get("certificate_expires")}
    add("certificate_expiry_timestamp_seconds", "When the server's certificate expires.", expiry)
    return "\n".join(lines) + "\n"


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _table(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
