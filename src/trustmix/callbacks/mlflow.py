"""The MLflow tracker (the extra `track`), which logs every round as it ends.

The id of the MLflow run is stored in the run directory, and a resumed run logs only the rounds that MLflow lacks. A
server that cannot be reached does not stop the run: the rounds that it missed are logged with the next one.
"""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trustmix import storage
from trustmix.callbacks.tracking import Tracker, error_reason, flatten, run_name, scalar_metrics
from trustmix.errors import TrustmixError
from trustmix.federation.history import Round
from trustmix.imports import require_extra

log = logging.getLogger(__name__)


class MLflow(Tracker):
    """Logs the scalar metrics of every round, and the recipe as parameters.

    Parameters
    ----------
    uri
        The tracking URI of MLflow, or a folder for its database.
    run_directory
        The run directory; its file mlflow.json stores the id of the MLflow run.
    settings
        The settings of the recipe, nested.

    Raises
    ------
    TrustmixError
        If MLflow is not installed.
    """

    name = "MLflow"

    def __init__(self, uri: str, run_directory: Path, settings: Mapping[str, Any]) -> None:
        super().__init__()
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self._mlflow = require_extra("mlflow", "track.mlflow", "track")
        self.uri, self.run_directory, self.settings = uri, run_directory, settings
        self._client: Any = None
        self._run = ""
        self._logged: dict[str, set[int]] = {}

    def on_run_begin(self, rounds: Sequence[Round]) -> None:
        """Find or create the MLflow run, and log the rounds that it lacks.

        Parameters
        ----------
        rounds
            The rounds before a resume; empty for a new run.

        Raises
        ------
        TrustmixError
            If MLflow cannot be used.
        """
        try:
            self._client = self._mlflow.MlflowClient(tracking_uri=_tracking_uri(self.uri))
            self._run = self._find_run()
            names = self._client.get_run(self._run).data.metrics
            self._logged = {
                name: {metric.step for metric in self._client.get_metric_history(self._run, name)} for name in names
            }
        except Exception as error:  # the library and the network raise exceptions of many types
            raise TrustmixError(f"track.mlflow: {self.uri} cannot be used ({error_reason(error)}).") from error
        for line in rounds:
            self.on_round_end(line)

    def on_run_end(self, error: BaseException | None) -> None:
        """Mark the MLflow run as finished, killed or failed.

        Parameters
        ----------
        error
            The exception that ended the run; None if it has finished.
        """
        if self._client is None:
            return
        status = "FINISHED" if error is None else "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        try:
            self._client.set_terminated(self._run, status)
        except Exception as problem:  # noqa: BLE001 - as above
            log.warning("MLflow could not be informed that the run is over (%s).", error_reason(problem))

    def log_round(self, line: Round) -> None:
        """Log the metrics of a round that MLflow lacks."""
        stamp = int(1000 * time.time())
        missing = {n: value for n, value in scalar_metrics(line).items() if line.round not in self._logged.get(n, ())}
        metrics = [self._mlflow.entities.Metric(name, value, stamp, line.round) for name, value in missing.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def _find_run(self) -> str:
        """The id of the MLflow run: the stored one, or that of a new run with the recipe as parameters."""
        file, client = self.run_directory / "mlflow.json", self._client
        if file.is_file():
            known = str(storage.read_json(file)["run"])
            client.update_run(known, status="RUNNING")
            return known
        experiment = client.get_experiment_by_name("trustmix")
        number = experiment.experiment_id if experiment else client.create_experiment("trustmix")
        run = client.create_run(number, run_name=run_name(self.run_directory))
        for name, value in flatten(self.settings).items():
            client.log_param(run.info.run_id, name, value)
        storage.write_json(file, {"uri": self.uri, "run": run.info.run_id})
        return str(run.info.run_id)


def _tracking_uri(uri: str) -> str:
    """The tracking URI: unchanged if it is one, or that of a database in the folder."""
    if "://" in uri or uri == "databricks":
        return uri
    folder = Path(uri).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}"
