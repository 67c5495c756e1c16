"""One run of a sweep, in a process of its own.

`python -m trustmix.sweeps.worker SWEEP NAME WORKERS PARENT FIRST_STAGES` is its command.

It dies with the sweep that started it and ignores Ctrl-C, which the sweep handles. If it fails, its last line on stderr
is the reason.
"""

import os
import signal
import sys
from pathlib import Path

from trustmix.engines.process_pool import die_with_parent
from trustmix.errors import TrustmixError
from trustmix.experiment.run import run
from trustmix.settings.recipe import Recipe
from trustmix.sweeps.sweep import read_sweep_recipes


def run_cell(sweep: Path, name: str, workers: int, first_stages: Path | None = None) -> None:
    """Start a run of a sweep, or resume it.

    Parameters
    ----------
    sweep : Path
        The directory of the sweep.
    name : str
        The directory of the run inside that of the sweep.
    workers : int
        The number of workers of a new run whose recipe does not set it; a resumed run keeps its own.
    first_stages : Path, optional
        The folder of the first private stage that runs which begin alike share.

    Raises
    ------
    TrustmixError
        If the run cannot be started or fails.
    """
    recipe = Recipe.load(read_sweep_recipes(sweep)[name])
    begun = (sweep / name / "recipe.toml").exists()
    if recipe.engine.workers is None and not begun:
        recipe = Recipe.load(recipe, [f"engine.workers={workers}"])
    run(recipe, out=sweep / name, resume=True, first_stages=first_stages)


def main(sweep: str, name: str, workers: str, parent: str, first_stages: str) -> None:
    """Run the process; the parameters are the arguments of the command line.

    Parameters
    ----------
    sweep, name, workers, first_stages : str
        The parameters of `run_cell`.
    parent : str
        The process id of the sweep.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        die_with_parent()
        if os.getppid() != int(parent):
            sys.exit("The sweep ended before the run began.")
    try:
        run_cell(Path(sweep), name, int(workers), Path(first_stages))
    except TrustmixError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
