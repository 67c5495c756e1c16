"""How much of the teacher do clients take in, and what do they forget? One run for each way of distilling.

    python -m benchmarks.absorption cifar10-small --set clients=10 --set rounds=2 ...

Every line of the Markdown table is a run that differs in one setting, in per cent, after the last distillation: the
teacher on the public set, agreement with it, accuracy on all classes, and accuracy on the client's own classes before
(after private training) and after distilling, the difference of which is what was forgotten.
"""

import argparse
import time
from statistics import fmean

import torch
from torch import nn

from trustmix import Client, Recipe
from trustmix.experiment.build import build_federation
from trustmix.learners.training import accuracy

ENGINE = ["engine.mode=sequential", "engine.precision=float32", "engine.device=cpu"]
SETTINGS: dict[str, list[str]] = {
    **{f"two stages, {epochs}": [f"train.public_epochs={epochs}"] for epochs in ("1", "2", "5", "10", "auto")},
    **{f"mixed, {epochs}": ["train.stages=mixed", f"train.public_epochs={epochs}"] for epochs in ("1", "5", "10")},
    "5, a fresh optimiser each stage": ["train.public_epochs=5", "train.keep_optimizer=false"],
    "5, lr x 3": ["train.public_epochs=5", "train.lr=3e-3"],
    "5, lr / 3": ["train.public_epochs=5", "train.lr=3e-4"],
    "5, batch norm": ["train.public_epochs=5", "model.norm=true"],
}
HEAD = "| setting | epochs | teacher | agreement | accuracy | own classes before | after | seconds |"


@torch.no_grad()
def reset_statistics(model: nn.Module, inputs: torch.Tensor) -> None:
    """Estimate the running statistics of batch norm anew, on these inputs alone."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the mean over batches
    model.train()
    for part in torch.split(inputs, 100):
        model(part)


def mean_accuracy(clients: list[Client], models: list[nn.Module], *, own: bool) -> float:
    """The accuracy on all classes or on the client's own, the mean over clients."""
    found = []
    for client, model in zip(clients, models, strict=True):
        assert client.test is not None
        test = client._own_class_test(client.test) if own else client.test
        found.append(accuracy(model, test.inputs, test.labels, client.hardware))
    return fmean(found)


def study(name: str, recipe: Recipe) -> None:
    """Run a recipe and print its line, or two of them for a model with batch norm."""
    begin = time.process_time()
    with build_federation(recipe) as experiment:
        line = experiment.federation.run(recipe.rounds).rounds[-1]
        seconds = time.process_time() - begin
        clients = list(experiment.clients)
        models = [client._resume(recipe.rounds + 2).model for client in clients]
        before, after = line.local_accuracy_mean, mean_accuracy(clients, models, own=True)
        figures = [line.teacher_accuracy, line.agreement_mean, line.accuracy_mean, before, after]
        text = " | ".join("-" if figure is None else f"{100 * figure:.1f}" for figure in figures)
        print(f"| {name} | {fmean(line.public_epochs.values()):.1f} | {text} | {seconds:.0f} |", flush=True)
        if any(isinstance(module, nn.BatchNorm2d) for module in models[0].modules()):
            for client, model in zip(clients, models, strict=True):
                reset_statistics(model, client.public.inputs)
            everything, own = (100 * mean_accuracy(clients, models, own=own) for own in (False, True))
            print(f"| the same, statistics of the public set | | | | {everything:.1f} | | {own:.1f} | |", flush=True)


def main() -> None:
    """Run every setting and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="key=value")
    parser.add_argument("--only", nargs="*", help="settings whose names begin so")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    print(HEAD + "\n" + "|---" * (HEAD.count("|") - 1) + "|")
    for name, settings in SETTINGS.items():
        if not wanted.only or name.startswith(tuple(wanted.only)):
            study(name, Recipe.load(wanted.recipe, [*wanted.changes, *settings, *ENGINE]))


if __name__ == "__main__":
    main()
