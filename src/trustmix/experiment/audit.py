"""An audit of a finished run: membership inference against it, on purpose."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trustmix.attacks.membership_inference import AttackResult, infer_membership
from trustmix.errors import TrustmixError
from trustmix.experiment.build import build_federation
from trustmix.experiment.config import AttackConfig
from trustmix.experiment.recipe import Recipe
from trustmix.experiment.run_directory import RunDirectory


@dataclass(frozen=True)
class Audit:
    """What was found out about one run."""

    folder: Path
    epsilon: float | None
    """Promised by the recipe."""
    accuracy: float | None
    """The final one."""
    findings: Sequence[AttackResult]


def audit(folder: Path) -> Audit:
    """Attack a finished run."""
    record = RunDirectory(folder)
    if not record.finished:
        raise TrustmixError(
            f"{folder} holds no finished run; `trustmix run` makes one, with --resume if it was stopped."
        )
    recipe = Recipe.load(folder / "recipe.toml")
    method = recipe.method
    if method.client != "distillation" or method.pooled_data:
        raise TrustmixError(f"{folder} is a run of {recipe.rule}; the audit is of rules that mix predictions.")
    rounds = record.rounds()
    quiet = ["engine.name=local", "engine.mode=sequential", "faults.crash=0", "faults.late=0"]
    honest = recipe.model_copy(update={"attack": AttackConfig()})  # Byzantine clients train honestly too
    with build_federation(Recipe.load(honest, quiet), record) as experiment:
        findings = infer_membership(experiment.clients, len(rounds), method.aggregator)
    return Audit(folder, recipe.privacy.epsilon, rounds[-1].accuracy_mean, findings)
