"""What others are shown of one run, several runs or a sweep: an HTML page that opens offline, figures for a paper."""

from collections.abc import Sequence
from pathlib import Path

from trustmix import storage
from trustmix.study.report.gather import gather
from trustmix.study.report.page import page
from trustmix.study.report.printed import printed

__all__ = ["figures", "report"]


def report(folders: Sequence[Path], out: Path) -> Path:
    """Write the page about these run and sweep directories and return its path."""
    storage.write_bytes(out, page(gather(folders)).encode())
    return out


def figures(folders: Sequence[Path], out: Path) -> list[str]:
    """Draw the figures of these run and sweep directories into a folder and tell their names."""
    return printed(gather(folders), out)
