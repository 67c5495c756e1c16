"""The report of a study as one HTML file with its style, its script and its data inside; it opens offline."""

from dataclasses import dataclass

from trustmix.report.charts import Section
from trustmix.report.figure_views import group_figures
from trustmix.report.headline import facts, headline
from trustmix.report.load import Cell, Run, Study
from trustmix.report.method_tables import overview_table, task_table
from trustmix.report.palette import assign_colours, study_palette
from trustmix.report.rendering import PageSection, render
from trustmix.report.sections import sections
from trustmix.report.trust_map import trusted

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


def render_study_page(study: Study) -> str:
    """Render the report of a study.

    Parameters
    ----------
    study : Study
        The runs to report.

    Returns
    -------
    str
        An HTML page.
    """
    colours = assign_colours(study.methods)

    def as_page_section(section: Section) -> PageSection:
        content = group_figures(section.text, section.pictures, colours)
        return PageSection(section.key, section.title, "figures.html", content)

    trust_data = trusted(study)
    found = sections(study)
    by_task = [as_page_section(section) for section in found if not section.about_all]
    if trust_data is not None:
        at = next((index for index, section in enumerate(by_task) if section.key == "calibration"), len(by_task))
        by_task[at:at] = [
            PageSection("trust", "Whom the teacher trusts", "trust.html"),
            PageSection("samples", "Sample by sample", "samples.html"),
        ]
    failures = _failures(study)
    if failures:
        content = FailureList(failures[:MAX_FAILURES], len(failures[MAX_FAILURES:]))
        by_task.append(PageSection("failures", "What failed, and why", "failures.html", content))
    recipes = [(_run_name(study, cell, cell.runs[0]), cell.runs[0].recipe.toml()) for cell in study.cells]
    by_task.append(PageSection("recipe", "The recipe", "recipes.html", recipes))
    return render(
        "study_page.html",
        palette=study_palette(study.methods),
        headline=headline(study).replace(" %", "\u00a0%"),
        facts=facts(study),
        tasks=[task.name for task in study.tasks],
        overview=overview_table(study, colours),
        tables=[task_table(study, index, colours) for index in range(len(study.tasks))],
        sections_about_all=[as_page_section(section) for section in found if section.about_all],
        sections_by_task=by_task,
        trust_data=trust_data,
    )


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
