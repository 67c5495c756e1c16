"""The result of a study in one sentence, made from its numbers: the title of the page and the line below it."""

from collections.abc import Sequence

from trustmix.density import RATIO
from trustmix.federation import METHODS
from trustmix.report.study import CLASSES, PRIVATE, PUBLIC, Cell, Study, Task
from trustmix.settings.config import Tau


def headline(study: Study) -> str:
    """Write the title of a study's page.

    Parameters
    ----------
    study : Study
        The runs.

    Returns
    -------
    str
        One sentence about the most accurate method.
    """
    if len(study.task_values(PUBLIC)) > 1 and len(study.task_values(PRIVATE)) > 1:
        return _headline_by_sizes(study)
    if len(study.task_values(CLASSES)) > 1:
        return _headline_by_classes(study)
    if len(study.tasks) > 1:
        return _headline_of_tasks(study)
    return _headline_of_task(study, study.tasks[0])


def subtitle(study: Study) -> str:
    """Write the line below the title of a study's page.

    Parameters
    ----------
    study : Study
        The runs.

    Returns
    -------
    str
        Data sets, models, clients, rounds and seeds; clients and rounds only where they are the same in all runs.
    """
    recipes = [run.recipe for run in study.runs]
    datasets = {str(recipe.data.name or recipe.data.source) for recipe in recipes}
    models = {str(model.name or model.source) for recipe in recipes for model in recipe.models}
    seeds = {recipe.seed for recipe in recipes}
    clients = {recipe.clients for recipe in recipes}
    rounds = {len(run.history.rounds) for run in study.runs}
    held = {
        run.recipe.split.classes_per_client if run.recipe.split.kind == "classes" and not run.has_own_data else None
        for run in study.runs
    }
    each = f", {_count(next(iter(held)) or 0, 'class', 'classes')} each" if len(held) == 1 and None not in held else ""
    parts = [", ".join(sorted(datasets)), ", ".join(sorted(models))]
    parts += [_count(next(iter(clients)), "client") + each] if len(clients) == 1 else []
    parts += [_count(next(iter(rounds)), "round")] if len(rounds) == 1 else []
    return " · ".join([*parts, f"seed {next(iter(seeds))}" if len(seeds) == 1 else f"{len(seeds)} seeds"])


NEAR_CHANCE = 0.6
"""Below this AUC in the last round, scores hardly tell a client's own classes from others; one half is chance."""
LOW_AGREEMENT = 0.5
"""Below this agreement in the last round, clients have not learnt what the teacher knows."""
MAX_WARNINGS = 5
"""The largest number of warnings on a page."""


def warnings(study: Study) -> list[str]:
    """Find what a reader should know before the accuracies are compared.

    Parameters
    ----------
    study : Study
        The runs.

    Returns
    -------
    list of str
        One sentence per method and task whose clients agree with less than half of the teacher in the last round, and
        one per method and task that weighs clients by scores whose AUC is near chance in the last round; the lowest
        first.
    """
    return (_agreement_warnings(study) + _density_warnings(study))[:MAX_WARNINGS]


def _agreement_warnings(study: Study) -> list[str]:
    agreements = [(cell.final("agreement_mean").mean, cell) for cell in study.cells]
    low = [(value, cell) for value, cell in agreements if value is not None and value < LOW_AGREEMENT]
    found = []
    for value, cell in sorted(low, key=lambda entry: entry[0]):
        found.append(f"{_cell_name(cell)}: clients take in {100 * value:.0f} % of the teacher; {_advice(cell)}.")
    return found


def _density_warnings(study: Study) -> list[str]:
    areas = [(cell.final("density_auc").mean, cell) for cell in study.cells if _weighs_by_scores(cell)]
    low = [(value, cell) for value, cell in areas if value is not None and value < NEAR_CHANCE]
    found = []
    for value, cell in sorted(low, key=lambda entry: entry[0]):
        found.append(
            f"{_cell_name(cell)}: the scores hardly tell a client's own classes from others (AUC {value:.2f}, chance "
            f"is 0.50), so weights are close to arbitrary; {_density_advice(cell)}."
        )
    return found


def _weighs_by_scores(cell: Cell) -> bool:
    """Whether the rule's weights are made of scores; not known of rules of the user's own."""
    rule = cell.runs[0].recipe.rule
    if isinstance(rule, Tau):
        return rule.tau > 0
    return rule in METHODS and (bool(METHODS.get(rule).tau) or METHODS.get(rule).density == RATIO)


def _density_advice(cell: Cell) -> str:
    """What may raise the AUC."""
    recipe = cell.runs[0].recipe
    if recipe.privacy.epsilon is not None:
        return "under [privacy], density.kind = ratio with a share of epsilon by privacy.ratio can be better"
    if recipe.density.kind == RATIO:
        return "more private samples, or a public set that is closer to them, may help, and so may rule = avg"
    return "density.kind = ratio is the better choice; longer private training may help, too"


def _cell_name(cell: Cell) -> str:
    return ", ".join(part for part in (cell.method.name, cell.task.name) if part)


def _advice(cell: Cell) -> str:
    """What may raise the agreement."""
    recipe = cell.runs[0].recipe
    epochs = recipe.train.public_epochs
    if epochs == "auto":
        return "train.public_epochs = auto ended there, so a larger train.lr may help"
    more = f"raise train.public_epochs, which is {epochs}"
    noise = recipe.privacy.epsilon is not None and recipe.privacy.mechanism == "training"
    if recipe.train.stages == "mixed" or noise:
        return more
    return f"{more}, or set train.stages = mixed, which forgets less from round to round"


