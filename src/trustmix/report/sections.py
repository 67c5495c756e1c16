"""The sections of a report that consist of figures; a section without data is left out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from trustmix.report.charts import Chart, Heatmap, Point, Series, TaskFigure, Unit
from trustmix.report.study import CLASSES, PRIVATE, PUBLIC, Cell, Run, Study, Task
from trustmix.report.trust_map import class_names
from trustmix.sweeps.tables import MeanStd, format_value

ACCURACY = {
    "accuracy_mean": ("On all classes", "accuracy", "mean over clients, after distilling from the round's teacher"),
    "agreement_mean": (
        "Agreement with the teacher",
        "agreement",
        "part of the public set with its class",
    ),
    "local_accuracy_mean": ("On the client's own classes", "accuracy", "mean over clients, after private training"),
    "teacher_accuracy": ("The teacher on the public set", "accuracy", "whose labels only measure it"),
    "balanced_accuracy_mean": ("Balanced accuracy", "balanced accuracy", "mean recall over classes and clients"),
    "macro_f1_mean": ("Macro F1", "macro F1", "mean over classes and clients"),
    "auroc_mean": ("AUROC", "AUROC", "each class against the rest, mean over classes and clients"),
    "student_accuracy": ("The server's student, on all classes", "accuracy", "it has seen teachers only"),
}
OWN_DATA = {
    "accuracy_mean": (
        "On each node's own test data",
        "accuracy",
        "mean over nodes, whose test data differ; after distilling from the round's teacher",
    ),
    "ece_mean": ("Nodes' calibration error", "ECE", "each on its own test data; 0 % is as sure as right"),
    "nll_mean": ("Nodes' log-loss", "negative log-likelihood", "each on its own test data, in nats"),
}
"""The same for deployments with nodes that have data of their own."""
CONCENTRATION = {
    "effective_clients": ("Effective clients", "1/χ", "how many equally trusted clients would be as concentrated"),
    "concentration": ("Concentration", "χ", "mean over samples of the sum of squared weights"),
    "density_auc": ("Density AUC", "AUC", "chance that a sample of own classes outscores another; ½ is luck"),
}
CALIBRATION = {
    "ece_mean": ("Clients' calibration error", "ECE", "on the test set; 0 % is as sure as right"),
    "teacher_ece": ("The teacher's calibration error", "ECE", "on public samples with known labels"),
    "nll_mean": ("Clients' log-loss", "negative log-likelihood", "of the test labels, in nats"),
    "teacher_nll": ("The teacher's log-loss", "negative log-likelihood", "of the known public labels, in nats"),
}
"""Fields of a round with the title, the label of the y axis and the note of their charts."""


@dataclass(frozen=True)
class FigureSection:
    """Figures that answer one question."""

    key: str
    """The section's anchor."""
    title: str
    text: str
    figures: Sequence[TaskFigure]

    @property
    def about_all_tasks(self) -> bool:
        """Whether no figure belongs to a single task."""
        return all(task is None for task, _ in self.figures)


def build_sections(study: Study) -> list[FigureSection]:
    """Build all sections that have at least one figure.

    Parameters
    ----------
    study : Study
        The runs.

    Returns
    -------
    list of FigureSection
        The sections, in the order of the page.
    """
    sections = [
        _accuracy_by_classes(study),
        _accuracy_by_sizes(study),
        _by_round(study, "rounds", "Accuracy, round by round", "Bands are ± one standard deviation.", ACCURACY),
        _own_classes(study),
        _recall_by_class(study),
        _accuracy_by_bytes(study),
        _by_round(study, "concentration", "How concentrated trust is", "", CONCENTRATION),
        _by_round(study, "calibration", "Calibration: does confidence mean anything?", "", CALIBRATION),
    ]
    return [section for section in sections if section.figures]


def _by_round(study: Study, key: str, title: str, text: str, fields: dict[str, tuple[str, str, str]]) -> FigureSection:
    """One chart over rounds for each of these fields of a round, and for each task."""
    figures: list[TaskFigure] = []
    for index, task in enumerate(study.tasks):
        for name, (heading, label, note) in (fields | _own_titles(study, task, fields)).items():
            series = [Series(cell.method, points) for cell in study.cells_of(task) if (points := _points(cell, name))]
            unit: Unit = "percent" if name in ACCURACY or "ece" in name else "number"
            if series:
                figures.append((index, Chart(name, heading, "round", label, series, unit, note=note)))
    several = any(len(cell.runs) > 1 for cell in study.cells)
    return FigureSection(key, title, text if several else "", figures)


