"""The last sections of a report, made from run directories: a model card, and what is needed to repeat the runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trustmix.experiment.environment import read_environments
from trustmix.federation import METHODS
from trustmix.report.study import Cell, Study, unique
from trustmix.settings.recipe import Recipe
from trustmix.sweeps.tables import MeanStd


@dataclass(frozen=True)
class FactList:
    """Facts below a heading: the content of the template facts.html is a list of these."""

    title: str
    facts: Sequence[tuple[str, str]]


def model_cards(study: Study) -> list[FactList]:
    """Describe the models of each method on each task: what they are, what they reach, and what is not known of them.

    Parameters
    ----------
    study : Study
        The runs.

    Returns
    -------
    list of FactList
        One card per cell.
    """
    return [FactList(_title(study, cell), list(_card(cell))) for cell in study.cells]


def reproduction(study: Study) -> list[FactList]:
    """Describe how to repeat each run.

    Parameters
    ----------
    study : Study
        The runs.

    Returns
    -------
    list of FactList
        Seeds, commands, versions and hardware, one list per cell.
    """
    found = []
    for cell in study.cells:
        folders = ", ".join(run.folder.name for run in cell.runs)
        facts = [
            ("run directories", folders),
            ("seeds", ", ".join(str(run.recipe.seed) for run in cell.runs)),
            ("command", "trustmix run DIR/recipe.toml --out again, where DIR is a run directory"),
        ]
        for environment in unique(entry for run in cell.runs for entry in read_environments(run.folder)):
            facts.append(("ran with", ", ".join(f"{name} {value}" for name, value in environment.items())))
        if len(facts) == 3:
            facts.append(("ran with", "versions and hardware were not recorded"))
        found.append(FactList(_title(study, cell), facts))
    return found


def _title(study: Study, cell: Cell) -> str:
    return ", ".join(part for part in (cell.method.name, cell.task.name if len(study.tasks) > 1 else "") if part)


def _card(cell: Cell) -> Iterator[tuple[str, str]]:
    recipe, last = cell.runs[0].recipe, cell.runs[0].last_round
    models = unique(str(model.name or model.source) for model in recipe.models)
    yield "models", f"{', '.join(models)}; one per client, {recipe.clients} clients, {last.round} rounds"
    yield "trained on", _data(recipe)
    yield "accuracy, all classes", f"{_range(cell.final('accuracy_mean'))} in the last round, mean over clients"
    worst = MeanStd.of(min(run.last_round.accuracy.values(), default=None) for run in cell.runs)
    if worst.mean is not None:
        yield "accuracy, worst client", f"{_range(worst)} in the last round"
    own = cell.final("local_accuracy_mean")
    if own.mean is not None:
        yield "accuracy, own classes", f"{_range(own)} in the last round"
    if (error := cell.final("ece_mean").mean) is not None:
        yield "calibration error", f"{100 * error:.1f} % (ECE on the test set)"
    spent = cell.final("epsilon").mean
    delta = f", delta {recipe.privacy.delta:g}" if recipe.privacy.delta is not None else ""
    private = "no differential privacy; models and uploads may reveal private samples (`trustmix audit` measures it)"
    yield "privacy", private if spent is None else f"epsilon {spent:.3g}{delta}"
    guardable = cell.method.rule not in METHODS or METHODS.get(cell.method.rule).guardable
    yield "guard", "on" if recipe.guard.on and guardable and cell.method.exchanges else "off"
    yield (
        "not known",
        "how the models do on data of another source than the test set, on subgroups, and after the data have changed; "
        "the best round is chosen on the test set, the last round is not",
    )


def _data(recipe: Recipe) -> str:
    name, split = recipe.data.name or recipe.data.source, recipe.split
    each = f", {split.classes_per_client} classes" if split.kind == "classes" else ""
    return (
        f"{name}: {split.samples_per_client:,} samples{each} per client (split by {split.kind}); "
        f"{recipe.public.samples:,} public samples without labels"
    )


def _range(value: MeanStd) -> str:
    return "unknown" if value.mean is None else value.percent() + " %"
