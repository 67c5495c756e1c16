"""The theory on finished runs as one HTML page: measurements of each run, teacher error over tau, Lemma 1."""

from dataclasses import dataclass
from pathlib import Path

from trustmix import storage
from trustmix.experiment.theory import ROWS, Findings
from trustmix.report.charts import Chart, Point, Series
from trustmix.report.figure_views import FigureGroup, group_figures
from trustmix.report.palette import assign_colours
from trustmix.report.rendering import PageSection, render
from trustmix.report.study import MethodLabel
from trustmix.theory.analysis import TAUS, Curve
from trustmix.theory.measurement import read_measurements

SYMBOLS = (
    ("tau", "the temperature of the weights: 0 is AVG, 0.25 sUWA, 1 UWA"),
    ("error", "the mean squared distance of the teacher's probabilities from those of the reference"),
    (
        "bias, variance",
        "the error of the mean teacher over runs, and how far a teacher is from that mean; both add up to the error",
    ),
    ("F, F*", "the loss of true labels, and that of the reference model; 0 where labels are the reference"),
)
"""What the symbols of the whole page mean."""
LEMMA_SYMBOLS = (
    (
        "own variance, shared, coupling",
        "the parts of the variance: of single clients, of what they have in common, and of weights that vary with the "
        "predictions",
    ),
    (
        "sigma², rho",
        "the variance of a client's prediction over runs, and the correlation of that variation between clients",
    ),
    ("bound", "the upper bound of the error, for weights that do not vary with the draw (coupling 0)"),
)
"""What the columns of Lemma 1 mean."""
MEANINGS = {
    "final accuracy": "mean over clients, on the test set",
    "chi": "concentration χ: the mean over samples of the sum of squared weights",
    "effective clients": "1/χ: how many equally trusted clients would be as concentrated",
    "teacher error": "against the reference",
    "floor of |grad F|²": "zeta² / (1 - m): below it the theory promises nothing. A floor above the measurement is no "
    "contradiction: it is a bound for the worst case, which is loose on this run and predicts nothing here",
    "|grad F|², measured": "the squared norm of the gradient of F at the end of the measured round",
    "floor of F - F*": "zeta² / (2 mu (1 - m)), with the PL constant; read like the other floor",
    "F - F*, measured": "how far the loss of the clients is above F*",
    "teacher error, labels": "against the true labels instead",
    "score energy G²": "how strongly log-probabilities react to parameters",
    "gradient error bound": "G² times the teacher error",
    "gradient error, measured": "the squared distance of the gradients with this teacher and with a perfect one",
    "alignment c": "the part of |grad F|² by which the gradient with a perfect teacher may differ from that of F",
    "alignment b²": "what that difference has besides",
    "noise nu²": "the variance of the gradient over batches",
    "smoothness L": "the largest change of the gradient of F per distance, along the run",
    "PL constant mu": "the least |grad F|² / (2 (F - F*)) along the run",
    "alpha": "the free number of Proposition 1; the one with the lowest floor",
    "m": "(1 + 1/alpha) c: the bias of a step grows with |grad F|² by this factor",
    "zeta²": "(1 + alpha) G² error + (1 + 1/alpha) b²: the bias of a step that stays",
}
"""What each row of the table of runs means."""
ERROR, BIAS = MethodLabel("reference", "error", 1), MethodLabel("avg", "bias²", 2)
VARIANCE, CHI = MethodLabel("uwa", "variance", 3), MethodLabel("suwa", "χ", 4)


@dataclass(frozen=True)
class NumberTable:
    """A table of numbers: its headings, and its rows with a name first."""

    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class CurveContent:
    """The content of the template theory_curve.html."""

    figures: FigureGroup
    runs: int
    lemma: NumberTable | None
    """Lemma 1 for some tau, where several runs share their split."""
    symbols: tuple[tuple[str, str], ...] = LEMMA_SYMBOLS


def write_theory_page(findings: Findings, out: Path) -> Path:
    """Write the findings as one HTML file that opens offline.

    Parameters
    ----------
    findings : Findings
        The measurements of finished runs.
    out : Path
        The file to write.

    Returns
    -------
    Path
        The file.
    """
    first, _, rest = findings.verdict().partition("\n")
    sections = [PageSection("runs", "The figures of each run", "theory_runs.html", _run_table(findings))]
    for index, curve in enumerate(findings.curves):
        what = "Bias against variance" if curve.biases is not None else "Teacher error"
        title = f"{what} as tau goes from AVG to UWA"
        sections.append(PageSection(f"tau{index}", title, "theory_curve.html", _curve_content(curve)))
    rounds = _error_by_round(findings)
    if rounds is not None:
        sections.append(PageSection("rounds", "Teacher error, round by round", "figures.html", rounds))
    text = render(
        "theory_page.html",
        headline="The theory on these runs",
        subtitle=first,
        statements=rest.splitlines(),
        symbols=SYMBOLS,
        sections=sections,
        trust_data=None,
    )
    storage.write_bytes(out, text.encode())
    return out


def _run_table(findings: Findings) -> NumberTable:
    rows = [[head, *(cell(run) for run in findings.runs), MEANINGS[head]] for head, cell in ROWS]
    return NumberTable(["", *findings.names, "meaning"], rows)


def _curve_content(curve: Curve) -> CurveContent:
    """A setting's charts over tau, and Lemma 1 where several runs show it."""
    squares = [Series(ERROR, _points(curve.errors))]
    if curve.biases is not None and curve.variances is not None:
        squares += [Series(BIAS, _points(curve.biases)), Series(VARIANCE, _points(curve.variances))]
    note = "0 is AVG, 0.25 sUWA, 1 UWA"
    charts = [
        Chart("error", "Squared error of the teacher", "tau", "squared error", squares, "number", note=note),
        Chart("chi", "Concentration of trust", "tau", "χ", [Series(CHI, _points(curve.concentrations))], "number"),
    ]
    colours = assign_colours([ERROR, BIAS, VARIANCE, CHI])
    figures = group_figures(curve.name, [(None, chart) for chart in charts], colours)
    return CurveContent(figures, curve.runs, _lemma_table(curve))


def _points(values: list[float]) -> list[Point]:
    return [Point(tau, value) for tau, value in zip(TAUS, values, strict=True)]


def _lemma_table(curve: Curve) -> NumberTable | None:
    if not curve.decompositions:
        return None
    columns = ["tau", "chi", "error", "bias", "own variance", "shared", "coupling", "sigma²", "rho", "bound"]
    rows = []
    for tau, f in curve.decompositions.items():
        values = (f.chi, f.error, f.bias, f.own, f.shared, f.coupling, f.sigma2, f.rho, f.bound)
        rows.append([f"{tau:g}", *(f"{value:.4f}" for value in values)])
    return NumberTable(columns, rows)


def _error_by_round(findings: Findings) -> FigureGroup | None:
    """The teacher error of every round that runs with `theory.every` have measured."""
    series = []
    for name, run in zip(findings.names, findings.runs, strict=True):
        points = [Point(found.round, found.teacher_error) for found in read_measurements(run.folder)]
        if points:
            series.append(Series(MethodLabel(name, name), points))
    if not series:
        return None
    chart = Chart("rounds", "Squared error of the teacher", "round", "squared error", series, "number")
    return group_figures("", [(None, chart)], assign_colours([one.method for one in series]))
