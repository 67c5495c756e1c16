"""Run and sweep directories as runs leave them, written through the classes that runs use, without training."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from playwright.sync_api import Page, sync_playwright

from trustmix import Recipe, storage
from trustmix.aggregation import client_weights
from trustmix.callbacks.trust_log import SHOWN, RoundTrust
from trustmix.experiment.previews import thumbnails
from trustmix.experiment.run_directory import RunDirectory
from trustmix.federation import History, Round
from trustmix.report.load import load_study
from trustmix.report.study import Study
from trustmix.sweeps.grid import expand_grid, slug

FINAL_ACCURACY = {"alone": 0.2, "reference": 0.9, "avg": 0.5, "uwa": 0.7, "suwa": 0.75}
TAU = {"avg": 0.0, "uwa": 1.0, "suwa": 0.25}

WriteRun: TypeAlias = Callable[..., RunDirectory]
WriteSweep: TypeAlias = Callable[..., Path]
OpenPage: TypeAlias = Callable[..., tuple[Page, list[str]]]

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TIMEOUT = 180_000
"""Milliseconds to wait for the browser at most; a busy machine is no reason to fail."""


def write_run(
    folder: Path,
    overrides: Sequence[str] = (),
    *,
    failed: Mapping[int, Mapping[str, str]] | None = None,
    hostile: str = "",
) -> RunDirectory:
    """A finished run of the demo's recipe with these changes; accuracy grows to `FINAL_ACCURACY`.

    Names of clients and classes begin with the `hostile` text; if there is one, it is also the text of every sample.
    """
    recipe = Recipe.load("demo", list(overrides))
    rng = np.random.default_rng(recipe.seed)
    record = RunDirectory(folder)
    rule = str(recipe.rule)
    held = {f"{hostile}{i}": [i % 10, (3 * i + 1) % 10] for i in range(recipe.clients)}
    with record.begin(recipe, overwrite=False):
        for number in range(1, recipe.rounds + 1):
            accuracy = FINAL_ACCURACY.get(rule, 0.4) * (1 - 0.7**number) + 0.01 * recipe.split.classes_per_client
            line = make_round(number, rule, accuracy, list(held), dict((failed or {}).get(number, {})), rng)
            if rule in TAU:
                make_trust(number, held, TAU[rule], rng).save(folder / "trust")
            record.append(line)
        if rule in TAU:
            write_samples(folder, held, rng, hostile)
        (folder / "checkpoint" / "clients").mkdir(parents=True)
        record.finish(History(record.rounds()), recipe.method)
    return record


def make_round(
    number: int, rule: str, mean: float, clients: list[str], failed: dict[str, str], rng: np.random.Generator
) -> Round:
    """A round whose accuracies lie around a mean; only rules in `TAU` have a teacher and send bytes."""
    accuracy = {client: float(np.clip(mean + rng.normal(0, 0.02), 0, 1)) for client in clients}
    teaches = rule in TAU
    return Round(
        number,
        rule,
        accuracy_mean=float(np.mean(list(accuracy.values()))),
        accuracy=accuracy,
        local_accuracy_mean=0.9,
        local_accuracy={client: 0.9 + 0.05 * rng.random() for client in clients},
        nll_mean=2.0 / number,
        ece_mean=0.3 / number,
        recall_mean=[mean * cls / 9 for cls in range(10)] if teaches else [],
        teacher_recall=[mean * cls / 9 for cls in range(10)] if teaches else [],
        agreement_mean=mean if teaches else None,
        agreement=accuracy if teaches else {},
        teacher_accuracy=mean if teaches else None,
        teacher_nll=1.5 / number if teaches else None,
        teacher_ece=0.2 / number if teaches else None,
        concentration=0.25 if teaches else None,
        effective_clients=4.0 if teaches else None,
        density_auc=0.8 if teaches else None,
        bytes_up=100_000 * teaches,
        bytes_down=80_000 * teaches,
        participants=clients,
        failed=failed,
    )


def make_trust(number: int, held: Mapping[str, Sequence[int]], tau: float, rng: np.random.Generator) -> RoundTrust:
    clients, classes = len(held), 10
    shares = client_weights(rng.normal(0, 10, (clients, SHOWN)), tau)
    trust = rng.random((clients, classes)) / clients
    for row, own in enumerate(held.values()):
        trust[row, list(own)] += 0.1
    return RoundTrust(
        round=number,
        clients=list(held),
        weighed=True,
        trust=torch.from_numpy(trust).to(torch.float16),
        shares=shares.to(torch.float16),
        votes=torch.from_numpy(rng.integers(0, classes, (clients, SHOWN))).to(torch.int32),
        teacher=torch.from_numpy(rng.dirichlet(np.ones(classes) / 3, SHOWN)).to(torch.float16),
    )


def write_samples(folder: Path, held: Mapping[str, Sequence[int]], rng: np.random.Generator, hostile: str = "") -> None:
    images = thumbnails(torch.from_numpy(rng.random((SHOWN, 3, 32, 32))))
    labels = rng.integers(0, 10, SHOWN)
    facts: dict[str, Any] = {
        "classes": [f"{hostile}class {i}" for i in range(10)],
        "labels": labels.tolist(),
        "held": dict(held),
    }
    file = folder / "trust" / "samples.safetensors"
    if hostile:
        storage.write_tensors(file, {}, facts | {"texts": [hostile] * SHOWN})
    else:
        storage.write_tensors(file, {"images": images}, facts)


@pytest.fixture(scope="session")
def run_directory() -> WriteRun:
    return write_run


def write_sweep(folder: Path, over: Mapping[str, Sequence[Any]], seeds: int = 1, overrides: Sequence[str] = ()) -> Path:
    """A finished sweep, as `trustmix sweep` lays it out."""
    runs = expand_grid("demo", over, seeds, overrides)
    recipes = {run.name: run.recipe.model_dump(mode="json", exclude_none=True) for run in runs}
    storage.write_json(folder / "sweep.json", {"over": dict(over), "seeds": list(range(seeds)), "runs": recipes})
    for values, seed in product(product(*over.values()), range(seeds)):
        settings = dict(zip(over, values, strict=True))
        changes = [f"{key}={value}" for key, value in settings.items()]
        write_run(folder / slug(settings) / f"seed-{seed}", [*overrides, *changes, f"seed={seed}"])
    return folder


@pytest.fixture(scope="session")
def sweep_directory() -> WriteSweep:
    return write_sweep


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Four methods by two numbers of classes per client, with two seeds each."""
    over: dict[str, list[Any]] = {"rule": ["alone", "avg", "suwa", "reference"], "split.classes_per_client": [2, 5]}
    return load_study([write_sweep(tmp_path_factory.mktemp("sweep"), over, 2, ["clients=4", "rounds=2"])])


@pytest.fixture(scope="module")
def open_page() -> Iterator[OpenPage]:
    """A function that opens a file in a browser and returns the page and what should not happen there.

    What should not happen are messages on the console, errors, and requests that leave the page.
    """
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=TIMEOUT)

        def open_file(file: Path, **settings: Any) -> tuple[Page, list[str]]:
            page = browser.new_context(**settings).new_page()
            page.set_default_timeout(TIMEOUT)
            faults: list[str] = []
            page.on("console", lambda message: faults.append(message.text))
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("request", lambda sent: faults.append(sent.url) if sent.url[:5] not in ("file:", "data:") else None)
            page.goto(file.as_uri())
            return page, faults

        yield open_file
        browser.close()
