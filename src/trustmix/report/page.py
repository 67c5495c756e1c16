"""The page: one HTML file with its style, its script and its data inside; it opens offline and asks nobody anything."""

import html
from collections.abc import Sequence
from importlib import resources
from itertools import groupby
from string import Template
from typing import Any, TypeAlias

from trustmix.experiment.tables import MeanStd
from trustmix.federation import CENTRALIZED
from trustmix.report.charts import Section, significant
from trustmix.report.headline import facts, headline
from trustmix.report.load import PRIVATE, PUBLIC, Cell, Method, Run, Study
from trustmix.report.palette import PALETTE, assign_colours
from trustmix.report.sections import sections
from trustmix.report.svg import as_json, figure
from trustmix.report.trust_map import trusted

Part: TypeAlias = tuple[str, str, str]
"""A section: its anchor, its title and its HTML."""
MANY = 12
"""Tasks in the table of all of them, at most."""
ROWS = 300
"""Failures that are listed, at most."""


def page(study: Study) -> str:
    """The report of a study."""
    colour = assign_colours(study.methods)
    told = sections(study)
    whole = [(s.key, s.title, _section(s, colour)) for s in told if s.about_all]
    parts = [(s.key, s.title, _section(s, colour)) for s in told if not s.about_all]
    trust = trusted(study)
    if trust is not None:
        at = next((index for index, part in enumerate(parts) if part[0] == "calibration"), len(parts))
        parts.insert(at, ("samples", "Sample by sample", _file("samples.html")))
        parts.insert(at, ("trust", "Whom the teacher trusts", _file("trust.html")))
    failures = _failures(study)
    if failures:
        parts.append(("failures", "What failed, and why", failures))
    parts.append(("recipe", "The recipe", _recipes(study)))
    tables = "".join(_table(study, i, colour) for i in range(len(study.tasks)))
    several = len(study.tasks) > 1
    return render_page(
        title=headline(study),
        facts=facts(study),
        overview=_overview(study, colour) if several else tables,
        before=whole,
        control=_task_control(study) + tables if several else "",
        parts=parts,
        trust=trust,
    )


def render_page(
    *,
    title: str,
    facts: str,
    overview: str,
    parts: Sequence[Part],
    before: Sequence[Part] = (),
    control: str = "",
    trust: dict[str, Any] | None = None,
) -> str:
    """A page of sections, with everything it needs inside; `control` stands before the sections that it changes."""
    return Template(_file("page.html")).substitute(
        headline=html.escape(title).replace(" %", "\u00a0%"),
        facts=html.escape(facts),
        style=_file("page.css") + _palette(),
        overview=overview,
        contents="".join(f'<li><a href="#{key}">{html.escape(name)}</a></li>' for key, name, _ in (*before, *parts)),
        sections=_joined(before) + control + _joined(parts),
        trust=as_json(trust),
        script=_file("page.js"),
    )


def _joined(parts: Sequence[Part]) -> str:
    return "".join(f'<section id="{key}"><h2>{html.escape(title)}</h2>{body}</section>' for key, title, body in parts)


def _file(name: str) -> str:
    return (resources.files("trustmix.report") / "templates" / name).read_text("utf-8")


def _palette() -> str:
    """The classes c0, c1, ... of the colours, on light and on dark paper."""
    light = "".join(f".c{index}{{color:{pair[0]}}}" for index, pair in enumerate(PALETTE))
    dark = "".join(f".c{index}{{color:{pair[1]}}}" for index, pair in enumerate(PALETTE))
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}"


def _section(section: Section, colour: dict[Method, int]) -> str:
    """A section's figures: those about all tasks, then those of each task, of which one is shown at a time."""
    text = f'<p class="lead">{html.escape(section.text)}</p>' if section.text else ""
    blocks = []
    for task, group in groupby(section.pictures, key=lambda entry: entry[0]):
        drawn = "".join(figure(picture, colour) for _, picture in group)
        blocks.append(f'<div class="figures"{_of_task(task)}>{drawn}</div>')
    return text + "".join(blocks)


def _of_task(task: int | None) -> str:
    if task is None:
        return ""
    return f' data-task="{task}"' + (" hidden" if task else "")


def _task_control(study: Study) -> str:
    """What chooses the task that is shown."""
    choices = "".join(f'<option value="{i}">{html.escape(task.name)}</option>' for i, task in enumerate(study.tasks))
    return f'<div class="controls task"><label>Show the setting <select id="task">{choices}</select></label></div>'


def _overview(study: Study, colour: dict[Method, int]) -> str:
    """The best accuracy of every method on every task."""
    if len(study.tasks) > MANY or (study.values(PUBLIC) and study.values(PRIVATE)):
        return ""  # too wide for a table, or a heat map already
    heads = "".join(f'<th scope="col">{html.escape(task.name)}</th>' for task in study.tasks)
    found = {(cell.method, index): cell.best for index, task in enumerate(study.tasks) for cell in study.of(task)}
    tops = [_top(study.of(task)) for task in study.tasks]
    rows = []
    for method in study.methods:
        figures = [found.get((method, index), MeanStd.of([])) for index in range(len(study.tasks))]
        fields = [_percents(f, best=f.mean is not None and f.mean == top) for f, top in zip(figures, tops, strict=True)]
        rows.append(f"<tr>{_swatch(method, colour)}{''.join(fields)}</tr>")
    return (
        f'<div class="scroll"><table class="all"><tr><th>best accuracy, %</th>{heads}</tr>{"".join(rows)}</table></div>'
    )


