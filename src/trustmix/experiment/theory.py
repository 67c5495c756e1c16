"""Measurements of the theory on finished runs, as a table and as sentences made from its figures.

This module selects the run directories and groups them into settings; `report.theory_page` shows the result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.table import Table

from trustmix.errors import TrustmixError
from trustmix.experiment.run import build_probe
from trustmix.experiment.run_directory import RunDirectory
from trustmix.federation import History, Round
from trustmix.settings.own_code import load_run_recipe
from trustmix.settings.recipe import Recipe
from trustmix.theory.analysis import (
    Curve,
    ErrorCorrelation,
    compute_curve,
    correlate_error_accuracy,
    describe_correlation,
    describe_curve,
    describe_measurement,
)
from trustmix.theory.measurement import Measurement
from trustmix.theory.probe import TheoryProbe

MAX_COLUMNS = 4
"""Runs at most in a table with one column per run; more runs get one line each, with fewer figures."""
COMMON_SAMPLES = 1000
"""Samples at most on which runs of different splits are compared."""


@dataclass(frozen=True)
class MeasuredRun:
    """One run and the measurement of its last round.

    Parameters
    ----------
    folder : Path
        The run directory.
    recipe : Recipe
        The recipe of the run.
    line : Round
        The last round.
    accuracy : float or None
        The final accuracy, a fraction; None if it was not measured.
    measurement : Measurement
        The quantities of the theory in the last round.
    """

    folder: Path
    recipe: Recipe
    line: Round
    accuracy: float | None
    measurement: Measurement


@dataclass(frozen=True)
class Findings:
    """The measured runs, and the teacher error of each setting over tau.

    Parameters
    ----------
    runs : list of MeasuredRun
        The runs.
    curves : list of Curve
        One curve per setting.
    """

    runs: list[MeasuredRun]
    curves: list[Curve]

    @property
    def names(self) -> list[str]:
        """The names of the runs: those of their folders, or whole paths where two folders have the same name."""
        short = [run.folder.resolve().name for run in self.runs]
        return short if len(set(short)) == len(short) else [str(run.folder) for run in self.runs]

    def correlation(self) -> ErrorCorrelation:
        """Compute the rank correlation of teacher error and final accuracy.

        Runs are compared within a setting: a recipe with its seed, in which only the rule differs.

        Returns
        -------
        ErrorCorrelation
            The correlation; without an overall value if all runs have the same rule.
        """
        settings: dict[str, list[tuple[float, float]]] = {}
        for run in self.runs:
            if run.accuracy is not None:
                pair = run.measurement.teacher_error, run.accuracy
                settings.setdefault(_key(run.recipe, "rule"), []).append(pair)
        correlation = correlate_error_accuracy(list(settings.values()))
        several_rules = len({run.line.method for run in self.runs if run.accuracy is not None}) > 1
        return correlation if several_rules else replace(correlation, overall=None)

    def verdict(self) -> str:
        """Describe the figures in sentences, one per line."""
        sentences = [describe_measurement(self.runs[0].measurement)] if len(self.runs) == 1 else []
        if len(self.curves) <= MAX_COLUMNS:
            single = len(self.curves) == 1
            sentences += [("" if single else f"{curve.name}: ") + describe_curve(curve) for curve in self.curves]
        sentences += filter(None, [describe_correlation(self.correlation())])
        return "\n".join(sentences) or f"{len(self.runs)} runs of {len(self.curves)} settings were measured."

    def table(self) -> Table:
        """Return the figures of each run as a table for a terminal."""
        if len(self.runs) <= MAX_COLUMNS:
            table = Table("", *self.names)
            for head, cell in ROWS:
                table.add_row(head, *(cell(run) for run in self.runs))
        else:
            table = Table("run", *(head for head, _ in ROWS[:6]))
            for name, run in zip(self.names, self.runs, strict=True):
                table.add_row(name, *(cell(run) for _, cell in ROWS[:6]))
        for column in table.columns[1:]:
            column.justify = "right"
        return table


ROWS: list[tuple[str, Callable[[MeasuredRun], str]]] = [
    ("final accuracy", lambda r: "-" if r.accuracy is None else f"{100 * r.accuracy:.1f} %"),
    ("chi", lambda r: f"{r.measurement.concentration:.3f}"),
    ("effective clients", lambda r: f"{r.measurement.effective_clients:.1f}"),
    ("teacher error", lambda r: f"{r.measurement.teacher_error:.3f}"),
    ("floor of |grad F|²", lambda r: f"{r.measurement.floor:.3g}"),
    ("|grad F|², measured", lambda r: f"{r.measurement.gradient:.3g}"),
    ("floor of F - F*", lambda r: _number(r.measurement.pl_floor)),
    ("F - F*, measured", lambda r: f"{r.measurement.gap:.3g}"),
    ("teacher error, labels", lambda r: _number(r.measurement.label_error)),
    ("score energy G²", lambda r: f"{r.measurement.score_energy:.3g}"),
    ("gradient error bound", lambda r: f"{r.measurement.score_energy * r.measurement.teacher_error:.3g}"),
    ("gradient error, measured", lambda r: f"{r.measurement.discrepancy:.3g}"),
    ("alignment c", lambda r: f"{r.measurement.c:.3f}"),
    ("alignment b²", lambda r: f"{r.measurement.b2:.3g}"),
    ("noise nu²", lambda r: f"{r.measurement.noise:.3g}"),
    ("smoothness L", lambda r: f"{r.measurement.smoothness:.3g}"),
    ("PL constant mu", lambda r: _number(r.measurement.pl)),
    ("alpha", lambda r: f"{r.measurement.alpha:.3g}"),
    ("m", lambda r: f"{r.measurement.m:.3f}"),
    ("zeta²", lambda r: f"{r.measurement.zeta2:.3g}"),
]
"""The head of each row, and its cell for a run."""


def analyze_runs(folders: Sequence[Path], reference: str | None = None, *, allow_code: bool = False) -> Findings:
    """Measure the last round of finished runs, and the teacher error of each setting over tau.

    Parameters
    ----------
    folders : sequence of Path
        Run directories, or folders that hold run directories.
    reference : str, optional
        The reference for p*, "model" or "labels"; the recipe's `theory.reference` if not given.
    allow_code : bool
        Whether to import what recipes name as code even if a directory is not below the current one.

    Returns
    -------
    Findings
        The measured runs and the curves of their settings.

    Raises
    ------
    TrustmixError
        If there is no run, one is not finished, a recipe names code that is not allowed, or the theory covers no run.
    """
    probes: dict[str, TheoryProbe] = {}
    runs: list[MeasuredRun] = []
    settings: dict[str, list[tuple[MeasuredRun, TheoryProbe]]] = {}
    for folder, recipe, tau in _find_runs(folders, allow_code=allow_code):
        if reference is not None:
            recipe = recipe.model_copy(update={"theory": recipe.theory.model_copy(update={"reference": reference})})
        key = _key(recipe, "rule")
        probe = probes[key] = probes.get(key) or build_probe(recipe)
        history = History(RunDirectory(folder).rounds())
        line = history.rounds[-1]
        run = MeasuredRun(folder, recipe, line, history.final_accuracy, probe.measure(folder, line, tau))
        runs.append(run)
        settings.setdefault(_key(recipe, "seed"), []).append((run, probe))
    return Findings(runs, [_compute_curve(group) for group in settings.values()])


def _find_runs(folders: Sequence[Path], *, allow_code: bool) -> list[tuple[Path, Recipe, float]]:
    """The finished runs in these folders whose teachers the theory covers, and the tau of each."""
    files = [file for folder in folders for file in sorted(folder.rglob("recipe.toml"))]
    if not files:
        raise TrustmixError(f"{', '.join(map(str, folders))}: there is no run here; give a run directory.")
    unfinished = [file.parent for file in files if not RunDirectory(file.parent).finished]
    if unfinished:
        raise TrustmixError(f"{unfinished[0]} is not finished; go on with `trustmix run ... --resume` first.")
    runs = [(file.parent, load_run_recipe(file.parent, allow_code=allow_code)) for file in files]
    taus = [(folder, recipe, recipe.method.tau) for folder, recipe in runs]
    covered = [(folder, recipe, tau) for folder, recipe, tau in taus if tau is not None]
    if not covered:
        raise TrustmixError(
            f"{runs[0][0]} was run by {runs[0][1].rule}: the theory is about teachers that are weighted averages of "
            "predictions, as those of avg, uwa and suwa are."
        )
    return covered


def _key(recipe: Recipe, without: str) -> str:
    """A key of the recipe without one field and without the engine, equal for runs that differ only in these."""
    return str(recipe.model_dump(mode="json", exclude={"engine", without}))


def _compute_curve(group: list[tuple[MeasuredRun, TheoryProbe]]) -> Curve:
    """The curve of one setting from runs with one or several seeds, on the same inputs for all of them."""
    run, probe = group[0]
    same_split = all(torch.equal(other.public.inputs, probe.public.inputs) for _, other in group)
    common = probe.public if same_split else probe.test[torch.arange(min(COMMON_SAMPLES, len(probe.test)))]
    draws = [each.uploads(found.folder, found.line, common.inputs) for found, each in group]
    return compute_curve(_setting_name(run.recipe), draws, probe.reference_predictions(common), same_split=same_split)


def _setting_name(recipe: Recipe) -> str:
    split = recipe.split
    detail = {"classes": f"{split.classes_per_client} classes a client", "dirichlet": f"alpha = {split.alpha:g}"}
    data = recipe.data.name or recipe.data.source
    return f"{data}, {detail.get(split.kind, split.kind)}, clients trained by {recipe.method.label}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
