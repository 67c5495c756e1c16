"""Methods by the name a recipe gives in `rule`: what kind of client and of server each needs, and what it refuses.

Methods that are rules of the ordinary server are in `RULES`; the others share weights and bring a server of their own.
"""

from collections.abc import Mapping

from trustmix.errors import TrustmixError
from trustmix.federation import CENTRALIZED, LOCAL_ONLY, Client
from trustmix.methods.fedavg import FedAvg, WeightClient
from trustmix.methods.feddf import FedDF
from trustmix.methods.scaffold import Scaffold, ScaffoldClient, check_optimizer
from trustmix.methods.selective_fd import SelectiveClient

SERVERS: Mapping[str, type[FedAvg]] = {server.name: server for server in (FedAvg, FedDF, Scaffold)}
"""Methods that share weights."""

CLIENTS: Mapping[str, type[Client]] = {
    "fedavg": WeightClient,
    "feddf": WeightClient,
    "scaffold": ScaffoldClient,
    "selective-fd": SelectiveClient,
}
"""Methods whose clients do something else than train, predict and score."""


ROBUST = ("median", "geometric-median", "cronus", "expguard")
"""Rules that are a defence themselves, and are run without the guard."""


def check_method(name: str, *, architectures: int, optimizer: str, form: str, down: str, student: bool) -> None:
    """Refuse settings that a method cannot do.

    >>> check_method("fedavg", architectures=2, optimizer="adam", form="scores", down="float32", student=False)
    Traceback (most recent call last):
    ...
    trustmix.errors.TrustmixError: fedavg averages weights, which takes one architecture; [[model]] lists 2 models.
    """
    if name in SERVERS and architectures > 1:
        raise TrustmixError(
            f"{name} averages weights, which takes one architecture; [[model]] lists {architectures} models."
        )
    if name == Scaffold.name:
        check_optimizer(optimizer)
    if name == "selective-fd" and form != "scores":
        raise TrustmixError(f"selective-fd sends votes with its predictions; set wire.form = scores, not {form}.")
    if name == "selective-fd" and down == "argmax":
        raise TrustmixError("selective-fd drops samples by uniform labels, which wire.down = argmax cannot carry.")
    if student and name in (LOCAL_ONLY, CENTRALIZED, *SERVERS):
        raise TrustmixError(f"a student learns from a teacher, and {name} makes none; leave [student] out.")
