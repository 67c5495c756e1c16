"""Scores on a common scale, and how well they separate classes."""

import torch


def standardize_scores(calibration_scores: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Standard scores: relative to the mean of the calibration scores, in their standard deviations.

    A client's own samples then have mean 0 and spread 1, whatever its model and density, and tau counts in that unit.

    Parameters
    ----------
    calibration_scores : torch.Tensor (n,)
        The scores of the calibration samples.
    scores : torch.Tensor (N,)
        The scores to standardise.

    Returns
    -------
    torch.Tensor (N,)
        Standard scores; differences from the mean where all calibration scores are the same.

    Examples
    --------
    >>> standardize_scores(torch.tensor([2.0, 6.0]), torch.tensor([4.0, 0.0])).tolist()
    [0.0, -2.0]
    """
    known = calibration_scores.double()
    mean, spread = float(known.mean()), float(known.std(correction=0))
    return (scores - mean) / (spread or 1.0)


def roc_auc(scores: torch.Tensor, positive: torch.Tensor) -> float:
    """The area under the ROC curve: how well scores separate a client's own classes from the others.

    Parameters
    ----------
    scores : torch.Tensor (n,)
        The scores.
    positive : torch.Tensor (n,)
        Boolean: which samples are of the client's classes. Both kinds must occur.

    Returns
    -------
    float
        0.5 is chance, 1 a perfect separation.

    Examples
    --------
    >>> roc_auc(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, True]))
    1.0
    """
    _, place, ties = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = (ties.cumsum(0) - (ties - 1) / 2)[place].double()  # equal scores share the mean of their ranks
    count = int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(scores) - count)))
