"""What the figures of a study show, section by section; one without data is left out."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

from trustmix.experiment.tables import MeanStd, format_value
from trustmix.federation import Round
from trustmix.report.charts import Chart, Heatmap, Picture, Point, Section, Series, Unit
from trustmix.report.load import CLASSES, PRIVATE, PUBLIC, Cell, Study, Task

ACCURACY = {
    "accuracy_mean": ("On all classes", "accuracy", "mean over clients, after distilling from the round's teacher"),
    "local_accuracy_mean": ("On the client's own classes", "accuracy", "mean over clients, after private training"),
    "teacher_accuracy": ("The teacher on the public set", "accuracy", "whose labels only measure it"),
    "student_accuracy": ("The server's student, on all classes", "accuracy", "it has seen teachers only"),
}
TRUST = {
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
"""Fields of a round: heading, axis and what it is."""


def sections(study: Study) -> list[Section]:
    """All sections that have something to show."""
    drawn = [
        _against_classes(study),
        _ablation(study),
        _over_rounds(study, "rounds", "Accuracy, round by round", "Bands are ± one standard deviation.", ACCURACY),
        _own_classes(study),
        _bytes(study),
        _over_rounds(study, "concentration", "How concentrated trust is", "", TRUST),
        _over_rounds(study, "calibration", "Calibration: does confidence mean anything?", "", CALIBRATION),
    ]
    return [section for section in drawn if section.pictures]


def _over_rounds(study: Study, key: str, title: str, text: str, figures: dict[str, tuple[str, str, str]]) -> Section:
    """A chart over rounds for each of these fields of a round, and each task."""
    pictures: list[tuple[int | None, Picture]] = []
    for index, task in enumerate(study.tasks):
        for name, (heading, axis, note) in figures.items():
            series = [Series(cell.method, over_rounds(cell, name)) for cell in study.of(task)]
            series = [one for one in series if one.points]
            percent = "accuracy" in name or "ece" in name
            unit: Unit = "percent" if percent else "number"
            if series:
                pictures.append((index, Chart(name, heading, "round", axis, series, unit, note=note)))
    several = any(len(cell.runs) > 1 for cell in study.cells)
    return Section(key, title, text if several else "", pictures)


def over_rounds(cell: Cell, name: str) -> list[Point]:
    """A field of the rounds, over the seeds that have it."""
    numbers = sorted({line.round for run in cell.runs for line in run.history.rounds})
    by_round = [{line.round: getattr(line, name) for line in run.history.rounds} for run in cell.runs]
    figures = {number: MeanStd.of(run.get(number) for run in by_round) for number in numbers}
    return [Point(number, f.mean, f.std) for number, f in figures.items() if f.mean is not None]


def _against_classes(study: Study) -> Section:
    """The best accuracy over k, and across it the reference, which does not depend on k."""
    pictures: list[tuple[int | None, Picture]] = []
    for rest, cells in _by_rest(study, CLASSES):
        series = [one for one in _series_over(study, cells, CLASSES, lambda cell: cell.best) if len(one.points) > 1]
        drawn = [one for one in series if not one.method.is_reference]
        levels = []
        for method in study.methods:
            runs = [run for cell in cells if cell.method == method for run in cell.runs]
            if method.is_reference and runs:
                levels.append((method, MeanStd.of(run.history.best_accuracy for run in runs)))
        if drawn:
            title = rest.name or "Best accuracy on all classes"
            chart = Chart("best_against_k", title, "classes per client, k", "best accuracy", drawn, levels=levels)
            pictures.append((None, chart))
    text = "Mean over seeds, ± one standard deviation; k is how many classes each client holds."
    return Section("classes", "Best accuracy against classes per client", text, pictures)


def _own_classes(study: Study) -> Section:
    """What clients gain or lose on their own classes by taking part."""
    pictures: list[tuple[int | None, Picture]] = []
    for index, task in enumerate(study.tasks):
        cells = study.of(task)
        alone = next((cell for cell in cells if cell.method.is_local), None)
        series = [Series(cell.method, points) for cell in cells if alone and (points := _client_by_client(alone, cell))]
        if series:
            title, y = "Client by client, last round", "in the federation"
            note = "A dot above the line is a client that is better on its own classes for taking part."
            chart = Chart("own_classes", title, "alone", y, series, "percent", "percent", joined=False, note=note)
            pictures.append((index, chart))
    for rest, cells in _by_rest(study, CLASSES):
        trained = {str(c.task.settings[CLASSES]): c.last("local_accuracy_mean") for c in cells if c.method.is_local}
        others = [c for c in cells if c.method.exchanges and str(c.task.settings[CLASSES]) in trained]
        series = _series_over(study, others, CLASSES, partial(_gain, trained))
        if any(len(one.points) > 1 for one in series):
            title = rest.name or "Gain on own classes against k"
            chart = Chart("own_classes_against_k", title, "classes per client, k", "gain over alone", series, "points")
            pictures.append((None, chart))
    text = "Accuracy on the classes a client holds, against training alone."
    return Section("own", "What taking part does to a client's own classes", text, pictures)


def _client_by_client(alone: Cell, cell: Cell) -> list[Point]:
    """Each client's accuracy on its own classes, alone (x) and in the federation (y), of seeds that both have."""
    if not cell.method.exchanges:
        return []
    before = {(run.recipe.seed, client): x for run in alone.runs for client, x in run.last.local_accuracy.items()}
    several = len(cell.runs) > 1
    return [
        Point(before[run.recipe.seed, client], y, name=f"client {client}" + f", seed {run.recipe.seed}" * several)
        for run in cell.runs
        for client, y in run.last.local_accuracy.items()
        if (run.recipe.seed, client) in before
    ]


