"""Fault injection for simulations: clients that crash, are slow or whose replies come too late, drawn from the seed."""

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
        The probability that a client does its step and its reply comes after the round.
    slow
        The part of the clients that need two rounds for each step: they are asked in odd rounds, their replies come in
        even ones.
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
    slow: float = 0.0
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
        slow = self.slow_clients()
        draws = {
            c: numpy_generator(self.seed, "faults", c, r.round).random() if r.train else 1.0
            for c, r in requests.items()
        }
        crashed = {c for c in requests if draws[c] < self.crash}
        busy = {c for c, r in requests.items() if c in slow and r.train and r.round % 2 == 0} - crashed
        for client in requests:
            if client in crashed:
                yield Failure(client, "crashed before its step (fault on purpose)")
            if client in busy:
                yield Failure(client, "busy with the round before (fault on purpose)", sent=False, kind="late")
        for answer in self.engine.exchange({c: r for c, r in requests.items() if c not in crashed | busy}):
            late = draws[answer.client] < self.crash + self.late
            late = late or (answer.client in slow and requests[answer.client].train)
            if isinstance(answer, Reply) and late:
                yield Failure(answer.client, "answered late (fault on purpose)", kind="late", late=answer)
            else:
                yield answer

    def slow_clients(self) -> set[str]:
        """The clients that need two rounds for each step.

        Returns
        -------
        set of str
            The same in every round.
        """
        order = numpy_generator(self.seed, "slow").permutation(len(self.clients))
        return {self.clients[index] for index in order[: round(self.slow * len(self.clients))]}
