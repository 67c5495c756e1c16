"""Rounds told to TensorBoard and MLflow (the extra `track`) as they end. `rounds.jsonl` stays the record.

Both are brought up to the record when a run begins, so that a resumed run has every round once: TensorBoard's files are
written anew, MLflow's run, whose id is kept in the run directory, gets the rounds that it lacks. While a run goes on, a
tracker that cannot be reached does not stop it: the rounds it missed are told with the next one.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from trustmix import storage
from trustmix.errors import TrustmixError
from trustmix.experiment.config import TrackConfig
from trustmix.experiment.recipe import Recipe
from trustmix.experiment.run_directory import RunDirectory
from trustmix.federation import Round
from trustmix.imports import require_extra

log = logging.getLogger(__name__)

Tell: TypeAlias = Callable[[Round], None]


def validate_trackers(track: TrackConfig) -> None:
    """Refuse before anything is trained what needs a library that is not installed."""
    if track.tensorboard is not None:
        require_extra("tensorboard", "track.tensorboard", "track")
    if track.mlflow is not None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        require_extra("mlflow", "track.mlflow", "track")


@contextmanager
def start_trackers(recipe: Recipe, record: RunDirectory) -> Iterator[Tell]:
    """A function that tells a round to the recipe's trackers; it has told those of the record already."""
    with ExitStack() as stack:
        tellers: list[Tell] = []
        if recipe.track.tensorboard is not None:
            tellers.append(stack.enter_context(_tensorboard(Path(recipe.track.tensorboard), record)))
        if recipe.track.mlflow is not None:
            tellers.append(stack.enter_context(_mlflow(recipe.track.mlflow, recipe, record)))

        def tell(line: Round) -> None:
            for one in tellers:
                one(line)

        yield tell


def scalar_metrics(line: Round) -> dict[str, float]:
    """The numbers of a round by name; seconds by stage, clients counted.

    >>> scalar_metrics(Round(2, "suwa", accuracy_mean=0.5, seconds={"train": 1.5}))["accuracy_mean"]
    0.5
    """
    fields = asdict(line)
    found = {name: value for name, value in fields.items() if isinstance(value, int | float) and name != "round"}
    found |= {name: len(fields[name]) for name in ("participants", "failed")}
    found |= {f"seconds/{stage}": value for stage, value in line.seconds.items()}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def run_name(folder: Path) -> str:
    """A run directory's name among others: its path, from the current folder where it lies below.

    >>> run_name(Path("runs/avg3"))
    'runs/avg3'
    """
    whole = folder.expanduser().resolve()
    here = Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else whole.relative_to(whole.anchor))


@contextmanager
def _tensorboard(folder: Path, record: RunDirectory) -> Iterator[Tell]:
    own = folder.expanduser() / run_name(record.path)
    for file in own.glob("events.out.tfevents.*"):
        file.unlink()
    try:
        writer = require_extra("torch.utils.tensorboard", "track.tensorboard", "track").SummaryWriter(str(own))
    except OSError as error:
        raise TrustmixError(f"track.tensorboard: {own} cannot be written ({error.strerror}).") from error

    def tell(line: Round) -> None:
        for name, value in scalar_metrics(line).items():
            writer.add_scalar(name, value, line.round)
        writer.flush()

    try:
        for line in record.rounds():
            tell(line)
        yield tell
    finally:
        writer.close()


@contextmanager
def _mlflow(uri: str, recipe: Recipe, record: RunDirectory) -> Iterator[Tell]:
    mlflow = require_extra("mlflow", "track.mlflow", "track")
    try:
        client = mlflow.MlflowClient(tracking_uri=_uri(uri))
        run = _mlflow_run(client, uri, recipe, record)
        told = {
            name: {m.step for m in client.get_metric_history(run, name)} for name in client.get_run(run).data.metrics
        }
    except Exception as error:  # whatever the library or the network says is the reason
        raise TrustmixError(f"track.mlflow: {uri} cannot be used ({_reason(error)}).") from error
    waiting: list[Round] = []

    def tell(line: Round) -> None:
        waiting.append(line)
        try:
            while waiting:
                _log(mlflow, client, run, waiting[0], told)
                waiting.pop(0)
        except Exception as error:  # noqa: BLE001 - the run goes on whatever becomes of its tracker
            log.warning("MLflow did not take round %d (%s); it is tried again.", waiting[0].round, _reason(error))

    status = "FAILED"
    try:
        for line in record.rounds():
            tell(line)
        yield tell
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        try:
            client.set_terminated(run, status)
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("MLflow was not told that the run is over (%s).", _reason(error))


def _uri(uri: str) -> str:
    """MLflow's URI as it is; of a folder, the database in it."""
    if "://" in uri or uri == "databricks":
        return uri
    folder = Path(uri).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}"


def _mlflow_run(client: Any, uri: str, recipe: Recipe, record: RunDirectory) -> str:
    """The id of the run directory's run: the one it had before, or a new one with the recipe as parameters."""
    file = record.path / "mlflow.json"
    if file.is_file():
        known = str(storage.read_json(file)["run"])
        client.update_run(known, status="RUNNING")
        return known
    experiment = client.get_experiment_by_name("trustmix")
    number = experiment.experiment_id if experiment else client.create_experiment("trustmix")
    run = client.create_run(number, run_name=run_name(record.path))
    for name, value in _flat(recipe.model_dump(mode="json", exclude_none=True)).items():
        client.log_param(run.info.run_id, name, value)
    storage.write_json(file, {"uri": uri, "run": run.info.run_id})
    return str(run.info.run_id)


def _log(mlflow: Any, client: Any, run: str, line: Round, told: Mapping[str, set[int]]) -> None:
    stamp = int(1000 * time.time())
    news = {name: value for name, value in scalar_metrics(line).items() if line.round not in told.get(name, ())}
    metrics = [mlflow.entities.Metric(name, value, stamp, line.round) for name, value in news.items()]
    client.log_batch(run, metrics=metrics)


def _flat(fields: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Settings as section.key.

    >>> _flat({"seed": 0, "data": {"name": "digits"}})
    {'seed': 0, 'data.name': 'digits'}
    """
    found: dict[str, Any] = {}
    for key, value in fields.items():
        found |= _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return found


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