def _own_titles(study: Study, task: Task, fields: dict[str, tuple[str, str, str]]) -> dict[str, tuple[str, str, str]]:
    """The titles of charts of a deployment, whose nodes measure accuracy on their own test data."""
    own = any(run.has_own_data for cell in study.cells_of(task) for run in cell.runs)
    return {name: title for name, title in OWN_DATA.items() if own and name in fields}


def _points(cell: Cell, name: str) -> list[Point]:
    """A field of the rounds, over the seeds that have it."""
    numbers = sorted({line.round for run in cell.runs for line in run.history.rounds})
    by_round = [{line.round: getattr(line, name) for line in run.history.rounds} for run in cell.runs]
    values = {number: MeanStd.of(run.get(number) for run in by_round) for number in numbers}
    return [Point(number, value.mean, value.std) for number, value in values.items() if value.mean is not None]


def _accuracy_by_classes(study: Study) -> FigureSection:
    """The best accuracy over k, and as a level the reference, which does not depend on k."""
    figures: list[TaskFigure] = []
    for rest, cells in _group_by_rest(study, CLASSES):
        series = _series_over(study, cells, CLASSES, lambda cell: cell.best_accuracy)
        curves = [one for one in series if len(one.points) > 1 and not one.method.is_reference]
        levels = []
        for method in study.methods:
            runs = [run for cell in cells if cell.method == method for run in cell.runs]
            if method.is_reference and runs:
                levels.append((method, MeanStd.of(run.history.best for run in runs)))
        if curves:
            title = rest.name or "Best accuracy on all classes"
            chart = Chart("best_against_k", title, "classes per client, k", "best accuracy", curves, levels=levels)
            figures.append((None, chart))
    text = "Mean over seeds, ± one standard deviation; k is how many classes each client holds."
    return FigureSection("classes", "Best accuracy against classes per client", text, figures)


def _own_classes(study: Study) -> FigureSection:
    """What clients gain or lose on their own classes by taking part."""
    figures = [*_own_classes_by_client(study), *_own_classes_by_k(study)]
    text = "Accuracy on the classes a client holds, against training alone."
    return FigureSection("own", "What taking part does to a client's own classes", text, figures)


def _own_classes_by_client(study: Study) -> Iterator[TaskFigure]:
    for index, task in enumerate(study.tasks):
        cells = study.cells_of(task)
        local = next((cell for cell in cells if cell.method.is_local), None)
        series = [Series(cell.method, points) for cell in cells if local and (points := _client_points(local, cell))]
        if series:
            title, label = "Client by client, last round", "in the federation"
            note = "A dot above the line is a client that is better on its own classes for taking part."
            chart = Chart("own_classes", title, "alone", label, series, "percent", "percent", scatter=True, note=note)
            yield index, chart


def _client_points(local: Cell, cell: Cell) -> list[Point]:
    """Each client's accuracy on its own classes, alone (x) and in the federation (y), for seeds that both have."""
    if not cell.method.exchanges:
        return []
    alone = {(run.recipe.seed, client): x for run in local.runs for client, x in run.last_round.local_accuracy.items()}
    several = len(cell.runs) > 1
    return [
        Point(alone[run.recipe.seed, client], y, name=f"client {client}" + f", seed {run.recipe.seed}" * several)
        for run in cell.runs
        for client, y in run.last_round.local_accuracy.items()
        if (run.recipe.seed, client) in alone
    ]


def _own_classes_by_k(study: Study) -> Iterator[TaskFigure]:
    for rest, cells in _group_by_rest(study, CLASSES):
        local = {
            str(cell.task.settings[CLASSES]): cell.final("local_accuracy_mean")
            for cell in cells
            if cell.method.is_local
        }
        federated = [cell for cell in cells if cell.method.exchanges]
        compared = [cell for cell in federated if str(cell.task.settings[CLASSES]) in local]
        series = _series_over(study, compared, CLASSES, partial(_gain, local))
        if any(len(one.points) > 1 for one in series):
            title = rest.name or "Gain on own classes against k"
            chart = Chart("own_classes_against_k", title, "classes per client, k", "gain over alone", series, "points")
            yield None, chart


def _gain(local: dict[str, MeanStd], cell: Cell) -> MeanStd:
    """The accuracy on own classes minus the one of local training, which is given by k."""
    here, there = cell.final("local_accuracy_mean"), local[str(cell.task.settings[CLASSES])]
    return MeanStd(None if here.mean is None or there.mean is None else here.mean - there.mean, None, here.n)


