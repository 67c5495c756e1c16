"""The theory on one round of a run, as a line of theory.jsonl: written by the probe, read by the analysis."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from trustmix import storage
from trustmix.errors import StorageError

Reference: TypeAlias = Literal["model", "labels"]
"""What counts as p*: a model trained on all private data, or the public labels."""
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
        """The measurement as one line of JSON; an infinite alpha, that of a perfect teacher, is written as null."""
        return json.dumps({k: None if v == float("inf") else v for k, v in asdict(self).items()})

    @classmethod
    def from_json(cls, line: str) -> "Measurement":
        """Read a line that `to_json` has written.

        Parameters
        ----------
        line : str
            One line of theory.jsonl.

        Returns
        -------
        Measurement
            The measurement.

        Raises
        ------
        StorageError
            If the line is no JSON, or has other fields than a measurement.
        """
        try:
            fields = json.loads(line)
            return cls(**fields | ({"alpha": float("inf")} if fields["alpha"] is None else {}))
        except (ValueError, TypeError, KeyError) as error:
            raise StorageError(f"This line of {FILE_NAME} is no measurement ({error}): {line[:60]}") from error


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
    return [Measurement.from_json(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


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
