"""The theory on finished runs: a table, and sentences made from its figures; `theory_page` shows them.

As tau goes from 0 (AVG) to 1 (UWA) trust is concentrated: the teacher's bias falls, its variance rises (Lemma 1).
Several runs that differ in their seed show both; a single run shows their sum, the teacher error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from rich.table import Table

from trustmix import theory
from trustmix.data import Labelled
from trustmix.errors import TrustmixError
from trustmix.experiment.recipe import Recipe
from trustmix.experiment.run import build_probe
from trustmix.experiment.run_directory import RunDirectory
from trustmix.federation import History, Round
from trustmix.theory.probe import Measurement, TheoryProbe, Uploads

TAUS = [step / 40 for step in range(41)]
"""From AVG to UWA."""
FEW = 4
"""Runs shown side by side with all their figures; of more, each is a line with the main ones."""
COMMON = 1000
"""Samples at most on which runs of different splits are compared."""


@dataclass(frozen=True)
class MeasuredRun:
    """One run and what the meter says of its last round."""

    folder: Path
    recipe: Recipe
    line: Round
    accuracy: float | None
    """The final one."""
    measurement: Measurement


@dataclass(frozen=True)
class Curve:
    """The teacher error of one setting for every tau of `TAUS`, and over several runs its bias and variance."""

    name: str
    runs: int
    errors: list[float]
    concentrations: list[float]
    biases: list[float] | None = None
    variances: list[float] | None = None
    lemmas: dict[float, theory.TeacherErrorDecomposition] | None = None
    """Lemma 1 at AVG, sUWA and UWA, where the runs share their split."""

    @property
    def best(self) -> float:
        """The tau of the least error."""
        return TAUS[min(range(len(TAUS)), key=self.errors.__getitem__)]

    def error(self, tau: float) -> float:
        """The error at a tau of `TAUS`."""
        return self.errors[TAUS.index(tau)]


@dataclass(frozen=True)
class Findings:
    """What `trustmix theory` shows."""

    runs: list[MeasuredRun]
    curves: list[Curve]

    @property
    def names(self) -> list[str]:
        """How the runs are called."""
        short = [run.folder.resolve().name for run in self.runs]
        return short if len(set(short)) == len(short) else [str(run.folder) for run in self.runs]

    def correlation(self) -> tuple[float | None, float | None, int]:
        """Spearman's correlation of teacher error and final accuracy: over all runs, and the mean within settings.

        A setting is a recipe with its seed, in which only the rule differs; three runs are needed. The last figure is
        the number of settings.
        """
        scored = [(r, r.accuracy) for r in self.runs if r.accuracy is not None]
        settings: dict[str, list[tuple[float, float]]] = {}
        for run, accuracy in scored:
            pair = run.measurement.teacher_error, accuracy
            settings.setdefault(_key(run.recipe, "rule"), []).append(pair)
        pairs = [pair for found in settings.values() for pair in found]
        within = [theory.rank_correlation(*zip(*found, strict=True)) for found in settings.values() if len(found) > 2]
        rules = {run.line.method for run, _ in scored}
        overall = theory.rank_correlation(*zip(*pairs, strict=True)) if len(pairs) > 2 and len(rules) > 1 else None
        return overall, fmean(within) if within else None, len(within)

    def verdict(self) -> str:
        """What the figures show, in sentences made from them."""
        said = [_about_run(self.runs[0])] if len(self.runs) == 1 else []
        if len(self.curves) <= FEW:
            said += [
                ("" if len(self.curves) == 1 else f"{curve.name}: ") + _about_curve(curve) for curve in self.curves
            ]
        overall, within, settings = self.correlation()
        if overall is not None:
            inside = "" if within is None else f", {within:+.2f} within a setting (mean of {settings})"
            said.append(
                f"Teacher error and final accuracy have a rank correlation of {overall:+.2f} over {len(self.runs)} runs"
                f"{inside}; -1 means that the better teacher always made the better clients."
            )
        return "\n".join(said) or f"{len(self.runs)} runs of {len(self.curves)} settings were measured."

    def table(self) -> Table:
        """The figures of each run, for a terminal."""
        if len(self.runs) <= FEW:
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
    ("floor of F - F*", lambda r: "-" if r.measurement.pl_floor is None else f"{r.measurement.pl_floor:.3g}"),
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


def analyze_runs(folders: Sequence[Path], reference: str | None = None) -> Findings:
    """Measure the last round of finished runs, and follow the teacher of each setting over tau."""
    found = _runs(folders)
    meters: dict[str, TheoryProbe] = {}
    runs: list[MeasuredRun] = []
    settings: dict[str, list[tuple[MeasuredRun, TheoryProbe]]] = {}
    for folder, recipe in found:
        if reference is not None:
            recipe = recipe.model_copy(update={"theory": recipe.theory.model_copy(update={"reference": reference})})
        key = _key(recipe, "rule")
        meter = meters[key] = meters.get(key) or build_probe(recipe)
        history = History(RunDirectory(folder).rounds())
        line = history.rounds[-1]
        run = MeasuredRun(folder, recipe, line, history.final_accuracy, meter.measure(folder, line, _tau(recipe)))
        runs.append(run)
        settings.setdefault(_key(recipe, "seed"), []).append((run, meter))
    return Findings(runs, [_curve(group) for group in settings.values()])


def _runs(folders: Sequence[Path]) -> list[tuple[Path, Recipe]]:
    """The finished runs in these folders, which may hold runs or be runs, and whose teachers the theory covers."""
    files = [file for folder in folders for file in sorted(folder.rglob("recipe.toml"))]
    if not files:
        raise TrustmixError(f"{', '.join(map(str, folders))}: there is no run here; give a run directory.")
    unfinished = [file.parent for file in files if not RunDirectory(file.parent).finished]
    if unfinished:
        raise TrustmixError(f"{unfinished[0]} is not finished; go on with `trustmix run ... --resume` first.")
    runs = [(file.parent, Recipe.load(file)) for file in files]
    told = [(folder, recipe) for folder, recipe in runs if recipe.method.tau is not None]
    if not told:
        raise TrustmixError(
            f"{runs[0][0]} was run by {runs[0][1].rule}: the theory is about teachers that are weighted averages of "
            f"predictions, as those of avg, uwa and suwa are."
        )
    return told


def _tau(recipe: Recipe) -> float:
    """The temperature of a run that the theory covers."""
    tau = recipe.method.tau
    if tau is None:
        raise TrustmixError(f"{recipe.method.name} is no weighted average of predictions.")
    return tau


def _key(recipe: Recipe, without: str) -> str:
    """What runs have in common that differ in the rule, or in the seed, and in how they were run."""
    fields = recipe.model_dump(mode="json", exclude={"engine", without})
    return str(fields)


def _curve(group: list[tuple[MeasuredRun, TheoryProbe]]) -> Curve:
    """The teacher of one setting over tau, from one run or from several seeds."""
    run, meter = group[0]
    name = _setting_name(run.recipe)
    if len(group) == 1:
        uploads = meter.uploads(run.folder, run.line)
        star = meter.reference(meter.public)
        teachers = [uploads.teacher(tau) for tau in TAUS]
        errors = [theory.teacher_error(teacher.probabilities, star) for teacher in teachers]
        return Curve(name, 1, errors, [float(teacher.concentration.mean()) for teacher in teachers])
    same = all(torch.equal(other.public.inputs, meter.public.inputs) for _, other in group)
    common: Labelled = meter.public if same else meter.test[torch.arange(min(COMMON, len(meter.test)))]
    star = meter.reference(common)
    drawn = [m.uploads(r.folder, r.line, common.inputs) for r, m in group]
    errors, chis, biases, variances = [], [], [], []
    for tau in TAUS:
        teachers = [uploads.teacher(tau) for uploads in drawn]
        bias, variance = theory.bias_variance(torch.stack([t.probabilities for t in teachers]), star)
        errors.append(bias + variance)
        biases.append(bias)
        variances.append(variance)
        chis.append(fmean(float(t.concentration.mean()) for t in teachers))
    alike = same and len({uploads.predictions.shape for uploads in drawn}) == 1
    lemmas = {tau: _lemma(drawn, tau, star) for tau in (0.0, 0.25, 1.0)} if alike else None
    return Curve(name, len(group), errors, chis, biases, variances, lemmas)


def _lemma(drawn: list[Uploads], tau: float, star: torch.Tensor) -> theory.TeacherErrorDecomposition:
    trust = torch.stack([theory.weights(uploads.scores, tau) for uploads in drawn])
    return theory.teacher_error_decomposition(torch.stack([uploads.predictions for uploads in drawn]), trust, star)


def _setting_name(recipe: Recipe) -> str:
    split = recipe.split
    detail = {"classes": f"{split.classes_per_client} classes a client", "dirichlet": f"alpha = {split.alpha:g}"}
    data = recipe.data.name or recipe.data.source
    return f"{data}, {detail.get(split.kind, split.kind)}, clients trained by {recipe.method.name}"


def _about_run(run: MeasuredRun) -> str:
    found = run.measurement
    stands = found.floor / found.gradient
    where = f"{stands:.3g} times what the run stands at" if stands >= 1 else "below where the run stands"
    return (
        f"In round {found.round} a label rests on {found.effective_clients:.1f} of {found.clients} clients and the "
        f"teacher error is {found.teacher_error:.3f}. The predicted floor of |grad F|² is {found.floor:.3g}, {where} "
        f"({found.gradient:.3g})."
    )


def _about_curve(curve: Curve) -> str:
    soft, least = curve.error(0.25), curve.error(curve.best)
    if soft <= 1.05 * least:
        judged = f"tau = 0.25 is a good choice here ({soft:.3f}, the least is {least:.3f} at {curve.best:g})"
    else:
        judged = f"tau = 0.25 is not the best choice here: it has {soft:.3f}, tau = {curve.best:g} has {least:.3f}"
    ends = f"From AVG to UWA the teacher error goes from {curve.error(0.0):.3f} to {curve.error(1.0):.3f}; {judged}."
    if curve.biases is None or curve.variances is None:
        return ends
    return (
        f"{ends} Over {curve.runs} runs the squared bias goes from {curve.biases[0]:.3f} to {curve.biases[-1]:.3f} and "
        f"the variance from {curve.variances[0]:.3f} to {curve.variances[-1]:.3f}."
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
