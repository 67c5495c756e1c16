"""The W&B tracker (the extra `track`), which logs every round as it ends.

The id of the W&B run is stored in the run directory, and so are the files that W&B keeps itself. Where those files are
all there is (`WANDB_MODE=offline`), a resume writes them again, so that every round is in them once. A failure of W&B
does not stop the run: the rounds that it missed are logged with the next one.
"""

import logging
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trustmix import storage
from trustmix.callbacks.tracking import Tracker, error_reason, flatten, run_name, scalar_metrics
from trustmix.errors import TrustmixError
from trustmix.federation.history import Round
from trustmix.imports import require_extra

log = logging.getLogger(__name__)

QUIET = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "save_code": False,
    "x_disable_meta": True,
    "x_disable_stats": True,
}
"""Settings of W&B: nothing is printed, and nothing is recorded but what is logged."""


class WandB(Tracker):
    """Logs the scalar metrics of every round, and the recipe as the configuration.

    Only these leave the machine: the console, the code, the state of git and the load of the machine are not recorded.

    Parameters
    ----------
    project
        The project of W&B, or entity/project.
    run_directory
        The run directory; its file wandb.json stores the id of the W&B run, its folder wandb the files of W&B.
    settings
        The settings of the recipe, nested.

    Raises
    ------
    TrustmixError
        If W&B is not installed.
    """

    name = "W&B"

    def __init__(self, project: str, run_directory: Path, settings: Mapping[str, Any]) -> None:
        super().__init__()
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._wandb = require_extra("wandb", "track.wandb", "track")
        self.project, self.run_directory, self.settings = project, run_directory, settings
        self._run: Any = None

    def on_run_begin(self, rounds: Sequence[Round]) -> None:
        """Start or continue the W&B run, and log the rounds that it lacks.

        Parameters
        ----------
        rounds
            The rounds before a resume; empty for a new run.

        Raises
        ------
        TrustmixError
            If W&B cannot be used, such as without a login and without `WANDB_MODE=offline`.
        """
        entity, _, project = self.project.rpartition("/")
        try:
            self._run = self._wandb.init(
                project=project,
                entity=entity or None,
                id=self._find_id(),
                name=run_name(self.run_directory),
                dir=str(self.run_directory),
                config=flatten(self.settings),
                resume=None if os.environ.get("WANDB_MODE") == "offline" else "allow",
                settings=self._wandb.Settings(**QUIET),
            )
            self._remove_older_files()
        except Exception as error:  # the library and the network raise exceptions of many types
            raise TrustmixError(f"track.wandb: {self.project} cannot be used ({error_reason(error)}).") from error
        for line in rounds:
            if line.round >= self._run.step:
                self.on_round_end(line)

    def log_round(self, line: Round) -> None:
        """Log the metrics of a round."""
        self._run.log(scalar_metrics(line), step=line.round)

    def on_run_end(self, error: BaseException | None) -> None:
        """Mark the W&B run as finished or failed.

        Parameters
        ----------
        error
            The exception that ended the run; None if it has finished.
        """
        if self._run is None:
            return
        try:
            self._run.finish(exit_code=0 if error is None else 1)
        except Exception as problem:  # noqa: BLE001 - as above
            log.warning("W&B could not be informed that the run is over (%s).", error_reason(problem))

    def _find_id(self) -> str:
        """The id of the W&B run: the stored one, or a new one."""
        file = self.run_directory / "wandb.json"
        if not file.is_file():
            storage.write_json(file, {"project": self.project, "run": secrets.token_hex(4)})
        return str(storage.read_json(file)["run"])

    def _remove_older_files(self) -> None:
        """Delete what an offline run wrote before a resume: all rounds are written again."""
        if not self._run.offline:
            return
        current = Path(self._run.settings.sync_dir).resolve()
        for folder in current.parent.glob(f"offline-run-*-{self._run.id}"):
            if folder.resolve() != current:
                shutil.rmtree(folder)
