"""What others are shown of one run, several runs or a sweep: an HTML page that opens offline, figures for a paper."""

from collections.abc import Sequence
from pathlib import Path

from trustmix import storage
from trustmix.report.figures import write_figures
from trustmix.report.load import load_study
from trustmix.report.page import render_study_page

__all__ = ["figures", "report"]


def report(folders: Sequence[Path], out: Path) -> Path:
    """Write the page about these run and sweep directories and return its path."""
    storage.write_bytes(out, render_study_page(load_study(folders)).encode())
    return out


def figures(folders: Sequence[Path], out: Path) -> list[str]:
    """Draw the figures of these run and sweep directories into a folder and tell their names."""
    return write_figures(load_study(folders), out)
