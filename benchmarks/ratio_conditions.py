"""When the density ratio holds: few samples, all classes, other class frequencies, a public set from elsewhere.

    python -m benchmarks.ratio_conditions --seed 10 [--only noise,digits]

The clients of the recipe `fashion` train through their first private stage. Every line of the Markdown table is one
condition: the AUC of the scores of each density, and the accuracy of the first teacher under UWA in per cent.
"""

import argparse
from collections.abc import Callable

import torch

import trustmix as tm
from trustmix.density import roc_auc
from trustmix.experiment.build import build_federation
from trustmix.experiment.data import load_public
from trustmix.learners.discriminator import FOLDS
from trustmix.learners.scoring import density_samples, score_inputs
from trustmix.learners.training import predict

KINDS = ("gaussians", "ratio")
Change = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def to_images(values: torch.Tensor) -> torch.Tensor:
    """Values as 8-bit images."""
    return values.round().clamp(0, 255).to(torch.uint8)


def unchanged(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The images as they are."""
    return x, y


def noise(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with Gaussian noise."""
    return to_images(x + 30 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))), y


def frequencies(factor: float) -> Change:
    """Each class `factor` times as frequent as the one before."""

    def thin(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = torch.rand(len(y), generator=torch.Generator().manual_seed(0)) < factor ** y.double()
        return x[kept].contiguous(), y[kept]

    return thin


def half_digits(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Half of the images replaced by handwritten digits, whose labels count as unknown."""
    half, digits = len(x) // 2, tm.data.load("digits").train.inputs
    drawn = torch.randint(len(digits), (len(x) - half,), generator=torch.Generator().manual_seed(0))
    large = torch.nn.functional.interpolate(digits[drawn].float(), size=tuple(x.shape[2:]), mode="bilinear")
    shown = to_images(large * 255 / float(digits.max()))
    return torch.cat([x[:half], shown]), torch.cat([y[:half], torch.full((len(shown),), -1)])


CONDITIONS: dict[str, tuple[list[str], Change]] = {
    "600": ([], unchanged),
    "100": (["split.samples_per_client=100", "train.first_epochs=6"], unchanged),
    "50": (["split.samples_per_client=50", "train.first_epochs=12"], unchanged),
    "20": (["split.samples_per_client=20", "train.first_epochs=30"], unchanged),
    "all": (["split.kind=homogeneous"], unchanged),
    "frequency 0.8": ([], frequencies(0.8)),
    "frequency 0.6": ([], frequencies(0.6)),
    "noise": ([], noise),
    "dark": ([], lambda x, y: (to_images(x * 0.5), y)),
    "shifted": ([], lambda x, y: (torch.roll(x, 3, -1), y)),
    "digits": ([], half_digits),
}
"""Settings of the recipe, and the change of the public set, by name."""


def measure(name: str, seed: int) -> str:
    """One line of the table."""
    settings, change = CONDITIONS[name]
    recipe = tm.Recipe.load("fashion", [f"seed={seed}", "engine.mode=sequential", *settings])
    with build_federation(recipe) as experiment:
        clients = list(experiment.clients)
        states = [client._resume(1) for client in clients]
        for client, state in zip(clients, states, strict=True):
            client.private_job(state, 1).run()
        inputs, labels = change(clients[0].public.inputs, load_public(recipe, experiment.data).labels)
        models = [state.model for state in states]
        q = torch.stack([predict(model, inputs, clients[0].hardware).double().softmax(1) for model in models])
        scores = {kind: score_all(clients, models, inputs, kind) for kind in KINDS}
        clients[0].public.inputs = inputs  # all clients share the object
        scores["discriminator"] = discriminate(clients)
    known = labels >= 0
    cells = [f"{accuracy(q.mean(0), labels):.1f}"]
    for of_kind in scores.values():
        held = [torch.isin(labels[known], client.private.labels) for client in clients]
        aucs = [roc_auc(s[known], own) for s, own in zip(of_kind, held, strict=True) if not own.all()]
        teacher = tm.mix(q, of_kind, tau=1.0)
        auc = f"{sum(aucs) / len(aucs):.3f}" if aucs else "-"
        cells.append(f"{auc}, {accuracy(teacher.probabilities, labels):.1f}, {teacher.concentration.mean():.3f}")
    return f"| {name} | " + " | ".join(cells) + " |"


def score_all(clients: list[tm.Client], models: list[torch.nn.Module], inputs: torch.Tensor, kind: str) -> torch.Tensor:
    """The scores (M, N) of all clients by a density of that kind."""
    scored = []
    for client, model in zip(clients, models, strict=True):
        samples = density_samples(kind, client.private, client.calibration)
        scored.append(score_inputs(model, samples, inputs, client.hardware, kind).scores.double())
    return torch.stack(scored)


def discriminate(clients: list[tm.Client]) -> torch.Tensor:
    """The scores (M, N) of all clients by discriminators."""
    running = [client._discriminate(1, {}) for client in clients]
    for _ in range(FOLDS):
        for one in running:
            next(one).run()
    scores = []
    for one in running:
        try:
            next(one)
        except StopIteration as end:
            scores.append(end.value.scores.double())
    return torch.stack(scores)


def accuracy(probabilities: torch.Tensor, labels: torch.Tensor) -> float:
    """Per cent of the samples with a known label whose likeliest class is right."""
    known = labels >= 0
    return 100 * float((probabilities.argmax(1) == labels)[known].double().mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--only", default=",".join(CONDITIONS))
    options = parser.parse_args()
    head = [f"{kind}: AUC, UWA, concentration" for kind in (*KINDS, "discriminator")]
    print("| condition | AVG | " + " | ".join(head) + " |")
    print("|---|---|---|---|---|")
    for name in options.only.split(","):
        print(measure(name, options.seed), flush=True)


if __name__ == "__main__":
    main()
