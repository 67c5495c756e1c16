"""The theory on one round of a run, as a line of theory.jsonl: written by the probe, read by the analysis."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from trustmix import records, storage

Reference: TypeAlias = Literal["model", "labels"]
"""What counts as p*: a model trained on all private data, or the public labels."""
FORMAT = 1
"""The version of a line of theory.jsonl."""
FILE_NAME = "theory.jsonl"


@dataclass(frozen=True)
class Measurement:
    """The quantities of the theory on one round. Names ending in 2 are squares: b2 is b^2."""

    round: int
    method: str
    reference: str
    """What counts as p*: "model" or "labels"."""
    clients: int
    concentration: float
    effective_clients: float
    teacher_error: float
    """eps_teach against the reference."""
    label_error: float | None
    """The same against the public labels, where they are known."""
    score_energy: float
    """G_sc^2, the largest of all measured points."""
    c: float
    b2: float
    alpha: float
    m: float
    zeta2: float
    noise: float
    """nu^2, the largest of all measured points."""
    smoothness: float
    """L_F between the measured points."""
    pl: float | None
    """mu_F of the measured points."""
    floor: float
    """zeta^2/(1 - m), the floor of ||grad F||^2."""
    pl_floor: float | None
    """The floor of F - F* at the step size 1/L_F."""
    gradient: float
    """||grad F||^2, the mean over the stage; it compares with `floor`."""
    gap: float
    """F - F* at the end of the stage; it compares with `pl_floor`."""
    discrepancy: float
    """||grad J_agg - grad J*||^2, the largest of all measured points, which the theory bounds by G_sc^2 eps_teach."""

    def to_json(self) -> str:
        """The measurement as one line of JSON; an infinite alpha, of a perfect teacher, is written as null."""
        values = {name: None if value == float("inf") else value for name, value in asdict(self).items()}
        return json.dumps({"format": FORMAT, **values})

    @classmethod
    def from_json(cls, line: str, source: str = "theory.jsonl") -> "Measurement":
        """Read a line that `to_json` has written.

        Parameters
        ----------
        line : str
            One line of theory.jsonl; fields that this version of trustmix does not know are ignored.
        source : str
            What an error message calls the line.

        Returns
        -------
        Measurement
            The measurement.

        Raises
        ------
        StorageError
            If the line is anything else, or is of a newer format.
        """
        record = records.validate_record(storage.parse_json(line, source), FORMAT, source)
        perfect = "alpha" in record and record["alpha"] is None
        found = records.parse_record(cls, {**record, "alpha": 0.0} if perfect else record, FORMAT, source)
        return replace(found, alpha=float("inf")) if perfect else found


def read_measurements(folder: Path) -> list[Measurement]:
    """Read the measurements of a run.

    Parameters
    ----------
    folder : Path
        The run directory.

    Returns
    -------
    list of Measurement
        In the order of rounds; empty if nothing was measured.

    Raises
    ------
    StorageError
        If a line of theory.jsonl is no measurement.
    """
    file = folder / FILE_NAME
    lines = storage.read_bytes(file).decode("utf-8", "replace").splitlines() if file.exists() else []
    return [Measurement.from_json(line, f"{file}, line {number}") for number, line in enumerate(lines, start=1)]


def append_measurement(folder: Path, measurement: Measurement) -> None:
    """Add a measurement to theory.jsonl, in place of that round and later ones, which a resumed run measures again.

    Parameters
    ----------
    folder : Path
        The run directory.
    measurement : Measurement
        What is added.
    """
    kept = [found for found in read_measurements(folder) if found.round < measurement.round]
    lines = [found.to_json() + "\n" for found in [*kept, measurement]]
    storage.write_bytes(folder / FILE_NAME, "".join(lines).encode())
