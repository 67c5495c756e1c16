"""The theory measured while a run goes on: each n-th round into theory.jsonl."""

from pathlib import Path

from trustmix.federation.callbacks import Callback
from trustmix.federation.history import Round
from trustmix.theory.probe import TheoryProbe


class TheoryCallback(Callback):
    """Measures each n-th round.

    Parameters
    ----------
    probe
        What measures.
    folder
        The run directory, whose clients' states it reads and where theory.jsonl lies.
    every
        n.
    tau
        The temperature of the run's rule.
    """

    def __init__(self, probe: TheoryProbe, folder: Path, every: int, tau: float) -> None:
        self.probe, self.folder, self.every, self.tau = probe, folder, every, tau

    def on_round_end(self, line: Round) -> None:
        """Measure the round, if it is its turn."""
        if line.round % self.every == 0:
            self.probe.append(self.folder, line, self.tau)
