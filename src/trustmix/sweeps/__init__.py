"""Many runs of one recipe: every combination of swept values with every seed, and tables of the results."""

from trustmix.sweeps.schedule import SweepProgress
from trustmix.sweeps.sweep import Sweep
from trustmix.sweeps.tables import MeanStd, ResultTable

__all__ = ["MeanStd", "ResultTable", "Sweep", "SweepProgress"]
