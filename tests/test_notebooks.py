"""The notebooks in examples/ run from the first cell to the last, without a warning."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def test_there_are_two() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["first_steps", "own_data_and_model"]


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_and_shows_what_it_computes(file: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.get("name") == "stderr"], "a cell warns"
    shown = [output.data for output in outputs if "data" in output]
    assert any("image/png" in data for data in shown), "no figure"
    assert any("<table" in data.get("text/html", "") for data in shown), "no table"


@pytest.mark.slow
def test_a_run_in_a_notebook_shows_a_bar_that_ends_full(tmp_path: Path) -> None:
    code = 'import trustmix as tm\nhistory = tm.run("digits", rounds=1, clients=5, split={"samples_per_client": 20})'
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (bar,) = notebook.cells[0].outputs
    assert bar.data["text/html"] == '<progress max="1" value="1.000"></progress> done'
