"""A recipe, run: rounds played into a run directory."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from trustmix.data.fresh import Inputs
from trustmix.errors import TrustmixError
from trustmix.federation import History, Watcher
from trustmix.study.building import factories_of, prepare
from trustmix.study.meter import Meter
from trustmix.study.recipe import Recipe
from trustmix.study.record import RunDirectory
from trustmix.study.samples import data_of, split_of
from trustmix.study.track import check_track, tracked
from trustmix.study.trained import save_models
from trustmix.trust import TEMPERED


def run(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    watch: Watcher | None = None,
) -> History:
    """Run a recipe (a built-in name, a file, a mapping), into a run directory if `out` is given.

    >>> history = run({"data": {"name": "digits"}, "clients": 5, "rounds": 1, "split": {"samples_per_client": 40}})
    >>> history.best_accuracy > 0.1
    True
    """
    recipe = Recipe.load(recipe)
    if out is None:
        _, federation = prepare(recipe)
        with closing(federation.engine):
            return federation.run(recipe.rounds, watch=watch)
    record = RunDirectory(Path(out))
    recipe = record.check(recipe, resume=resume, overwrite=overwrite)
    if resume and record.finished:
        return History(record.rounds())
    check_track(recipe.track)
    data = data_of(recipe)
    recipe, federation = prepare(recipe, record, data)
    with closing(federation.engine), record.begin(recipe, overwrite=overwrite), tracked(recipe, record) as tell:
        every = recipe.theory.every if covered(recipe) else None
        meter = meter_of(recipe) if every else None
        for line in federation.play(recipe.rounds, checkpoint=record.checkpoint, watch=watch):
            record.append(line)
            tell(line)
            if meter and every and line.round % every == 0:
                meter.note(record.path, line, recipe.method)
        history = History(record.rounds())
        save_models(record.path, recipe, Inputs.of(data), len(history.rounds))
        record.finish(history)
    return history


def covered(recipe: Recipe) -> bool:
    """Whether the teachers of a run are what the theory is about: weighted averages of predictions."""
    return not isinstance(recipe.rule, str) or recipe.rule in TEMPERED


def meter_of(recipe: Recipe) -> Meter:
    """What measures the theory on runs of the recipe."""
    if recipe.privacy.epsilon is not None:
        raise TrustmixError("The theory is measured on uploads as the paper has them, not on those of [privacy].")
    data = data_of(recipe)
    public, shares = split_of(recipe, data)
    return Meter(recipe, public, shares, factories_of(recipe, data), data.test, recipe.theory.reference)
