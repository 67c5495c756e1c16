"""When the density ratio holds: few samples, all classes, other class frequencies, a public set from elsewhere.

    python -m benchmarks.ratio_conditions --seed 10 [--only noise,digits]
    python -m benchmarks.ratio_conditions --amounts --seeds 10 11

The clients of the recipe `fashion` train through their first private stage. Every line of the Markdown table is one
condition: the AUC of the scores of each density, and the accuracy of the first teacher under UWA in per cent.
With `--amounts` every second client has a sixth of its samples, and the columns are rules that weigh clients by their
number of samples or do not.
"""

import argparse
from collections.abc import Callable
from statistics import fmean

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
        models = train_all(clients)
        inputs, labels = change(clients[0].public.inputs, load_public(recipe, experiment.data).labels)
        q = predict_all(clients, models, inputs)
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


def measure_amounts(classes: int, seeds: list[int]) -> str:
    """One line of the table of clients with very different numbers of samples, the mean over seeds."""
    rows = []
    for seed in seeds:
        settings = [f"seed={seed}", "engine.mode=sequential", f"split.classes_per_client={classes}"]
        recipe = tm.Recipe.load("fashion", settings)
        with build_federation(recipe) as experiment:
            clients = list(experiment.clients)
            for client in clients[1::2]:
                client.private = client.private[torch.arange(0, len(client.private), 6)]
            models, inputs = train_all(clients), clients[0].public.inputs
            labels = load_public(recipe, experiment.data).labels
            q, scores = predict_all(clients, models, inputs), score_all(clients, models, inputs, "ratio")
            sizes = torch.tensor([len(client.private) for client in clients]).double()
        teachers = [
            q.mean(0),
            (q * (sizes / sizes.sum()).view(-1, 1, 1)).sum(0),
            tm.mix(q, scores, tau=1.0).probabilities,
            tm.mix(q, scores + sizes.log().unsqueeze(1), tau=1.0).probabilities,
            tm.mix(q, scores, rule="trust").probabilities,
        ]
        rows.append([accuracy(teacher, labels) for teacher in teachers])
    return f"| {classes} | " + " | ".join(f"{fmean(column):.1f}" for column in zip(*rows, strict=True)) + " |"


def train_all(clients: list[tm.Client]) -> list[torch.nn.Module]:
    """The models of all clients after their first private stage."""
    states = [client._resume(1) for client in clients]
    for client, state in zip(clients, states, strict=True):
        client.private_job(state, 1).run()
    return [state.model for state in states]


def predict_all(clients: list[tm.Client], models: list[torch.nn.Module], inputs: torch.Tensor) -> torch.Tensor:
    """The predictions (M, N, C) of all clients."""
    return torch.stack([predict(model, inputs, clients[0].hardware).double().softmax(1) for model in models])


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
    parser.add_argument("--amounts", action="store_true", help="clients with very different numbers of samples")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11], help="of --amounts")
    options = parser.parse_args()
    if options.amounts:
        print("| classes a client | AVG | AVG, n_i | UWA, ratio | UWA, ratio, n_i (FedGO) | trust |")
        print("|---|---|---|---|---|---|")
        for classes in (2, 3, 5):
            print(measure_amounts(classes, options.seeds), flush=True)
        return
    head = [f"{kind}: AUC, UWA, concentration" for kind in (*KINDS, "discriminator")]
    print("| condition | AVG | " + " | ".join(head) + " |")
    print("|---|---|---|---|---|")
    for name in options.only.split(","):
        print(measure(name, options.seed), flush=True)


if __name__ == "__main__":
    main()