def _count(number: int, one: str, many: str | None = None) -> str:
    """A number of things.

    >>> _count(1, "client"), _count(2, "class", "classes")
    ('1 client', '2 classes')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _headline_of_task(study: Study, task: Task) -> str:
    cells = study.cells_of(task)
    best = _best_cell(cells)
    if best is None:
        return f"{_rounds(study)} of {cells[0].method.name}, with no accuracy known."
    clients = _count(best.runs[0].recipe.clients, "client")
    learners = "one informed client" if best.method.is_reference else clients
    rival = _rival(cells, best)
    alone = "" if rival and rival.method.is_local else _local_clause(cells, best)
    if rival is None:
        accuracy = _percent(best.best_accuracy.mean)
        return f"{best.method.name} brings {learners} to {accuracy} in {_rounds(study)}{alone}."
    shared = _label_set_clause(best, rival)
    if alone:
        return f"{_compare(best, rival, f'brings {learners} to')}{alone}{shared}."
    return f"{_compare(best, rival)}{shared}."


def _label_set_clause(best: Cell, rival: Cell) -> str:
    """A note where only the clients of the better method share their label sets."""
    ours, theirs = (cell.runs[0].recipe.wire.labels for cell in (best, rival))
    return f"; clients of {best.method.name} also share their label sets" if ours != "none" == theirs else ""


def _local_clause(cells: Sequence[Cell], best: Cell) -> str:
    """What clients reach by local training, where it is known and not the best itself."""
    local = [cell for cell in cells if cell.method.is_local and cell is not best]
    mean = local[0].best_accuracy.mean if local else None
    return "" if mean is None else f"; alone they reach {_percent(mean)}"


def _headline_by_classes(study: Study) -> str:
    """The gain at the fewest and at the most classes per client."""
    values = study.task_values(CLASSES)
    clauses: list[str] = []
    for value in (values[0], values[-1]):
        cells = [cell for cell in study.cells if cell.task.settings[CLASSES] == value]
        best = _best_cell([cell for cell in cells if cell.task == cells[0].task])
        if best is None:
            continue
        rival = _rival([cell for cell in cells if cell.task == best.task], best)
        reached = f"{best.method.name} reaches {_percent(best.best_accuracy.mean)}"
        classes = f"{value:,}" if clauses else f"{_count(value, 'class', 'classes')} per client"
        clauses.append(f"with {classes}, {_compare(best, rival) if rival else reached}")
    text = "; ".join(clauses) or "No accuracy is known"
    return f"{text[0].upper()}{text[1:]}."


def _headline_by_sizes(study: Study) -> str:
    """The accuracy with the smallest and with the largest sets."""
    federated = [method for method in study.methods if method.exchanges]
    method = (federated or study.methods)[0]
    clauses = []
    for end in (0, -1):
        public, private = study.task_values(PUBLIC)[end], study.task_values(PRIVATE)[end]
        sizes = {PUBLIC: public, PRIVATE: private}
        cells = [c for c in study.cells if c.method == method and sizes.items() <= c.task.settings.items()]
        means = [cell.best_accuracy.mean for cell in cells if cell.best_accuracy.mean is not None]
        if means:
            clauses.append(f"{_percent(max(means))} with {public:,} public and {private:,} private samples")
    return f"{method.name} reaches {' and '.join(clauses) or 'what the tables below show'}."


def _headline_of_tasks(study: Study) -> str:
    """In how many tasks the most successful method is the most accurate."""
    winners = [best.method.name for task in study.tasks if (best := _best_cell(study.cells_of(task)))]
    if not winners:
        return f"{len(study.tasks)} settings, with no accuracy known."
    first = max(set(winners), key=lambda name: (winners.count(name), name))
    return f"{first} has the largest mean accuracy in {winners.count(first)} of {len(study.tasks)} settings."


def _best_cell(cells: Sequence[Cell]) -> Cell | None:
    """The most accurate federated method; without one, the more accurate of local training and the reference."""
    known = [cell for cell in cells if cell.best_accuracy.mean is not None]
    federated = [cell for cell in known if cell.method.exchanges]
    return max(federated or known, key=lambda cell: cell.best_accuracy.mean or 0, default=None)


def _rival(cells: Sequence[Cell], best: Cell) -> Cell | None:
    """What the best is compared with: plain averaging, else the next best, else local training."""
    others = [cell for cell in cells if cell is not best and cell.best_accuracy.mean is not None]
    averaged = [cell for cell in others if cell.method.rule == "avg"]
    federated = [cell for cell in others if cell.method.exchanges]
    local = [cell for cell in others if cell.method.is_local]
    return max(averaged or federated or local, key=lambda cell: cell.best_accuracy.mean or 0, default=None)


def _compare(best: Cell, rival: Cell, verb: str = "reaches") -> str:
    """One method against another: a gain is claimed where the interval of the paired differences excludes zero."""
    reached = f"{best.method.name} {verb} {_percent(best.best_accuracy.mean)}"
    to = "to " if verb.endswith(" to") else ""
    both = f"{reached} and {rival.method.name} {to}{_percent(rival.best_accuracy.mean)}"
    gain = best.difference(rival)
    if gain is None:
        return f"{both}, on different seeds"
    points = f"{100 * gain.mean:.1f} points"
    if gain.interval is None:
        return f"{both}, {points} apart with one seed"
    low, high = (f"{100 * end:.1f}" for end in gain.interval)
    interval = f"95 % interval {low} to {high}, {gain.n} seeds"
    if gain.excludes_zero and gain.mean > 0:
        return f"{reached}, {points} over {rival.method.name} ({interval})"
    return f"{both}; {gain.n} seeds do not settle the difference of {points} ({interval})"


def _rounds(study: Study) -> str:
    return _count(max(len(run.history.rounds) for run in study.runs), "round")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
