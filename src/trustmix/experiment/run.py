"""Run a recipe, with its callbacks and its run directory."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trustmix.callbacks import MLflow, ProgressBar, TensorBoard, WandB, in_notebook
from trustmix.data.inference import InputSpec
from trustmix.errors import StorageError, TrustmixError
from trustmix.experiment.build import Experiment, build_federation, model_factories
from trustmix.experiment.data import load_data, split_data
from trustmix.experiment.run_directory import RunDirectory
from trustmix.experiment.saved_models import CLIENT_NAME, save_models
from trustmix.federation import Callback, DiskStore, History
from trustmix.federation.callbacks import running
from trustmix.learners import Training
from trustmix.settings.recipe import Recipe
from trustmix.settings.toml_settings import toml_value
from trustmix.theory.callback import TheoryCallback
from trustmix.theory.probe import TheoryProbe


def run(
    recipe: str | Path | Mapping[str, object] | Recipe,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
    first_stages: str | Path | None = None,
    **settings: object,
) -> History:
    """Run a recipe.

    Parameters
    ----------
    recipe : str, Path, mapping or Recipe
        The name of a built-in recipe, a TOML file, settings by key, or a recipe.
    out : str or Path, optional
        The run directory; without it nothing is written.
    resume : bool
        Whether to resume the run in the directory.
    overwrite : bool
        Whether to replace a run that is in the directory.
    progress : bool, optional
        Whether to show a progress bar; by default one is shown in notebooks.
    callbacks : sequence of Callback
        Observers of the run.
    first_stages : str or Path, optional
        A directory that keeps first private stages for other runs; a stage that is there is begun from.
    **settings
        Changes of the recipe, such as `rounds=2` or `split={"classes_per_client": 3}`; other keys of a section stay.

    Returns
    -------
    History
        All rounds, those before a resumption included.

    Raises
    ------
    TrustmixError
        If the recipe cannot be run, or the directory holds other files or another run.

    Examples
    --------
    >>> history = run("digits", rounds=1, clients=5, split={"samples_per_client": 40})
    >>> history.best_accuracy > 0.1
    True
    """
    recipe = Recipe.load(recipe, _changes(settings))
    if in_notebook() if progress is None else progress:
        callbacks = [*callbacks, ProgressBar()]
    shared = None if first_stages is None else Path(first_stages)
    if out is None:
        _require_directory(recipe, resume=resume, overwrite=overwrite)
        with build_federation(recipe, callbacks=callbacks, first_stages=shared) as experiment, running(callbacks, []):
            return replace(experiment.federation.run(recipe.rounds), metric=recipe.metric)
    record = RunDirectory(Path(out))
    recipe = record.check(recipe, resume=resume, overwrite=overwrite)
    if resume and record.finished:
        return History(record.rounds(), recipe.metric)
    observers = [*make_callbacks(recipe, record), *callbacks]
    with build_federation(recipe, record, callbacks=observers, first_stages=shared) as experiment:
        return _run_and_record(experiment, record, observers, overwrite=overwrite)


def _changes(settings: Mapping[str, object]) -> list[str]:
    """Settings given as keyword arguments, as the command line has them; of a section, each key by itself."""
    found = []
    for key, value in settings.items():
        inner = (
            {f"{key}.{name}": entry for name, entry in value.items()} if isinstance(value, Mapping) else {key: value}
        )
        for name, entry in inner.items():
            try:
                found += [] if entry is None else [f"{name}={toml_value(_plain(entry))}"]
            except TypeError as error:
                raise TrustmixError(f"{name} is {entry!r}; a recipe takes texts, numbers and lists of them.") from error
    return found


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _run_and_record(
    experiment: Experiment, record: RunDirectory, callbacks: Sequence[Callback], *, overwrite: bool
) -> History:
    """Run all rounds and write them to the run directory, then the models and the summary."""
    recipe = experiment.recipe
    with (
        record.begin(recipe, overwrite=overwrite, data=experiment.fingerprints()),
        running(callbacks, record.rounds()),
    ):
        _validate_states(record)
        for line in experiment.federation.iter_rounds(recipe.rounds, checkpoint=record.checkpoint):
            record.append(line)
        history = History(record.rounds(), recipe.metric)
        save_models(record.path, recipe, InputSpec.from_dataset(experiment.data), len(history.rounds))
        record.finish(history, recipe.method)
    return history


def _validate_states(record: RunDirectory) -> None:
    """Refuse to resume without the states that the clients had at the last commit."""
    state = record.checkpoint.load()
    for client, needed in state.states.items():
        folder = record.path / "checkpoint" / "clients" / client
        if not re.fullmatch(CLIENT_NAME, client):
            raise StorageError(f'The checkpoint in {record.path} names the client "{client}", which no run has.')
        if (DiskStore(folder).newest_before(max(state.exchange, needed) + 1) or 0) < needed:
            raise StorageError(
                f"{folder} lacks the state of round {needed}; restore it, or start anew with --overwrite."
            )


def _require_directory(recipe: Recipe, *, resume: bool, overwrite: bool) -> None:
    """Refuse arguments and settings that need a run directory."""
    needs = {
        "resume": resume,
        "overwrite": overwrite,
        "track.tensorboard": recipe.track.tensorboard is not None,
        "track.mlflow": recipe.track.mlflow is not None,
        "track.wandb": recipe.track.wandb is not None,
        "theory.every": recipe.theory.every is not None,
    }
    for name in (name for name, is_set in needs.items() if is_set):
        raise TrustmixError(f"{name} needs a run directory; give out.")


def make_callbacks(recipe: Recipe, record: RunDirectory) -> list[Callback]:
    """Create the callbacks that a recipe asks for: trackers and measurements of the theory.

    Parameters
    ----------
    recipe : Recipe
        The recipe; its sections [track] and [theory] apply.
    record : RunDirectory
        The run directory.

    Returns
    -------
    list of Callback
        The callbacks.

    Raises
    ------
    TrustmixError
        If a library is missing, or the theory cannot be measured on such a run.

    Examples
    --------
    >>> make_callbacks(Recipe.load("demo"), RunDirectory(Path("runs/demo")))
    []
    """
    found: list[Callback] = []
    if recipe.track.tensorboard is not None:
        found.append(TensorBoard(Path(recipe.track.tensorboard), record.path))
    if recipe.track.mlflow is not None:
        found.append(MLflow(recipe.track.mlflow, record.path, recipe.settings()))
    if recipe.track.wandb is not None:
        found.append(WandB(recipe.track.wandb, record.path, recipe.settings()))
    tau = recipe.method.tau
    if recipe.theory.every is not None and tau is not None:
        found.append(TheoryCallback(build_probe(recipe), record.path, recipe.theory.every, tau))
    return found


def build_probe(recipe: Recipe) -> TheoryProbe:
    """Create the probe that measures the theory on runs of a recipe.

    Parameters
    ----------
    recipe : Recipe
        The recipe; its data are loaded and split.

    Returns
    -------
    TheoryProbe
        The probe.

    Raises
    ------
    TrustmixError
        If the recipe has [privacy], or its data and models cannot be built.
    """
    if recipe.privacy.epsilon is not None:
        raise TrustmixError("The theory is measured on uploads as the paper has them, not on those of [privacy].")
    if recipe.density.refresh != "every":
        raise TrustmixError(
            "The theory is measured on scores of each round's models; density.refresh keeps older ones."
        )
    data = load_data(recipe)
    public, shares = split_data(recipe, data)
    return TheoryProbe(
        public,
        shares,
        model_factories(recipe, data),
        data.test,
        training=Training(**recipe.train.model_dump()),
        rounds=recipe.rounds,
        seed=recipe.seed,
        density=recipe.density.kind,
        standardise=recipe.density.standardise,
        augment_calibration=recipe.density.calibration == "augmented",
        device="cpu" if recipe.engine.device == "auto" else recipe.engine.device,
        reference=recipe.theory.reference,
    )
