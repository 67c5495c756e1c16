"""What talking costs as the paper counts it ("Communication cost"): float32, one client's uplink, headers free.

What a run really sends is counted from its messages and stands beside these figures in its record.
"""

FLOAT32 = 4


def predictions_bytes(samples: int, classes: int, rounds: int = 1) -> int:
    """Predictions on the public set: N * C numbers a round.

    >>> predictions_bytes(2_000, 10, rounds=25), predictions_bytes(5_000, 100, rounds=25)  # Yahoo, CIFAR-100
    (2000000, 50000000)
    """
    return FLOAT32 * samples * classes * rounds


def fedavg_bytes(parameters: int, rounds: int = 1) -> int:
    """FedAvg: the model, each round."""
    return FLOAT32 * parameters * rounds


def scaffold_bytes(parameters: int, rounds: int = 1) -> int:
    """SCAFFOLD: the model and its control variate, each round.

    >>> bert_tiny, resnet18 = 4_300_000, 11_700_000
    >>> scaffold_bytes(bert_tiny, rounds=5), scaffold_bytes(resnet18, rounds=5)
    (172000000, 468000000)
    >>> scaffold_bytes(bert_tiny, rounds=5) / predictions_bytes(2_000, 10, rounds=25)
    86.0
    >>> round(scaffold_bytes(resnet18, rounds=5) / predictions_bytes(5_000, 100, rounds=25))
    9
    """
    return 2 * fedavg_bytes(parameters, rounds)
