"""The report of a study as one HTML file with its style, its script and its data inside; it opens offline."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trustmix import storage
from trustmix.report.figure_views import group_figures
from trustmix.report.headline import headline, subtitle, warnings
from trustmix.report.method_tables import overview_table, task_table
from trustmix.report.palette import assign_colours, study_palette
from trustmix.report.record import model_cards, reproduction
from trustmix.report.rendering import PageSection, render
from trustmix.report.sections import FigureSection, build_sections
from trustmix.report.study import Cell, MethodLabel, Run, Study
from trustmix.report.timeline import timeline_sections
from trustmix.report.trust_map import build_trust_data

MAX_FAILURES = 300
"""The largest number of failures that are listed."""


@dataclass(frozen=True)
class Failure:
    """A run of a sweep that finished no round, or clients that were left out of a round for one reason."""

    run: str
    round: str
    clients: str
    reason: str


@dataclass(frozen=True)
class FailureList:
    """The failures that are listed, and how many more there are."""

    shown: list[Failure]
    more: int


def write_report(study: Study, out: Path) -> Path:
    """Write the report of a study as one HTML file that opens offline.

    Parameters
    ----------
    study : Study
        The runs to report.
    out : Path
        The file to write.

    Returns
    -------
    Path
        The file.
    """
    storage.write_bytes(out, _render_report(study).encode())
    return out


def _render_report(study: Study) -> str:
    colours = assign_colours(study.methods)
    trust_data = build_trust_data(study)
    sections = build_sections(study)
    by_task = [_page_section(section, colours) for section in sections if not section.about_all_tasks]
    if trust_data is not None:
        at = next((index for index, section in enumerate(by_task) if section.key == "calibration"), len(by_task))
        by_task[at:at] = [
            PageSection("trust", "Whom the teacher trusts", "trust.html"),
            PageSection("samples", "Sample by sample", "samples.html"),
        ]
    return render(
        "study_page.html",
        palette=study_palette(study.methods),
        headline=headline(study).replace(" %", "\u00a0%"),
        subtitle=subtitle(study),
        warnings=warnings(study),
        tasks=[task.name for task in study.tasks],
        overview=overview_table(study, colours),
        tables=[task_table(study, index, colours) for index in range(len(study.tasks))],
        sections_about_all=[_page_section(section, colours) for section in sections if section.about_all_tasks],
        sections_by_task=[*by_task, *_record_sections(study)],
        trust_data=trust_data,
    )


def _page_section(section: FigureSection, colours: Mapping[MethodLabel, int]) -> PageSection:
    content = group_figures(section.text, section.figures, colours)
    return PageSection(section.key, section.title, "figures.html", content)


def _record_sections(study: Study) -> list[PageSection]:
    """The last sections: what failed, the model card, how to repeat the runs, and the recipes."""
    recipes = [(_run_name(study, cell, cell.runs[0]), cell.runs[0].recipe.toml()) for cell in study.cells]
    sections = [
        *timeline_sections(study),
        PageSection("card", "Model card", "facts.html", model_cards(study)),
        PageSection("reproduce", "Repeat these runs", "facts.html", reproduction(study)),
        PageSection("recipe", "The recipe", "recipes.html", recipes),
    ]
    failures = _failures(study)
    if failures:
        content = FailureList(failures[:MAX_FAILURES], len(failures[MAX_FAILURES:]))
        sections.insert(0, PageSection("failures", "What failed, and why", "failures.html", content))
    return sections


def _failures(study: Study) -> list[Failure]:
    """Runs of a sweep that finished no round, and clients that were left out, by round and reason."""
    found = [Failure(name, "–", "the whole run", reason) for name, reason in study.missing.items()]
    for cell in study.cells:
        for run in cell.runs:
            name = _run_name(study, cell, run)
            for line in run.history.rounds:
                for reason in dict.fromkeys(line.failed.values()):
                    clients = ", ".join(client for client, why in line.failed.items() if why == reason)
                    found.append(Failure(name, str(line.round), clients, reason))
    return found


def _run_name(study: Study, cell: Cell, run: Run) -> str:
    """A run by its method, and by task and seed where there are several."""
    task = cell.task.name if len(study.tasks) > 1 else ""
    seed = f"seed {run.recipe.seed}" if len(cell.runs) > 1 else ""
    return ", ".join(part for part in (cell.method.name, task, seed) if part)
