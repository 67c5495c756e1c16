"""The constants of the bounds: score energy, noise, alignment, and the biased oracle (Proposition 1).

    m = (1 + 1/alpha) c,   zeta^2 = (1 + alpha) G_sc^2 eps_teach + (1 + 1/alpha) b^2,   alpha > c / (1 - c)

Measured constants are estimates: they are those of the points at which they were measured.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, log_softmax

from trustmix.errors import TrustmixError

Parameters = dict[str, torch.Tensor]

MAX_GRADIENT_NUMBERS = 2**24
"""Numbers of per-sample gradients that are in memory together."""


def score_energy(model: nn.Module, inputs: torch.Tensor) -> float:
    """The score energy G_sc^2 = E_x sum_c ||grad log f_c(x)||^2 at the model's parameters, by per-sample gradients.

    Parameters
    ----------
    model : nn.Module
        The model; it is in evaluation mode afterwards.
    inputs : torch.Tensor (n, ...)
        Samples x.

    Returns
    -------
    float
        G_sc^2.

    Examples
    --------
    >>> model = nn.Linear(3, 2)
    >>> _ = nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    >>> round(score_energy(model, torch.ones(4, 3)), 6)                       # (|x|^2 + 1) * C * (1 - 1/C)
    4.0
    """
    parameters, fixed = _split_parameters(model)
    classes = _logits(model, parameters, fixed, inputs[:1]).shape[1]

    def energy(sample: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        def log_probability(theta: Parameters) -> torch.Tensor:
            return (log_softmax(_logits(model, theta, fixed, sample[None]), 1)[0] * one).sum()

        return _squared_norm(grad(log_probability)(parameters))

    ones = torch.eye(classes, device=inputs.device).repeat(len(inputs), 1)
    return float(_map_samples(parameters, energy, inputs.repeat_interleave(classes, 0), ones).double().sum()) / len(
        inputs
    )


def gradient_noise(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, batch: int) -> float:
    """The gradient noise nu^2 = E||g - grad J||^2 at the model's parameters, for batches drawn independently.

    Parameters
    ----------
    model : nn.Module
        The model; it is in evaluation mode afterwards.
    inputs : torch.Tensor (n, ...)
        Samples x.
    targets : torch.Tensor (n, C)
        The soft labels of the teacher.
    batch : int
        The size of a batch.

    Returns
    -------
    float
        nu^2.

    Examples
    --------
    >>> model = nn.Linear(2, 2)
    >>> gradient_noise(model, torch.ones(5, 2), torch.full((5, 2), 0.5), batch=4) < 1e-12      # all samples alike
    True
    """
    parameters, fixed = _split_parameters(model)

    def loss(theta: Parameters, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(_logits(model, theta, fixed, x), y)

    def energy(sample: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return _squared_norm(grad(loss)(parameters, sample[None], target[None]))

    mean_square = _map_samples(parameters, energy, inputs, targets).double().mean()
    square_mean = _squared_norm(grad(loss)(parameters, inputs, targets)).double()
    return max(float(mean_square - square_mean), 0.0) / batch


def _split_parameters(model: nn.Module) -> tuple[Parameters, Parameters]:
    """Trainable and fixed tensors; the model is put into evaluation mode, where samples do not mix."""
    model.eval()
    everything = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    plain = {name: tensor.detach() for name, tensor in everything.items()}
    return {n: t for n, t in plain.items() if n in trained}, {n: t for n, t in plain.items() if n not in trained}


def _logits(model: nn.Module, theta: Parameters, fixed: Parameters, inputs: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = functional_call(model, {**theta, **fixed}, (inputs,))
    return logits


def _squared_norm(tensors: Parameters) -> torch.Tensor:
    return torch.stack([tensor.square().sum() for tensor in tensors.values()]).sum()


def _map_samples(parameters: Parameters, energy: Callable[..., torch.Tensor], *each: torch.Tensor) -> torch.Tensor:
    """The energy of each sample, many together."""
    size = sum(tensor.numel() for tensor in parameters.values())
    try:
        found: torch.Tensor = vmap(energy, chunk_size=max(1, MAX_GRADIENT_NUMBERS // size))(*each)
    except RuntimeError:  # vmap refuses a model with branches on input values, as BERT has for padding
        found = torch.stack([energy(*sample) for sample in zip(*each, strict=True)])
    return found


@dataclass(frozen=True)
class Alignment:
    """E||grad F - grad J*||^2 <= c E||grad F||^2 + b^2: the distance of ideal distillation from supervised learning.

    Raises
    ------
    TrustmixError
        If c is not at least 0 and below 1, or b^2 is negative.
    """

    c: float
    b2: float
    """b^2."""

    def __post_init__(self) -> None:
        if not 0 <= self.c < 1:
            raise TrustmixError(
                f"c is {self.c:g}; it must be at least 0 and below 1, since alpha > c/(1 - c) exists only then: "
                "the gradients of F and of ideal distillation are not aligned."
            )
        if not (self.b2 >= 0 and math.isfinite(self.b2)):
            raise TrustmixError(f"b^2 is {self.b2:g}; it must be a number, 0 or more.")


def fit_alignment(gradients: Sequence[float], differences: Sequence[float], teacher_term: float = 0.0) -> Alignment:
    """The alignment of points along a run.

    For every c there is a least b that covers all points; of these pairs the one with the lowest floor is taken.

    Parameters
    ----------
    gradients : sequence of float
        ||grad F||^2 of each point.
    differences : sequence of float
        ||grad F - grad J*||^2 of each point.
    teacher_term : float
        G_sc^2 * eps_teach.

    Returns
    -------
    Alignment
        c and b^2.

    Raises
    ------
    TrustmixError
        If the numbers of gradients and differences are not the same, or one is negative.

    Examples
    --------
    >>> fit_alignment([1.0, 4.0], [0.25, 1.0])
    Alignment(c=0.25, b2=0.0)
    """
    if len(gradients) != len(differences) or not gradients:
        raise TrustmixError(
            f"{len(gradients)} gradients and {len(differences)} differences; there must be one of each."
        )
    norm, apart = (torch.tensor(values, dtype=torch.float64) for values in (gradients, differences))
    if not bool((torch.cat([norm, apart]) >= 0).all()):
        raise TrustmixError("squared norms of gradients must be numbers, 0 or more.")
    slopes = apart[norm > 0] / norm[norm > 0]  # b can only vanish at these, and b^2 is piecewise linear between them
    grid = torch.cat([torch.linspace(0, 0.999, 1000, dtype=torch.float64), slopes[slopes < 1]])
    least = (apart - grid[:, None] * norm).amax(1).clamp_min(0)
    least = torch.where(least < 1e-12 * float(apart.max()), torch.zeros_like(least), least)
    floors = [_lowest_floor(float(c), float(b2), teacher_term) for c, b2 in zip(grid, least, strict=True)]
    best = min(range(len(floors)), key=floors.__getitem__)
    return Alignment(float(grid[best]), float(least[best]))


def smoothness(gradients: Sequence[torch.Tensor], points: Sequence[torch.Tensor]) -> float:
    """The smoothness L_F between points: the largest ||grad F(a) - grad F(b)|| / ||a - b|| of all pairs.

    Parameters
    ----------
    gradients : sequence of torch.Tensor
        grad F at each point.
    points : sequence of torch.Tensor
        The parameters of each point.

    Returns
    -------
    float
        L_F.

    Raises
    ------
    TrustmixError
        If there are no two different points with different gradients.

    Examples
    --------
    >>> smoothness([torch.tensor([2.0, 0.0]), torch.tensor([0.0, 0.0])], [torch.tensor([1.0, 0.0]), torch.zeros(2)])
    2.0
    """
    slope = _distances(gradients) / _distances(points).clamp_min(torch.finfo(torch.float64).tiny)
    steepest = float(torch.where(_distances(points) > 0, slope, torch.zeros_like(slope)).max())
    if not steepest > 0:
        raise TrustmixError("smoothness needs two different points with different gradients.")
    return steepest


def pl_constant(gradients: Sequence[float], gaps: Sequence[float]) -> float:
    """The PL constant mu_F of points: the least ||grad F||^2 / (2 (F - F*)).

    Parameters
    ----------
    gradients : sequence of float
        ||grad F||^2 of each point.
    gaps : sequence of float
        F - F* of each point.

    Returns
    -------
    float
        mu_F.

    Raises
    ------
    TrustmixError
        If no point lies above F*.

    Examples
    --------
    >>> pl_constant([4.0, 2.0], [1.0, 1.0])
    1.0
    """
    ratios = [g / (2 * gap) for g, gap in zip(gradients, gaps, strict=True) if gap > 0]
    if not ratios:
        raise TrustmixError("no point lies above F*; the PL constant needs one.")
    return min(ratios)


def _distances(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    flat = torch.stack([vector.flatten().double() for vector in vectors])
    return torch.pdist(flat) if len(flat) > 1 else torch.zeros(1, dtype=torch.float64)


@dataclass(frozen=True)
class Oracle:
    """E||bias of the gradient||^2 <= m E||grad F||^2 + zeta^2 (Proposition 1).

    Raises
    ------
    TrustmixError
        If m is not at least 0 and below 1, or zeta^2 is negative.
    """

    m: float
    zeta2: float
    """zeta^2."""
    alpha: float = math.nan
    """The alpha that gives this m and zeta^2."""

    def __post_init__(self) -> None:
        if not 0 <= self.m < 1:
            raise TrustmixError(f"m is {self.m:g}; it must be at least 0 and below 1, or no bound holds.")
        if not (self.zeta2 >= 0 and math.isfinite(self.zeta2)):
            raise TrustmixError(f"zeta^2 is {self.zeta2:g}; it must be a number, 0 or more.")


def smallest_alpha(c: float) -> float:
    """The bound that alpha must be above, c / (1 - c), so that m < 1.

    Parameters
    ----------
    c : float
        The c of an alignment.

    Returns
    -------
    float
        c / (1 - c).

    Raises
    ------
    TrustmixError
        If c is not at least 0 and below 1.

    Examples
    --------
    >>> smallest_alpha(0.5)
    1.0
    """
    return Alignment(c, 0.0).c / (1 - c)


def best_alpha(alignment: Alignment, energy: float, error: float) -> float:
    """The alpha with the lowest floor zeta^2 / (1 - m).

    With A = G_sc^2 eps_teach the lowest floor s^2 solves s = sqrt(A) + sqrt(c s^2 + b^2), and alpha = s/sqrt(A) - 1.

    Parameters
    ----------
    alignment : Alignment
        c and b^2.
    energy : float
        G_sc^2.
    error : float
        eps_teach.

    Returns
    -------
    float
        alpha; infinite where the teacher is perfect.

    Raises
    ------
    TrustmixError
        If the energy or the error is negative.

    Examples
    --------
    >>> round(best_alpha(Alignment(0.0, 4.0), energy=1.0, error=1.0), 9)
    2.0
    """
    term = math.sqrt(_teacher_term(energy, error))
    lowest = math.sqrt(_lowest_floor(alignment.c, alignment.b2, term**2))
    return math.inf if term == 0 else max(lowest / term - 1, 0.0)


def oracle(alignment: Alignment, energy: float, error: float, alpha: float | None = None) -> Oracle:
    """The biased oracle of Proposition 1.

    Parameters
    ----------
    alignment : Alignment
        c and b^2.
    energy : float
        G_sc^2.
    error : float
        eps_teach.
    alpha : float, optional
        Above c / (1 - c); `best_alpha` if not given.

    Returns
    -------
    Oracle
        m and zeta^2.

    Raises
    ------
    TrustmixError
        If alpha is too small, or the energy or the error is negative.

    Examples
    --------
    >>> oracle(Alignment(0.25, 1.0), energy=2.0, error=0.5, alpha=1.0)
    Oracle(m=0.5, zeta2=4.0, alpha=1.0)
    """
    term = _teacher_term(energy, error)
    chosen = best_alpha(alignment, energy, error) if alpha is None else alpha
    least = smallest_alpha(alignment.c)
    if not (chosen > least or (chosen == 0 and alignment.c == alignment.b2 == 0)):
        raise TrustmixError(f"alpha is {chosen:g}; with c = {alignment.c:g} it must be above c/(1 - c) = {least:g}.")
    inverse = math.inf if chosen == 0 else 1 / chosen
    apart = 0.0 if alignment.b2 == 0 else (1 + inverse) * alignment.b2
    m = 0.0 if alignment.c == 0 else (1 + inverse) * alignment.c
    return Oracle(m, (0.0 if term == 0 else (1 + chosen) * term) + apart, chosen)


def _teacher_term(energy: float, error: float) -> float:
    if not (energy >= 0 and error >= 0 and math.isfinite(energy * error)):
        raise TrustmixError(f"G_sc^2 is {energy:g} and eps_teach {error:g}; both must be numbers, 0 or more.")
    return energy * error


def _lowest_floor(c: float, b2: float, term: float) -> float:
    """The least zeta^2 / (1 - m) over alpha: s^2, s the larger root of (1 - c) s^2 - 2 sqrt(A) s + A - b^2 = 0."""
    root = (math.sqrt(term) + math.sqrt(c * term + (1 - c) * b2)) / (1 - c)
    return root * root
