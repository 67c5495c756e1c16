"""The bytes that a run records as sent, compared with the paper's figures: 2 MB and 50 MB against 172 MB and 468 MB."""

import pytest
import torch
from torch import nn

from trustmix import Client, Federation, Public, Training
from trustmix.wire import fedavg_bytes, predictions_bytes, scaffold_bytes

CLIENTS = 2


def dummy_run(samples: int, classes: int, codec: str = "float32", rounds: int = 25) -> dict[str, int]:
    """The summary of a real run of the paper's size: all of its messages, hardly any training."""
    generator = torch.Generator().manual_seed(0)
    public = Public(torch.randn(samples, 2, generator=generator), classes)
    own, labels = torch.randn(4 * classes, 2, generator=generator), torch.arange(4 * classes) % classes

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(2, classes)

    once = Training(batch=samples, first_epochs=1)
    members = [
        Client.from_arrays(str(index), model, own, labels, public=public, codec=codec, training=once)
        for index in range(CLIENTS)
    ]
    return Federation(clients=members, public=public, codec=codec).run(rounds).summary()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("samples", "classes", "megabytes", "parameters", "scaffold", "times"),
    [(2_000, 10, 2, 4_300_000, 172, 86), (5_000, 100, 50, 11_700_000, 468, 9)],
    ids=["yahoo", "cifar-100"],
)
def test_a_run_of_the_papers_size_records_the_papers_bytes(
    samples: int, classes: int, megabytes: int, parameters: int, scaffold: int, times: int
) -> None:
    summary = dummy_run(samples, classes)
    assert summary["paper_bytes_up"] == CLIENTS * megabytes * 10**6
    assert predictions_bytes(samples, classes, rounds=25) == megabytes * 10**6
    assert scaffold_bytes(parameters, rounds=5) == scaffold * 10**6
    assert scaffold_bytes(parameters, rounds=5) * CLIENTS // summary["paper_bytes_up"] == times


def test_a_round_costs_four_bytes_a_number_and_scaffold_sends_two_models() -> None:
    assert predictions_bytes(2_000, 10) == 80_000
    assert fedavg_bytes(4_300_000) == 17_200_000
    assert scaffold_bytes(4_300_000) == 34_400_000
    assert predictions_bytes(2_000, 10, rounds=25) == 25 * 80_000
    assert fedavg_bytes(4_300_000, rounds=5) == 5 * 17_200_000
    assert scaffold_bytes(4_300_000, rounds=5) == 5 * 34_400_000


def test_bytes_really_sent_add_up_over_clients_and_rounds() -> None:
    summary = dummy_run(200, 10, "uint4", rounds=3)
    assert summary["bytes_up"] == sum(summary["client_bytes_up"].values())  # type: ignore[attr-defined]
    assert summary["bytes_down"] == sum(summary["client_bytes_down"].values())  # type: ignore[attr-defined]
    assert summary["bytes_up"] < summary["paper_bytes_up"] / 5
