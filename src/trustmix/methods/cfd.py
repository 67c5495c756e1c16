"""CFD (Sattler et al., 2021): soft labels as multiples of 1 / (2^b - 1) that still sum to one.

Q_b(p) is the nearest such point of the simplex (constrained quantisation); with one bit it is the most probable class.
"""

from typing import Any

import torch

from trustmix.aggregation.upload import validate_predictions
from trustmix.arrays import ArrayLike, ArraySpec
from trustmix.errors import TrustmixError
from trustmix.wire.codecs import round_rows


def quantize(probabilities: ArrayLike, bits: int) -> Any:
    """Q_b(p) of each row (N, C), by largest remainders: round down, then give what is missing where most was lost.

    >>> import numpy as np
    >>> p = np.array([[0.5, 0.3, 0.2]])
    >>> quantize(p, 1).tolist(), (3 * quantize(p, 2)).round(9).tolist()
    ([[1.0, 0.0, 0.0]], [[1.0, 1.0, 1.0]])
    """
    if bits < 1:
        raise TrustmixError(f"soft labels of {bits} bits say nothing; at least one is needed.")
    p = validate_predictions(probabilities, "soft labels").to(torch.float64)
    levels = 2**bits - 1
    return ArraySpec.of(probabilities).restore(round_rows(p, levels) / levels)
