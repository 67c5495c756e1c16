"""A run as a page: one HTML file that opens offline, with the curves of one or several runs and their figures."""

import html
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import plotly.graph_objects as go
import plotly.io
import plotly.offline
from plotly.colors import qualitative

from trustmix import storage
from trustmix.errors import TrustmixError
from trustmix.federation import History
from trustmix.study.recipe import Recipe, WireSection
from trustmix.study.record import RunDirectory

CURVES = {
    "accuracy_mean": "Accuracy on all classes, mean over clients",
    "local_accuracy_mean": "Accuracy on the client's own classes",
    "teacher_accuracy": "Accuracy of the teacher on the public set",
    "student_accuracy": "Accuracy of the server's student on all classes",
    "effective_clients": "Effective number of clients behind a teacher's label (1/χ)",
}

COLOURS = qualitative.D3

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>trustmix report</title><script>{plotly}</script><style>
:root {{ color-scheme: light; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #1a1a2e; }}
table {{ border-collapse: collapse; margin: 1rem 0; }} th, td {{ padding: .3rem .8rem; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }} tr {{ border-bottom: 1px solid #ddd; }}
.figures {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(420px, 1fr)); gap: 1rem; }}
.figures > div {{ min-width: 0; }}
pre {{ background: #f5f5f8; padding: 1rem; overflow-x: auto; }} @media print {{ details {{ display: none; }} }}
</style></head><body><h1>trustmix</h1>
{table}<div class="figures">{figures}</div>
{failures}{recipes}</body></html>
"""


def report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of these run directories and return its path."""
    names = [folder.resolve().name for folder in folders]
    unique = len(set(names)) == len(names)
    runs = {
        name if unique else str(folder): (folder, History(RunDirectory(folder).rounds()))
        for name, folder in zip(names, folders, strict=True)
    }
    for folder, history in runs.values():
        if not history.rounds:
            raise TrustmixError(f"{folder} holds no finished round; give a run directory with a rounds.jsonl.")
    histories = {name: history for name, (_, history) in runs.items()}
    figures = [_curve(histories, key, title) for key, title in CURVES.items() if _told(histories, key)]
    recipes = "".join(
        f"<details><summary>Recipe of {html.escape(name)}</summary><pre>"
        f"{html.escape(storage.read_bytes(folder / 'recipe.toml').decode())}</pre></details>"
        for name, (folder, _) in runs.items()
    )
    page = PAGE.format(
        plotly=plotly.offline.get_plotlyjs(),
        table=_table(histories, {name: Recipe.load(folder / "recipe.toml").wire for name, (folder, _) in runs.items()}),
        figures="".join(figures),
        failures=_failures(histories),
        recipes=recipes,
    )
    storage.write_bytes(out, page.encode())
    return out


def _told(histories: dict[str, History], key: str) -> bool:
    """Whether any run has something to say of it."""
    return any(getattr(line, key) is not None for history in histories.values() for line in history.rounds)


def _curve(histories: dict[str, History], key: str, title: str) -> str:
    figure = go.Figure()
    for colour, (name, history) in zip(cycle(COLOURS), histories.items(), strict=False):
        points = [(r.round, getattr(r, key)) for r in history.rounds if getattr(r, key) is not None]
        if points:
            x, y = zip(*points, strict=True)
            figure.add_scatter(x=x, y=y, name=name, mode="lines+markers", line_color=colour)
    figure.update_layout(title=title, template="plotly_white", height=380, margin={"l": 50, "r": 20, "t": 50, "b": 40})
    figure.update_xaxes(title="round")
    figure.update_yaxes(rangemode="tozero", tickformat=".0%" if "accuracy" in key else None)
    return str(
        plotly.io.to_html(
            figure, full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True}
        )
    )


def _table(histories: dict[str, History], wires: dict[str, WireSection]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{_percent(history.best_accuracy)}</td><td>{history.best_round}</td>"
        f"<td>{_percent(history.final_accuracy)}</td><td>{_percent(history.rounds[-1].local_accuracy_mean)}</td>"
        f"<td>{sum(r.bytes_up for r in history.rounds) / 1e6:.2f}</td>"
        f"<td>{sum(r.bytes_down for r in history.rounds) / 1e6:.2f}</td>"
        f"<td>{sum(r.paper_bytes_up for r in history.rounds) / 1e6:.2f}</td>"
        f"<td>{html.escape(wires[name].up)} / {html.escape(wires[name].down)}</td></tr>"
        for name, history in histories.items()
    )
    heads = ("run", "best accuracy", "in round", "final accuracy", "own classes", "MB up", "MB down")
    counts = ("MB up as the paper counts", "codec up / down")
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads + counts)}</tr>{rows}</table>"


def _failures(histories: dict[str, History]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{line.round}</td><td>{html.escape(client)}</td>"
        f"<td>{html.escape(reason)}</td></tr>"
        for name, history in histories.items()
        for line in history.rounds
        for client, reason in line.failed.items()
    )
    heads = "<tr><th>run</th><th>round</th><th>client</th><th>why</th></tr>"
    return f"<h2>Clients left out</h2><table>{heads}{rows}</table>" if rows else ""


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.1f} %"