def _recall_by_class(study: Study) -> FigureSection:
    """The recall of each class in the last round: heat maps with a row per class and a column per method."""
    figures: list[TaskFigure] = []
    for index, task in enumerate(study.tasks):
        cells = study.cells_of(task)
        for title, (recalls, note) in RECALL.items():
            found = {cell.method.name: [recalls(run) for run in cell.runs] for cell in cells}
            known = {
                name: runs for name, runs in found.items() if any(value is not None for run in runs for value in run)
            }
            if known:
                classes = max(len(run) for runs in known.values() for run in runs)
                # the last row of a heat map is drawn on top
                values = [
                    [MeanStd.of(run[cls] for run in runs if cls < len(run)) for runs in known.values()]
                    for cls in reversed(range(classes))
                ]
                rows = class_names(cells, classes)[::-1]
                labels = "method", "class"
                heatmap = Heatmap("recall", title, *labels, list(known), rows, values, note, "recall")
                figures.append((index, heatmap))
    text = "The part of the samples of a class that is recognised, in the last round, in per cent."
    return FigureSection("recall", "Recall by class", text, figures)


def _worst_recall(run: Run) -> list[float | None]:
    """The smallest recall that a client has of each class; None for a class without any."""
    by_class = zip(*run.last_round.recall.values(), strict=True)
    return [min((value for value in values if value is not None), default=None) for values in by_class]


RECALL: dict[str, tuple[Callable[[Run], Sequence[float | None]], str]] = {
    "Clients": (lambda run: run.last_round.recall_mean, "mean over clients, on the test set"),
    "The worst client": (_worst_recall, "of each class the client that recognises least of it, on the test set"),
    "The teacher": (lambda run: run.last_round.teacher_recall, "on public samples with known labels"),
}
"""Whose recalls are shown, by title: those of a run's last round, and the note of the heat map."""


def _accuracy_by_sizes(study: Study) -> FigureSection:
    """The best accuracy by the sizes of the public and the private sets, one heat map per method."""
    public, private = study.task_values(PUBLIC), study.task_values(PRIVATE)
    figures: list[TaskFigure] = []
    for rest, cells in _group_by_rest(study, PUBLIC, PRIVATE) if len(public) > 1 and len(private) > 1 else ():
        for method in study.methods:
            settings = [(cell, cell.task.settings) for cell in cells if cell.method == method]
            found = {(setting[PUBLIC], setting[PRIVATE]): cell.best_accuracy for cell, setting in settings}
            values = [[found.get((column, row), MeanStd.of([])) for column in public] for row in private]
            if any(value.n for row in values for value in row):
                title = ", ".join(part for part in (method.name, rest.name) if part)
                columns, rows = ([format_value(size) for size in sizes] for sizes in (public, private))
                labels = "public samples", "private samples per client"
                figures.append((None, Heatmap("ablation", title, *labels, columns, rows, values)))
    text = "Best accuracy by the sizes of both sets."
    return FigureSection("ablation", "Public against private data", text, figures)


def _accuracy_by_bytes(study: Study) -> FigureSection:
    """Accuracy against the bytes sent for it."""
    figures: list[TaskFigure] = []
    for index, task in enumerate(study.tasks):
        series = [Series(cell.method, points) for cell in study.cells_of(task) if (points := _byte_points(cell))]
        if series:
            label = "sent up and down so far, all clients"
            note = "Messages as they were sent, headers and compression included."
            title = "Accuracy on all classes"
            figures.append((index, Chart("bytes", title, label, "accuracy", series, x_unit="megabytes", note=note)))
    return FigureSection("bytes", "Accuracy against bytes", "Further left is cheaper.", figures)


def _byte_points(cell: Cell) -> list[Point]:
    sent = [list(accumulate(line.bytes_up + line.bytes_down for line in run.history.rounds)) for run in cell.runs]
    longest = max(map(len, sent))
    so_far = [MeanStd.of(run[index] for run in sent if index < len(run)).mean or 0 for index in range(longest)]
    points = [(so_far[int(point.x) - 1], point) for point in _points(cell, "accuracy_mean")]
    return [Point(x, point.y, point.std) for x, point in points if x]


def _group_by_rest(study: Study, *keys: str) -> Iterator[tuple[Task, list[Cell]]]:
    """Group cells by all settings of the task but these; no group where one of these is the same in all runs."""
    if not all(study.task_values(key) for key in keys):
        return
    seen: list[Task] = []
    for task in study.tasks:
        rest = task.without(*keys)
        if rest not in seen:
            seen.append(rest)
            yield rest, [cell for cell in study.cells if cell.task.without(*keys) == rest]


def _series_over(study: Study, cells: Sequence[Cell], key: str, value: Callable[[Cell], MeanStd]) -> list[Series]:
    """A value of the cells over a setting, one series per method."""
    found = []
    for method in study.methods:
        own = sorted((cell for cell in cells if cell.method == method), key=lambda cell: cell.task.settings[key])
        values = [(cell.task.settings[key], value(cell)) for cell in own]
        points = [Point(x, y.mean, y.std) for x, y in values if y.mean is not None]
        if points:
            found.append(Series(method, points))
    return found
