"""How many runs go side by side: bounded by cores and by memory."""

import psutil
import pytest

from trustmix import Recipe, TrustmixError
from trustmix.experiment import resources
from trustmix.experiment.resources import PROCESS_BYTES, max_parallel_jobs, memory_available, memory_needed


def test_a_run_needs_its_data_twice_and_six_times_its_models() -> None:
    recipe = Recipe.load("demo")
    parameters = 64 * 64 + 64 + 64 * 10 + 10
    images = 2 * 1797 * 64
    assert memory_needed(recipe) - PROCESS_BYTES == pytest.approx(6 * 20 * 4 * parameters + images, rel=0.5)
    wide = Recipe.load("demo", ["model.hidden=[4096]"])
    assert memory_needed(wide) - PROCESS_BYTES > 6 * 20 * 4 * 64 * 4096


def test_models_of_the_users_own_are_not_built() -> None:
    assert memory_needed(Recipe.load("demo", ["model={source='no.such:thing'}"])) == PROCESS_BYTES


def test_jobs_are_bounded_by_cores_and_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = Recipe.load("demo"), Recipe.load("demo", ["model.hidden=[65536]", "clients=40"])
    monkeypatch.setattr(resources, "cores", lambda: 8)
    monkeypatch.setattr(resources, "best_device", lambda: "cpu")
    monkeypatch.setattr(resources, "memory_available", lambda: 5.5 * PROCESS_BYTES)
    assert max_parallel_jobs([small]) == 5
    assert max_parallel_jobs([small, large]) == 1
    monkeypatch.setattr(resources, "memory_available", lambda: float("inf"))
    assert max_parallel_jobs([small, large]) == 8
    monkeypatch.setattr(resources, "best_device", lambda: "cuda")
    assert max_parallel_jobs([small]) == 1


def test_data_that_are_not_there_are_told_before_anything_runs() -> None:
    with pytest.raises(TrustmixError, match="nowhere"):
        max_parallel_jobs([Recipe.load("demo", ["data.name=npz", "data.path=nowhere.npz"])])


def test_the_available_memory_is_a_part_of_the_machines() -> None:
    assert 0 < memory_available() < psutil.virtual_memory().total
