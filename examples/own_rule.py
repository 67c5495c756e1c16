"""A rule of your own in one class, compared with built-in ones.

It weighs a prediction by how little entropy it has and ignores densities. A model is often sure and wrong about classes
that it was never trained on, so this rule should not be as good as sUWA. On the command line the same rule is
`trustmix run digits --set rule=own_rule:BelieveTheSure`, in the folder of this file.
"""

from collections.abc import Mapping

import torch

import trustmix as tm


class BelieveTheSure(tm.SumAggregator):
    """p(x) = sum_i w_i(x) q_i(x) with w_i(x) proportional to exp(-5 H(q_i(x)))."""

    label = "believe the sure"
    colour = "#d9480f"

    def terms(self, upload: tm.Upload) -> dict[str, torch.Tensor]:
        """What one client adds: sums over clients are all that is kept."""
        q = upload.predictions.double()
        weight = upload.weight * torch.exp(-5 * torch.special.entr(q).sum(1))
        return {"mixed": weight[:, None] * q, "weight": weight, "square": weight.square()}

    def from_sums(self, sums: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The teacher (N, C), and the concentration sum_i w_i^2 (N,)."""
        return sums["mixed"] / sums["weight"][:, None], sums["square"] / sums["weight"].square()


if __name__ == "__main__":
    small = ["clients=10", "rounds=4", "split.samples_per_client=120", "engine.mode=sequential"]
    for rule in ("avg", "own_rule:BelieveTheSure", "suwa"):
        accuracy = tm.run(tm.Recipe.load("digits", [*small, f"rule={rule}"])).best_accuracy or 0.0
        print(f"{rule:24} {100 * accuracy:5.1f} %")
