"""The theory on finished runs as one HTML page: the figures of each run, Lemma 1, and what tau does to a teacher."""

import html
from pathlib import Path

from trustmix import storage
from trustmix.experiment.theory import ROWS, Findings
from trustmix.report.charts import Chart, Point, Series
from trustmix.report.load import Method
from trustmix.report.page import render_page
from trustmix.report.palette import assign_colours
from trustmix.report.svg import figure
from trustmix.theory.analysis import TAUS, Curve
from trustmix.theory.measurement import read_measurements

ERROR, BIAS, VARIANCE = Method("reference", "error"), Method("avg", "bias²"), Method("uwa", "variance")
CHI = Method("suwa", "χ")


def page(findings: Findings, out: Path) -> Path:
    """Write the findings as one HTML file that opens offline, and return its path."""
    first, _, rest = findings.verdict().partition("\n")
    parts = [("runs", "The figures of each run", _table(findings))]
    for index, curve in enumerate(findings.curves):
        what = "Bias against variance" if curve.biases is not None else "Teacher error"
        parts.append((f"tau{index}", f"{what} as tau goes from AVG to UWA", _about(curve)))
    rounds = _rounds(findings)
    if rounds:
        parts.append(("rounds", "Teacher error, round by round", rounds))
    text = render_page(
        title="The theory on these runs",
        facts=first,
        overview="".join(f"<p>{html.escape(line)}</p>" for line in rest.splitlines()),
        parts=parts,
    )
    storage.write_bytes(out, text.encode())
    return out


def _table(findings: Findings) -> str:
    heads = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in ("", *findings.names))
    rows = "".join(
        f"<tr><td>{html.escape(head)}</td>{''.join(f'<td>{cell(run)}</td>' for run in findings.runs)}</tr>"
        for head, cell in ROWS
    )
    return f'<div class="scroll"><table class="all"><tr>{heads}</tr>{rows}</table></div>'


def _about(curve: Curve) -> str:
    """A setting's figures over tau, and Lemma 1 where several runs show it."""
    squares = [Series(ERROR, _points(curve.errors))]
    if curve.biases is not None and curve.variances is not None:
        squares += [Series(BIAS, _points(curve.biases)), Series(VARIANCE, _points(curve.variances))]
    note = "0 is AVG, 0.25 sUWA, 1 UWA"
    charts = [
        Chart("error", "Squared error of the teacher", "tau", "squared error", squares, "number", note=note),
        Chart("chi", "Concentration of trust", "tau", "χ", [Series(CHI, _points(curve.concentrations))], "number"),
    ]
    palette = assign_colours([ERROR, BIAS, VARIANCE, CHI])
    drawn = "".join(figure(chart, palette) for chart in charts)
    named = f'<p class="lead">{html.escape(curve.name)}</p>'
    return f'{named}<div class="figures">{drawn}</div>{_lemma(curve) if curve.lemmas else ""}'


def _points(values: list[float]) -> list[Point]:
    return [Point(tau, value) for tau, value in zip(TAUS, values, strict=True)]


def _lemma(curve: Curve) -> str:
    heads = ("tau", "chi", "error", "bias", "own variance", "shared", "coupling", "sigma²", "rho", "bound")
    rows = "".join(
        f"<tr><td>{tau:g}</td>"
        + "".join(
            f"<td>{value:.4f}</td>"
            for value in (f.chi, f.error, f.bias, f.own, f.shared, f.coupling, f.sigma2, f.rho, f.bound)
        )
        + "</tr>"
        for tau, f in (curve.lemmas or {}).items()
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    title = f"<h3>Lemma 1 over {curve.runs} runs</h3>"
    return f'{title}<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _rounds(findings: Findings) -> str:
    """What runs with `theory.every` wrote down, round by round."""
    series = []
    for name, run in zip(findings.names, findings.runs, strict=True):
        points = [Point(note.round, note.teacher_error) for note in read_measurements(run.folder)]
        if points:
            series.append(Series(Method(name, name), points))
    if not series:
        return ""
    chart = Chart("rounds", "Squared error of the teacher", "round", "squared error", series, "number")
    return f'<div class="figures">{figure(chart, assign_colours([one.method for one in series]))}</div>'