def _table(study: Study, index: int, colour: dict[Method, int]) -> str:
    """The methods on one task: what they reach, and what that costs."""
    task = study.tasks[index]
    cells = study.of(task)
    heads = ["best accuracy, %", "in round", "final, %", "own classes, %", "teacher, %", "ECE, %"]
    figures = [[_best(cell, cells) for cell in cells], [f"<td>{_round(cell)}</td>" for cell in cells]]
    for name in ("accuracy_mean", "local_accuracy_mean", "teacher_accuracy", "ece_mean"):
        figures.append([_percents(cell.last(name)) for cell in cells])
    heads += ["MB up", "MB down"]
    figures += [[_megabytes(cell, name) for cell in cells] for name in ("bytes_up", "bytes_down")]
    heads.append("codec up / down")
    wires = [cell.runs[0].recipe.wire for cell in cells]
    codecs = [f"{wire.up} / {wire.down}" for wire in wires]
    usual = set(codecs) == {"float32 / float32"}
    figures.append([f"<td>{'–' if usual else html.escape(codec)}</td>" for codec in codecs])
    told = [n for n, column in enumerate(figures) if any(field not in ("<td>–</td>", "<td>0</td>") for field in column)]
    rows = [
        f"<tr>{_swatch(cell.method, colour)}{''.join(figures[n][row] for n in told)}</tr>"
        for row, cell in enumerate(cells)
    ]
    head = "".join(f'<th scope="col">{heads[n]}</th>' for n in told)
    body = f"<table><tr><th>{html.escape(task.name) or 'method'}</th>{head}</tr>{''.join(rows)}</table>"
    return f'<div class="scroll"{_of_task(index)}>{body}</div>'


def _swatch(method: Method, colour: dict[Method, int]) -> str:
    return f'<td><span class="key c{colour[method]}">{html.escape(method.name)}</span></td>'


def _best(cell: Cell, cells: Sequence[Cell]) -> str:
    return _percents(cell.best, best=len(cells) > 1 and cell.best.mean == _top(cells))


def _top(cells: Sequence[Cell]) -> float | None:
    """The largest accuracy; the reference, which nobody could train, does not compete."""
    known = [cell.best.mean for cell in cells if cell.method.rule != CENTRALIZED and cell.best.mean is not None]
    return max(known, default=None)


def _percents(figure: MeanStd, *, best: bool = False) -> str:
    if figure.mean is None:
        return "<td>–</td>"
    mean = f"{100 * figure.mean:.1f}"
    spread = "" if figure.std is None else f"<small>± {100 * figure.std:.1f}</small>"
    return f"<td>{f'<b>{mean}</b>' if best else mean}{spread}</td>"


def _round(cell: Cell) -> str:
    numbers = sorted({run.history.best_round for run in cell.runs if run.history.best_round is not None})
    return "–" if not numbers else str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"


def _megabytes(cell: Cell, name: str) -> str:
    mean = MeanStd.of(sum(getattr(line, name) for line in run.history.rounds) for run in cell.runs).mean or 0
    return f"<td>{significant(mean / 1e6)}</td>"


def _failures(study: Study) -> str:
    """Clients that were left out, by round and reason, and runs of a sweep that did not come to a round."""
    rows: list[tuple[str, str, str, str]] = [(name, "–", "the whole run", why) for name, why in study.missing.items()]
    for cell in study.cells:
        for run in cell.runs:
            name = _run_name(study, cell, run)
            for line in run.history.rounds:
                for reason in dict.fromkeys(line.failed.values()):
                    clients = ", ".join(client for client, why in line.failed.items() if why == reason)
                    rows.append((name, str(line.round), clients, reason))
    if not rows:
        return ""
    heads = ("run", "round", "clients left out", "why")
    head = "".join(f'<th class="words" scope="col">{head}</th>' for head in heads)
    body = "".join(
        f'<tr><td class="words">{html.escape(run)}</td><td class="words">{number}</td>'
        f'<td class="long">{html.escape(clients)}</td><td class="long">{html.escape(why)}</td></tr>'
        for run, number, clients, why in rows[:ROWS]
    )
    more = f'<p class="note">And {len(rows) - ROWS} more, in rounds.jsonl.</p>' if len(rows) > ROWS else ""
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>{more}'


def _run_name(study: Study, cell: Cell, run: Run) -> str:
    """A run by its method, and by task and seed where there are several."""
    task = cell.task.name if len(study.tasks) > 1 else ""
    seed = f"seed {run.recipe.seed}" if len(cell.runs) > 1 else ""
    return ", ".join(part for part in (cell.method.name, task, seed) if part)


def _recipes(study: Study) -> str:
    """Every cell's recipe, of its first seed."""
    return "".join(
        f'<details class="recipe"><summary>{html.escape(_run_name(study, cell, cell.runs[0]))}</summary>'
        f"<pre>{html.escape(cell.runs[0].recipe.toml())}</pre></details>"
        for cell in study.cells
    )