def _gain(alone: dict[str, MeanStd], cell: Cell) -> MeanStd:
    here, there = cell.last("local_accuracy_mean"), alone[str(cell.task.settings[CLASSES])]
    return MeanStd(None if here.mean is None or there.mean is None else here.mean - there.mean, None, here.n)


def _ablation(study: Study) -> Section:
    """The best accuracy by the sizes of the public and the private sets, a heat map a method."""
    public, private = study.values(PUBLIC), study.values(PRIVATE)
    pictures: list[tuple[int | None, Picture]] = []
    for rest, cells in _by_rest(study, PUBLIC, PRIVATE) if len(public) > 1 and len(private) > 1 else ():
        for method in study.methods:
            found = {(c.task.settings[PUBLIC], c.task.settings[PRIVATE]): c.best for c in cells if c.method == method}
            figures = [[found.get((column, row), MeanStd.of([])) for column in public] for row in private]
            if any(figure.n for row in figures for figure in row):
                title = ", ".join(part for part in (method.name, rest.name) if part)
                columns, rows = ([format_value(value) for value in values] for values in (public, private))
                x, y = "public samples", "private samples per client"
                heat = Heatmap("ablation", title, x, y, columns, rows, figures)
                pictures.append((None, heat))
    return Section("ablation", "Public against private data", "Best accuracy by the sizes of both sets.", pictures)


def _bytes(study: Study) -> Section:
    """Accuracy against what had to travel for it."""
    pictures: list[tuple[int | None, Picture]] = []
    for index, task in enumerate(study.tasks):
        series = [Series(cell.method, points) for cell in study.of(task) if (points := _against_bytes(cell))]
        if series:
            x, note = (
                "sent up and down so far, all clients",
                "Messages as they were sent, headers and compression included.",
            )
            chart = Chart("bytes", "Accuracy on all classes", x, "accuracy", series, x_unit="megabytes", note=note)
            pictures.append((index, chart))
    return Section("bytes", "Accuracy against bytes", "Further left is cheaper.", pictures)


def _against_bytes(cell: Cell) -> list[Point]:
    sent = [list(accumulate(_both(line) for line in run.history.rounds)) for run in cell.runs]
    so_far = [
        MeanStd.of(run[index] for run in sent if index < len(run)).mean or 0 for index in range(max(map(len, sent)))
    ]
    points = [(so_far[int(point.x) - 1], point) for point in over_rounds(cell, "accuracy_mean")]
    return [Point(x, point.y, point.std) for x, point in points if x]


def _both(line: Round) -> int:
    return line.bytes_up + line.bytes_down


def _by_rest(study: Study, *keys: str) -> Iterator[tuple[Task, list[Cell]]]:
    """The cells that differ in nothing of the task but these settings; nothing where those do not differ at all."""
    if not all(study.values(key) for key in keys):
        return
    seen: list[Task] = []
    for task in study.tasks:
        rest = task.without(*keys)
        if rest not in seen:
            seen.append(rest)
            yield rest, [cell for cell in study.cells if cell.task.without(*keys) == rest]


def _series_over(study: Study, cells: Sequence[Cell], key: str, figure: Callable[[Cell], MeanStd]) -> list[Series]:
    """A figure of the cells over a setting, a series a method."""
    found = []
    for method in study.methods:
        own = sorted((cell for cell in cells if cell.method == method), key=lambda cell: cell.task.settings[key])
        figures = [(cell.task.settings[key], figure(cell)) for cell in own]
        points = [Point(x, f.mean, f.std) for x, f in figures if f.mean is not None]
        if points:
            found.append(Series(method, points))
    return found
