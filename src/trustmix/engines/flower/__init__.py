"""Clients on other machines, over Flower: its SuperLink keeps messages for nodes, its SuperNodes fetch them.

Nothing of the algorithm lives here: `server` is the engine that `Federation` asks, `client` answers with the same
`step` as on one machine, and both exchange the bytes of `wire`. Only the files of this folder import flwr.
"""

from collections.abc import Sequence

from trustmix.errors import TrustmixError
from trustmix.federation import ENGINES, Client, Ready


@ENGINES.register("flower")
def on_this_machine(clients: Sequence[Client], **_: object) -> Ready:
    """Refused: the clients of this engine are on other machines and come by themselves."""
    raise TrustmixError(
        f'The engine "flower" waits for clients of other machines, not for {len(clients)} of this one; '
        "use `trustmix serve` there and `trustmix join` here, or engine.name = local."
    )
