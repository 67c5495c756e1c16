"""What all clients together make of a sample: a vote over classes in which who does not hold a class counts as well.

A client that holds a class estimates p(c|x). What its estimates leave of 1 it holds to be of none of its classes. For
each class c the log-odds of both, clipped, are added up over the holders of c: in all, the likelihood of the label c by
the words of all clients, up to a constant that is the same for every class. A label that colluding holders of one class
take from it contradicts the holders of that class, and those of the class that they give it to.

The sum is then balanced: every class gets the offset with which all are equally common in the public set, as the rule
`trust` assumes. A class whose samples were given away has the largest offset, and takes them back from where they have
the least support.
"""

import torch

MIN_OPINION = 0.2
"""What a client leaves to the others when it is sure: one client adds at most log(1 / 0.2) to the odds of a label."""
BALANCE_STEPS = 20
"""How often the offsets of classes are found anew."""
MAX_OFFSET = 8.0
"""The largest offset, in log-odds: a public set in which a class is rare is not forced to be another one."""


def opinion_odds(
    estimates: torch.Tensor, rest: torch.Tensor, client: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """What clients add to the log-odds of their classes, against none of their own.

    Parameters
    ----------
    estimates
        (N, K), float32: of each pair of a client and a class that it holds, what it estimates of p(c|x).
    rest
        (N, M), float32: what each client's estimates leave of 1.
    client
        (K,): the client of each pair.
    weights
        (M,): the weight of each client.

    Returns
    -------
    torch.Tensor
        (N, K), float32, to be added up over the clients of a class.

    >>> sure, none = torch.tensor([[0.9, 0.0]]), torch.tensor([[0.1, 1.0]])  # one holder of each of two classes
    >>> opinion_odds(sure, none, torch.tensor([0, 1]), torch.ones(2)).double().softmax(1).round(decimals=2).tolist()
    [[0.94, 0.06]]
    """
    against = _log_opinion(rest).index_select(1, client)
    return _log_opinion(estimates).sub_(against).mul_(weights.to(estimates.dtype).index_select(0, client))


def _log_opinion(probabilities: torch.Tensor) -> torch.Tensor:
    return (probabilities * (1 - MIN_OPINION)).add_(MIN_OPINION).log_()


def balance_classes(odds: torch.Tensor) -> torch.Tensor:
    """Probabilities of which every class has an equal part, as far as bounded offsets make it.

    Parameters
    ----------
    odds
        (N, C): log-odds of labels.

    Returns
    -------
    torch.Tensor
        (N, C), the rows of sum 1.

    >>> balance_classes(torch.tensor([[2.0, 0.0], [1.0, 0.0]]).double()).mean(0).round(decimals=3).tolist()
    [0.5, 0.5]
    """
    offset = torch.zeros(odds.shape[1], dtype=odds.dtype)
    tiny = torch.finfo(odds.dtype).tiny
    for _ in range(BALANCE_STEPS):
        common = torch.softmax(odds + offset, 1).mean(0) * len(offset)
        offset = (offset - common.clamp_min(tiny).log()).clamp_(-MAX_OFFSET, MAX_OFFSET)
    return torch.softmax(odds + offset, 1)
