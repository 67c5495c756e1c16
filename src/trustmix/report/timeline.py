"""The section of a report about a deployment: who was there in each round, and each node's accuracy on its own data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trustmix.federation import Round
from trustmix.report.rendering import PageSection
from trustmix.report.study import Run, Study

MAX_ROUNDS = 60
"""The largest number of rounds of a timeline; of a longer run, the last ones."""
SYMBOLS = {"took part": "●", "late upload": "◐", "absent": "–", "late": "◌", "failed": "×", "refused": "⊘", "": ""}
"""How a timeline shows what became of a client in a round."""
LEGEND = {
    "took part": "took part",
    "late upload": "upload of an earlier round, used in this one",
    "absent": "not connected",
    "late": "no answer in time",
    "failed": "failed",
    "refused": "answer refused",
}
"""What the symbols are explained by."""


@dataclass(frozen=True)
class TimelineRow:
    """One node: what became of it in each round, and its last accuracy."""

    client: str
    cells: list[tuple[str, str]]
    """The symbol and the explanation, by round."""
    accuracy: str


@dataclass(frozen=True)
class Timeline:
    """The nodes of one run by round."""

    run: str
    rounds: list[int]
    rows: list[TimelineRow]


def timeline_sections(study: Study) -> list[PageSection]:
    """The section about deployments, if a run of the study is one.

    Parameters
    ----------
    study : Study
        The runs.

    Returns
    -------
    list of PageSection
        One section, or none.
    """
    found = [build_timeline(run) for run in study.runs if run.recipe.engine.name == "flower"]
    legend = [(SYMBOLS[what], text) for what, text in LEGEND.items()]
    return [PageSection("timeline", "Who was there", "timeline.html", (found, legend))] if found else []


def build_timeline(run: Run) -> Timeline:
    """What became of each node in each round.

    Parameters
    ----------
    run : Run
        A run that was served to nodes.

    Returns
    -------
    Timeline
    """
    lines = run.history.rounds[-MAX_ROUNDS:]
    names = dict.fromkeys(name for line in lines for name in (*line.participants, *line.failed, *line.refused))
    own = {client for line in lines for client in line.own_test}
    alone = {line.round: line.local_accuracy for line in run.history.rounds[:1]}.get(1, {})
    rows = [
        TimelineRow(name, list(_cells(lines, name)), describe_accuracy(lines, name, alone if name in own else None))
        for name in sorted(names)
    ]
    return Timeline(run.folder.name, [line.round for line in lines], rows)


def _cells(lines: Sequence[Round], client: str) -> Iterator[tuple[str, str]]:
    for line in lines:
        what, why = "", ""
        if client in line.late:
            what = "late upload"
        elif client in line.participants:
            what = "took part"
        elif client in line.failed:
            what, why = line.absence.get(client, "failed"), line.failed[client]
        elif client in line.refused:
            what, why = "refused", line.refused[client]
        yield SYMBOLS[what], f"{client}, round {line.round}: {what or 'not asked'}{': ' + why if why else ''}"


def describe_accuracy(lines: Sequence[Round], client: str, alone: Mapping[str, float] | None) -> str:
    """The last accuracy of a client, on whose test data it is, and whether the client was better alone.

    Parameters
    ----------
    lines : sequence of Round
        The rounds of a run.
    client : str
        The client id.
    alone : mapping of str to float, optional
        The accuracies on own test data after private training alone, by client; None for common test data.

    Returns
    -------
    str

    Examples
    --------
    >>> lines = [Round(1, "trust", accuracy={"north": 0.5}), Round(2, "trust", accuracy={"north": 0.25})]
    >>> describe_accuracy(lines, "north", {"north": 0.75})
    '25.0 % on its own test data, below the 75.0 % it had alone in round 1'
    """
    last = next((line.accuracy[client] for line in reversed(lines) if client in line.accuracy), None)
    if last is None:
        return "–"
    if alone is None:
        return f"{100 * last:.1f} % on the common test data"
    before = alone.get(client)
    worse = f", below the {100 * before:.1f} % it had alone in round 1" if before is not None and last < before else ""
    return f"{100 * last:.1f} % on its own test data{worse}"
