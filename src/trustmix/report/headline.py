"""What the figures say, in one sentence made from them: the page's title, and the line of facts below it."""

from collections.abc import Sequence

from trustmix.experiment.tables import MeanStd
from trustmix.report.load import CLASSES, PRIVATE, PUBLIC, Cell, Study, Task


def headline(study: Study) -> str:
    """The title sentence."""
    if len(study.values(PUBLIC)) > 1 and len(study.values(PRIVATE)) > 1:
        return _sizes(study)
    if len(study.values(CLASSES)) > 1:
        return _classes(study)
    if len(study.tasks) > 1:
        return _wins(study)
    return _one_task(study, study.tasks[0])


def facts(study: Study) -> str:
    """Data, models, clients, rounds and seeds, where they are the same in all runs."""
    recipes = [run.recipe for run in study.runs]
    datasets = {str(recipe.data.name or recipe.data.source) for recipe in recipes}
    models = {str(model.name or model.source) for recipe in recipes for model in recipe.models}
    seeds = {recipe.seed for recipe in recipes}
    clients = {recipe.clients for recipe in recipes}
    rounds = {len(run.history.rounds) for run in study.runs}
    held = {recipe.split.classes_per_client if recipe.split.kind == "classes" else None for recipe in recipes}
    share = f", {_count(next(iter(held)) or 0, 'class', 'classes')} each" if len(held) == 1 and None not in held else ""
    parts = [", ".join(sorted(datasets)), ", ".join(sorted(models))]
    parts += [_count(next(iter(clients)), "client") + share] if len(clients) == 1 else []
    parts += [_count(next(iter(rounds)), "round")] if len(rounds) == 1 else []
    return " · ".join([*parts, f"seed {next(iter(seeds))}" if len(seeds) == 1 else f"{len(seeds)} seeds"])


def _count(number: int, one: str, many: str | None = None) -> str:
    """A number of things.

    >>> _count(1, "client"), _count(2, "class", "classes")
    ('1 client', '2 classes')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _one_task(study: Study, task: Task) -> str:
    cells = study.of(task)
    best = _best(cells)
    if best is None:
        (first, *_) = cells
        return f"{_rounds(study)} of {first.method.name}, with no accuracy known."
    clients = best.runs[0].recipe.clients
    who = "one informed client" if best.method.is_reference else f"{_count(clients, 'client')}"
    rival = _rival(cells, best)
    alone = next((cell.best.mean for cell in cells if cell.method.is_local and cell is not best), None)
    trained = "" if alone is None or (rival and rival.method.is_local) else f"; alone they reach {_percent(alone)}"
    if rival is None:
        return f"{best.method.name} brings {who} to {_percent(best.best.mean)} in {_rounds(study)}{trained}."
    lead = _lead(best, rival)
    return f"{lead.replace(' reaches ', f' brings {who} to ', 1) if trained else lead}{trained}."


def _classes(study: Study) -> str:
    """The gain at the fewest and at the most classes per client."""
    values = study.values(CLASSES)
    ends: list[str] = []
    for value in (values[0], values[-1]):
        cells = [cell for cell in study.cells if cell.task.settings[CLASSES] == value]
        best = _best([cell for cell in cells if cell.task == cells[0].task])
        rival = best and _rival([cell for cell in cells if cell.task == best.task], best)
        if best is None:
            continue
        said = _lead(best, rival) if rival else f"{best.method.name} reaches {_percent(best.best.mean)}"
        held = f"{value:,}" if ends else f"{_count(value, 'class', 'classes')} per client"
        ends.append(f"with {held}, {said}")
    text = "; ".join(ends) or "No accuracy is known"
    return f"{text[0].upper()}{text[1:]}."


def _sizes(study: Study) -> str:
    """From the smallest to the largest sets."""
    (method, *_) = [method for method in study.methods if method.exchanges] or study.methods
    told = []
    for end in (0, -1):
        sizes = {PUBLIC: study.values(PUBLIC)[end], PRIVATE: study.values(PRIVATE)[end]}
        found = [c.best.mean for c in study.cells if c.method == method and sizes.items() <= c.task.settings.items()]
        means = [mean for mean in found if mean is not None]
        if means:
            told.append(f"{_percent(max(means))} with {sizes[PUBLIC]:,} public and {sizes[PRIVATE]:,} private samples")
    return f"{method.name} reaches {' and '.join(told) or 'what the tables below show'}."


def _wins(study: Study) -> str:
    """How often the method that wins most often wins."""
    winners = [best.method.name for task in study.tasks if (best := _best(study.of(task)))]
    if not winners:
        return f"{len(study.tasks)} settings, with no accuracy known."
    first = max(set(winners), key=lambda name: (winners.count(name), name))
    return f"{first} is the most accurate in {winners.count(first)} of {len(study.tasks)} settings."


def _best(cells: Sequence[Cell]) -> Cell | None:
    """The most accurate method that could be used: neither alone nor the reference, if there is another one."""
    known = [cell for cell in cells if cell.best.mean is not None]
    usable = [cell for cell in known if cell.method.exchanges]
    return max(usable or known, key=lambda cell: cell.best.mean or 0, default=None)


def _rival(cells: Sequence[Cell], best: Cell) -> Cell | None:
    """What the best is compared with: plain averaging, else the next best, else training alone."""
    others = [cell for cell in cells if cell is not best and cell.best.mean is not None]
    averaged = [cell for cell in others if cell.method.rule == "avg"]
    usable = [cell for cell in others if cell.method.exchanges]
    alone = [cell for cell in others if cell.method.is_local]
    return max(averaged or usable or alone, key=lambda cell: cell.best.mean or 0, default=None)


def _lead(best: Cell, rival: Cell) -> str:
    """One method against another, and no gain claimed that is within what seeds vary."""
    mine, other = best.best, rival.best
    gain = (mine.mean or 0) - (other.mean or 0)
    said = f"{best.method.name} reaches {_percent(mine.mean)}"
    if gain <= _varies(mine, other):
        return f"{said} and {rival.method.name} {_percent(other.mean)}, no further apart than seeds are"
    if gain < 0.001:
        return f"{said}, no more than {rival.method.name}"
    return f"{said}, {100 * gain:.1f} points over {rival.method.name}"


def _varies(*figures: MeanStd) -> float:
    """The largest standard deviation over seeds; less than nothing where there is one seed only."""
    return max((figure.std for figure in figures if figure.std is not None), default=-1.0)


def _rounds(study: Study) -> str:
    return _count(max(len(run.history.rounds) for run in study.runs), "round")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
