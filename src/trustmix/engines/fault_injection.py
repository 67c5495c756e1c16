"""Fault injection for simulations: clients that crash or whose replies come too late, drawn from the seed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trustmix.federation.engine import Engine
from trustmix.federation.messages import Failure, Reply, Request
from trustmix.seeds import numpy_generator


@dataclass(frozen=True)
class FaultInjectionEngine:
    """An engine around another engine that turns some of the replies into failures.

    Faults are independent over clients and rounds. The closing request has no faults, so that every final model is
    evaluated.

    Parameters
    ----------
    engine
        The engine that runs the clients.
    crash
        The probability that a client crashes before its step.
    late
        The probability that a client does its step and its reply is lost.
    seed
        The seed of the faults.

    Examples
    --------
    >>> from trustmix.federation import Request
    >>> class OneClient:
    ...     clients = ["north"]
    ...     def exchange(self, requests):
    ...         return iter([Reply(client, request.round) for client, request in requests.items()])
    >>> engine = FaultInjectionEngine(OneClient(), crash=1.0)
    >>> list(engine.exchange({"north": Request(1)}))[0].reason
    'crashed before its step (fault on purpose)'
    """

    engine: Engine
    crash: float = 0.0
    late: float = 0.0
    seed: int = 0

    @property
    def clients(self) -> Sequence[str]:
        """The client ids of the wrapped engine."""
        return self.engine.clients

    def close(self) -> None:
        """Close the wrapped engine."""
        self.engine.close()

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        """Run one exchange with faults.

        Parameters
        ----------
        requests
            The request of each client, by client id.

        Yields
        ------
        Reply or Failure
            One answer for each request; the failures of crashed clients come first.
        """
        draws = {
            c: numpy_generator(self.seed, "faults", c, r.round).random() if r.train else 1.0
            for c, r in requests.items()
        }
        for client in [c for c in requests if draws[c] < self.crash]:
            yield Failure(client, "crashed before its step (fault on purpose)")
        for answer in self.engine.exchange({c: r for c, r in requests.items() if draws[c] >= self.crash}):
            lost = isinstance(answer, Reply) and draws[answer.client] < self.crash + self.late
            yield Failure(answer.client, "answered late (fault on purpose)") if lost else answer
