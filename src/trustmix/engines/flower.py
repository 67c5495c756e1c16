"""The engine `flower` of a recipe: its clients run on other machines, so it cannot be built from local clients."""

from collections.abc import Sequence

from trustmix.errors import TrustmixError
from trustmix.federation import ENGINES, Client, EngineSetup


@ENGINES.register("flower")
def refuse_local_clients(clients: Sequence[Client], **_: object) -> EngineSetup:
    """Raise an error: the clients of this engine join from other machines.

    Parameters
    ----------
    clients
        The clients on this machine.

    Raises
    ------
    TrustmixError
        Always.
    """
    raise TrustmixError(
        f'The engine "flower" waits for clients of other machines, not for {len(clients)} of this one; '
        "use `trustmix serve` there and `trustmix join` here, or engine.name = local."
    )
