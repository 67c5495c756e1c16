"""A density of your own in one class, compared with the built-in Gaussians: how much a client has seen of a sample.

On the command line the same density is `trustmix run digits --set density.kind=own_density:NearestNeighbours`, in the
folder of this file.
"""

import torch

import trustmix as tm
from trustmix.arrays import A, ArrayLike
from trustmix.density.base import restore_scores, validate_points


class NearestNeighbours:
    """The k-nearest-neighbour density: l(x) = -C log r_k(x), up to a constant.

    r_k(x) is the distance from the logits of x to the k-th nearest calibration sample.
    """

    def __init__(self, known: torch.Tensor, k: int = 3) -> None:
        self.known, self.k = known, min(k, len(known))

    @classmethod
    def fit(cls, logits: ArrayLike, labels: ArrayLike) -> "NearestNeighbours":
        """Keep the calibration logits (n, C); this density does not need their labels (n,)."""
        return cls(validate_points(logits, "logits"))

    def log_prob(self, logits: A) -> A:
        """The score of each row: (N, C) -> (N,), in the kind of array given."""
        points = validate_points(logits, "logits", self.known.shape[1])
        radius = torch.cdist(points, self.known).topk(self.k, largest=False).values[:, -1]
        return restore_scores(-points.shape[1] * radius.clamp_min(1e-9).log(), logits)


if __name__ == "__main__":
    small = ["clients=8", "rounds=4", "split.samples_per_client=120", "public.samples=300", "engine.mode=sequential"]
    for kind in ("gaussians", "own_density:NearestNeighbours"):
        last = tm.run(tm.Recipe.load("digits", [*small, f"density.kind={kind}"])).rounds[-1]
        accuracy, auc = last.accuracy_mean or 0.0, last.density_auc or 0.0
        print(f"{kind:30} {100 * accuracy:5.1f} %, own classes against others: {auc:.2f} AUC")
