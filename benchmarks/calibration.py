"""When does the density help? Teachers of the first round by what the density is fitted on, its floor, and temperature.

    python -m benchmarks.calibration fashion --set split.classes_per_client=2 --set seed=0
    python -m benchmarks.calibration --run RUN      # the models of a run's last uploads instead

One federation is trained through its first private stage; every line of the two Markdown tables is of the same models.
The teacher's accuracy on the public set is in per cent; AUC tells own from foreign samples, the mean over clients.
"""

import argparse
from pathlib import Path

import torch

from benchmarks.densities import first_stage, last_uploads
from trustmix import ClassGaussians, Recipe, mix
from trustmix.data import Labelled, augment_batch
from trustmix.density import roc_auc
from trustmix.learners.training import predict

TAUS = (0.0, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
FLOORS = (1e-6, 1e-3, 1e-1, 1.0, 10.0)
STEPS = (8, 4, 2, 1)


def main() -> None:
    """Train, then fit and mix in every way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="fashion")
    parser.add_argument("--run", type=Path, help="the directory of a finished run, whose recipe it is then")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="key=value")
    wanted = parser.parse_args()
    changes = [*wanted.changes, "engine.mode=sequential", "engine.precision=float32"]
    server, clients = last_uploads(wanted.run) if wanted.run else first_stage(Recipe.load(wanted.recipe, changes))
    public, truth = server.public, server.public_labels
    assert truth is not None
    seen = [predict(state.model, public.inputs, client.hardware).cpu() for client, state in clients]
    predictions = torch.stack([torch.softmax(logits.double(), 1) for logits in seen])
    own = [torch.isin(truth, client.private.labels) for client, _ in clients]

    def line(name: str, calibration: list[tuple[torch.Tensor, torch.Tensor]], floor: float) -> str:
        densities = [ClassGaussians.fit(logits, labels, floor=floor) for logits, labels in calibration]
        scores = torch.stack([density.log_prob(logits) for density, logits in zip(densities, seen, strict=True)])
        area = sum(roc_auc(score, mine) for score, mine in zip(scores, own, strict=True)) / len(own)
        teachers = [mix(predictions, scores, tau=tau).probabilities.argmax(1) for tau in TAUS]
        right = [f"{100 * float((teacher == truth).double().mean()):.1f}" for teacher in teachers]
        return f"| {name} | {area:.2f} | " + " | ".join(right) + " |"

    def logits_of(samples: list[Labelled]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            (predict(state.model, part.inputs, client.hardware).cpu(), part.labels)
            for (client, state), part in zip(clients, samples, strict=True)
        ]

    def augmented(samples: Labelled) -> Labelled:
        return Labelled(augment_batch(samples.inputs, "crop-flip", torch.Generator().manual_seed(0)), samples.labels)

    held = logits_of([client.calibration for client, _ in clients])
    trained = logits_of([client.private for client, _ in clients])
    head = " | AUC | " + " | ".join(f"tau = {tau:g}" for tau in TAUS) + " |\n" + "|---" * (len(TAUS) + 2) + "|"
    print(f"| fitted on{head}")
    for step in STEPS:
        some = [(logits[::step], labels[::step]) for logits, labels in held]  # they are sorted by class
        print(line(f"{len(some[0][0])} held-out samples", some, 1e-3))
    print(line(f"its {len(trained[0][0])} training samples", trained, 1e-3))
    if public.inputs.ndim == 4:
        changed = logits_of([augmented(client.private) for client, _ in clients])
        print(line("its training images, cropped and mirrored", changed, 1e-3))
    print(f"\n| variance floor{head}")
    for floor in FLOORS:
        print(line(f"{floor:g}", held, floor))


if __name__ == "__main__":
    main()
