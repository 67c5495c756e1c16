"""Faults on purpose: clients that crash or answer late, drawn from the seed, to see what a federation makes of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trustmix.federation.engine import Engine
from trustmix.federation.messages import Failure, Reply, Request
from trustmix.seeds import numpy_generator


@dataclass(frozen=True)
class FaultInjectionEngine:
    """Another engine, in which a client crashes before its step, or answers too late after it, by chance."""

    engine: Engine
    crash: float = 0.0
    """Probability, each client and round, that the step does not happen."""
    late: float = 0.0
    """Probability that the step happens but the answer is lost."""
    seed: int = 0

    @property
    def clients(self) -> Sequence[str]:
        """The clients of the engine underneath."""
        return self.engine.clients

    def close(self) -> None:
        """Close the engine underneath."""
        self.engine.close()

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        """The exchange with its faults; the closing one is spared, so that every final model is seen."""
        luck = {
            c: numpy_generator(self.seed, "faults", c, r.round).random() if r.train else 1.0
            for c, r in requests.items()
        }
        for client in [c for c in requests if luck[c] < self.crash]:
            yield Failure(client, "crashed before its step (fault on purpose)")
        for answer in self.engine.exchange({c: r for c, r in requests.items() if luck[c] >= self.crash}):
            lost = isinstance(answer, Reply) and luck[answer.client] < self.crash + self.late
            yield Failure(answer.client, "answered late (fault on purpose)") if lost else answer
