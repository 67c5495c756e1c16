"""The states of a client by round, defined in `federation.state`."""

from trustmix.federation.state import DiskStore as DiskStore
from trustmix.federation.state import MemoryStore as MemoryStore
from trustmix.federation.state import State as State
from trustmix.federation.state import Store as Store
