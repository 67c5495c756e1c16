"""The server's state between rounds, defined in `federation.state`."""

from trustmix.federation.state import SERVER_FORMAT as SERVER_FORMAT
from trustmix.federation.state import Checkpoint as Checkpoint
from trustmix.federation.state import ServerState as ServerState
