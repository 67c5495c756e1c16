"""The engine `flower` in a recipe: its clients are on other machines, so it cannot be made of clients of this one."""

from collections.abc import Sequence

from trustmix.errors import TrustmixError
from trustmix.federation import ENGINES, Client, EngineSetup


@ENGINES.register("flower")
def refuse_local_clients(clients: Sequence[Client], **_: object) -> EngineSetup:
    """Refused: the clients of this engine are on other machines and come by themselves."""
    raise TrustmixError(
        f'The engine "flower" waits for clients of other machines, not for {len(clients)} of this one; '
        "use `trustmix serve` there and `trustmix join` here, or engine.name = local."
    )
