"""Reports of one run, several runs or a sweep: an HTML page that opens offline, and figures for a paper."""

from trustmix.report.figures import write_figures
from trustmix.report.load import load_study
from trustmix.report.page import write_report

__all__ = ["load_study", "write_figures", "write_report"]
