"""The privacy audit of a finished run: membership and label inference attacks against its uploads."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trustmix.attacks.label_inference import LabelInference, infer_labels
from trustmix.attacks.membership_inference import AttackResult, infer_membership
from trustmix.errors import TrustmixError
from trustmix.experiment.build import build_federation
from trustmix.experiment.run_directory import RunDirectory
from trustmix.settings.config import AttackConfig
from trustmix.settings.own_code import load_run_recipe
from trustmix.settings.recipe import Recipe


@dataclass(frozen=True)
class Audit:
    """The result of the audit of one run.

    Parameters
    ----------
    folder : Path
        The run directory.
    epsilon : float or None
        The privacy budget of the recipe; None for a run without differential privacy.
    accuracy : float or None
        The mean accuracy of the clients in the last round, a fraction.
    findings : sequence of AttackResult
        One result per attack on members.
    labels : LabelInference
        The results of the attacks on the clients' labels.
    """

    folder: Path
    epsilon: float | None
    accuracy: float | None
    findings: Sequence[AttackResult]
    labels: LabelInference


def audit(folder: Path, *, shadows: int = 0, allow_code: bool = False) -> Audit:
    """Run membership and label inference attacks against a finished run.

    Parameters
    ----------
    folder : Path
        The run directory. The data of the recipe must be on this machine.
    shadows : int
        The number of shadow models of each client for the likelihood ratio attack (LiRA), an even number; 0 leaves it
        out. Each is trained as a client is, for up to five rounds.
    allow_code : bool
        Whether to import what the recipe names as code even if the directory is not below the current one.

    Returns
    -------
    Audit
        The success of every attack.

    Raises
    ------
    TrustmixError
        If the directory holds no finished run, a run in which clients do not distil from each other's predictions, or
        a recipe with code that is not allowed.

    Examples
    --------
    >>> import tempfile, trustmix as tm
    >>> small = {"data": {"name": "digits"}, "clients": 5, "rounds": 1, "split": {"samples_per_client": 40}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = tm.run(small, out=folder)
    ...     found = audit(Path(folder))
    >>> found.epsilon is None and all(0 <= result.auc <= 1 for result in found.findings)
    True
    """
    record = RunDirectory(folder)
    if not record.finished:
        raise TrustmixError(
            f"{folder} holds no finished run; `trustmix run` makes one, with --resume if it was stopped."
        )
    recipe = load_run_recipe(folder, allow_code=allow_code)
    method = recipe.method
    if method.client != "distillation" or method.pooled_data:
        raise TrustmixError(f"{folder} is a run of {recipe.rule}; the audit is of rules that mix predictions.")
    rounds = record.rounds()
    without_faults = ["engine.name=local", "engine.mode=sequential", "faults.crash=0", "faults.late=0"]
    # Byzantine clients train as the others do and change only their uploads; the audit is of the training.
    honest = recipe.model_copy(update={"attack": AttackConfig()})
    with build_federation(Recipe.load(honest, without_faults), record) as experiment:
        labels = infer_labels(experiment.clients, len(rounds))
        findings = infer_membership(experiment.clients, len(rounds), method.aggregator, shadows=shadows)
    return Audit(folder, recipe.privacy.epsilon, rounds[-1].accuracy_mean, findings, labels)
