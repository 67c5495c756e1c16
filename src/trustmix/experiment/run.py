"""A recipe, run: rounds played into a run directory."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from trustmix.aggregation.rules import TAU_BY_RULE
from trustmix.callbacks.trackers import start_trackers, validate_trackers
from trustmix.data.inference import InputSpec
from trustmix.errors import TrustmixError
from trustmix.experiment.build import build_federation, model_factories
from trustmix.experiment.data import load_data, split_data
from trustmix.experiment.recipe import Recipe
from trustmix.experiment.run_directory import RunDirectory
from trustmix.experiment.saved_models import save_models
from trustmix.federation import History, ProgressCallback
from trustmix.theory.probe import TheoryProbe


def run(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    watch: ProgressCallback | None = None,
) -> History:
    """Run a recipe (a built-in name, a file, a mapping), into a run directory if `out` is given.

    >>> history = run({"data": {"name": "digits"}, "clients": 5, "rounds": 1, "split": {"samples_per_client": 40}})
    >>> history.best_accuracy > 0.1
    True
    """
    recipe = Recipe.load(recipe)
    if out is None:
        _, federation = build_federation(recipe)
        with closing(federation.engine):
            return federation.run(recipe.rounds, watch=watch)
    record = RunDirectory(Path(out))
    recipe = record.check(recipe, resume=resume, overwrite=overwrite)
    if resume and record.finished:
        return History(record.rounds())
    validate_trackers(recipe.track)
    data = load_data(recipe)
    recipe, federation = build_federation(recipe, record, data)
    with closing(federation.engine), record.begin(recipe, overwrite=overwrite), start_trackers(recipe, record) as tell:
        every = recipe.theory.every if theory_applies(recipe) else None
        meter = build_probe(recipe) if every else None
        for line in federation.play(recipe.rounds, checkpoint=record.checkpoint, watch=watch):
            record.append(line)
            tell(line)
            if meter and every and line.round % every == 0:
                meter.note(record.path, line, recipe.method)
        history = History(record.rounds())
        save_models(record.path, recipe, InputSpec.of(data), len(history.rounds))
        record.finish(history)
    return history


def theory_applies(recipe: Recipe) -> bool:
    """Whether the teachers of a run are what the theory is about: weighted averages of predictions."""
    return not isinstance(recipe.rule, str) or recipe.rule in TAU_BY_RULE


def build_probe(recipe: Recipe) -> TheoryProbe:
    """What measures the theory on runs of the recipe."""
    if recipe.privacy.epsilon is not None:
        raise TrustmixError("The theory is measured on uploads as the paper has them, not on those of [privacy].")
    data = load_data(recipe)
    public, shares = split_data(recipe, data)
    return TheoryProbe(recipe, public, shares, model_factories(recipe, data), data.test, recipe.theory.reference)
