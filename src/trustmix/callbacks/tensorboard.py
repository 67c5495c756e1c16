"""The TensorBoard tracker (the extra `track`), which writes every round as it ends.

The event files are written again when a run begins or is resumed, so that a resumed run has every round once.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trustmix.callbacks.tracking import run_name, scalar_metrics
from trustmix.errors import TrustmixError
from trustmix.federation.callbacks import Callback
from trustmix.federation.history import Round
from trustmix.imports import require_extra


class TensorBoard(Callback):
    """Writes the scalar metrics of every round.

    Parameters
    ----------
    folder
        The log folder of TensorBoard; the run has a folder of its own in it.
    run_directory
        The run directory, whose path is the name of the run.

    Raises
    ------
    TrustmixError
        If TensorBoard is not installed.
    """

    def __init__(self, folder: Path, run_directory: Path) -> None:
        require_extra("tensorboard", "track.tensorboard", "track")
        self.folder = folder.expanduser() / run_name(run_directory)
        self._writer: Any = None

    def on_run_begin(self, rounds: Sequence[Round]) -> None:
        """Write the rounds before a resume.

        Parameters
        ----------
        rounds
            The rounds; empty for a new run.

        Raises
        ------
        TrustmixError
            If the folder cannot be written.
        """
        for file in self.folder.glob("events.out.tfevents.*"):
            file.unlink()
        writers = require_extra("torch.utils.tensorboard", "track.tensorboard", "track")
        try:
            self._writer = writers.SummaryWriter(str(self.folder))
        except OSError as error:
            raise TrustmixError(f"track.tensorboard: {self.folder} cannot be written ({error.strerror}).") from error
        for line in rounds:
            self.on_round_end(line)

    def on_round_end(self, line: Round) -> None:
        """Write one round.

        Parameters
        ----------
        line
            The round.
        """
        for name, value in scalar_metrics(line).items():
            self._writer.add_scalar(name, value, line.round)
        self._writer.flush()

    def on_run_end(self, error: BaseException | None) -> None:  # noqa: ARG002 - the interface
        """Close the event files.

        Parameters
        ----------
        error
            The exception that ended the run; not used.
        """
        if self._writer is not None:
            self._writer.close()
