"""Communication cost as the paper counts it ("Communication cost"): float32, one client's uplink, headers free.

The bytes that a run really sends are counted from its messages and stand beside these figures in its record.
"""

FLOAT32_BYTES = 4


def predictions_bytes(samples: int, classes: int, rounds: int = 1) -> int:
    """Bytes of the predictions on the public set: N * C numbers per round.

    Parameters
    ----------
    samples : int
        N, the size of the public set.
    classes : int
        C.
    rounds : int
        The number of rounds.

    Returns
    -------
    int
        Bytes that one client sends.

    Examples
    --------
    >>> predictions_bytes(2_000, 10, rounds=25), predictions_bytes(5_000, 100, rounds=25)  # Yahoo, CIFAR-100
    (2000000, 50000000)
    """
    return FLOAT32_BYTES * samples * classes * rounds


def fedavg_bytes(parameters: int, rounds: int = 1) -> int:
    """Bytes of FedAvg: the model in each round.

    Parameters
    ----------
    parameters : int
        The number of parameters of the model.
    rounds : int
        The number of rounds.

    Returns
    -------
    int
        Bytes that one client sends.

    Examples
    --------
    >>> fedavg_bytes(4_300_000, rounds=5)
    86000000
    """
    return FLOAT32_BYTES * parameters * rounds


def scaffold_bytes(parameters: int, rounds: int = 1) -> int:
    """Bytes of SCAFFOLD: the model and its control variate in each round.

    Parameters
    ----------
    parameters : int
        The number of parameters of the model.
    rounds : int
        The number of rounds.

    Returns
    -------
    int
        Bytes that one client sends.

    Examples
    --------
    >>> bert_tiny, resnet18 = 4_300_000, 11_700_000
    >>> scaffold_bytes(bert_tiny, rounds=5), scaffold_bytes(resnet18, rounds=5)
    (172000000, 468000000)
    >>> scaffold_bytes(bert_tiny, rounds=5) / predictions_bytes(2_000, 10, rounds=25)
    86.0
    >>> round(scaffold_bytes(resnet18, rounds=5) / predictions_bytes(5_000, 100, rounds=25))
    9
    """
    return 2 * fedavg_bytes(parameters, rounds)
