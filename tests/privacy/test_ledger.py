"""A privacy ledger: it only grows, it outlives runs and states, and a round asked for again is answered once."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

import trustmix as tm
from trustmix.errors import StorageError, TrustmixError
from trustmix.federation import DiskStore, Request
from trustmix.learners import Training
from trustmix.privacy import Mechanism, PrivacyBudget, PrivacyLedger, Release, compute_epsilon, compute_total_epsilon

ROUND = Release(noise_multiplier=4.0, sample_rate=0.5, releases=10)


def make_client(
    folder: Path, run: str = "first", *, epsilon: float = 2.0, rounds: int = 2, mechanism: Mechanism = "training"
) -> tm.Client:
    draws = torch.Generator().manual_seed(1)
    public = tm.Public(torch.rand(20, 4, generator=draws), classes=2)
    inputs, labels = torch.rand(40, 4, generator=draws), torch.arange(40) % 2
    budget = PrivacyBudget(epsilon, rounds, mechanism=mechanism)
    return tm.Client.from_arrays(
        "north",
        partial(torch.nn.Linear, 4, 2),
        inputs,
        labels,
        public=public,
        privacy=budget,
        store=DiskStore(folder / run / "states"),
        ledger=PrivacyLedger(epsilon, budget.delta, folder / "ledger", run),
        training=Training(first_epochs=2),
    )


def test_different_releases_together_spend_what_the_accountant_finds_for_equal_ones() -> None:
    halves = [ROUND, ROUND]
    assert compute_total_epsilon(halves, 1e-5) == pytest.approx(compute_epsilon(4.0, 20, 0.5, 1e-5))
    other = Release(noise_multiplier=2.0, sample_rate=1.0, releases=1)
    alone = [compute_total_epsilon([release], 1e-5) for release in (ROUND, other)]
    assert max(alone) < compute_total_epsilon([ROUND, other], 1e-5) < sum(alone)
    assert compute_total_epsilon([], 1e-5) == 0


def test_no_request_makes_a_ledger_that_cannot_be_read_any_more(tmp_path: Path) -> None:
    client = make_client(tmp_path)
    for number in (10**16, 0, -1):
        with pytest.raises(TrustmixError):
            client.step(Request(number))
    assert make_client(tmp_path, "other").step(Request(1)).payload is not None


@pytest.mark.parametrize("mechanism", ["training", "uploads"])
def test_a_round_asked_for_two_hundred_times_is_answered_with_the_same_bytes(
    tmp_path: Path, mechanism: Mechanism
) -> None:
    client = make_client(tmp_path, mechanism=mechanism)
    first = client.step(Request(1))
    again = [client.step(Request(1)) for _ in range(200)]
    restarted = make_client(tmp_path, mechanism=mechanism).step(Request(1))
    assert {reply.payload for reply in [*again, restarted]} == {first.payload}
    assert {reply.epsilon for reply in [*again, restarted]} == {first.epsilon}
    assert client.step(Request(2)).epsilon == pytest.approx(2.0, rel=0.01)


def test_a_client_without_a_folder_for_its_ledger_keeps_one_in_memory() -> None:
    draws = torch.Generator().manual_seed(1)
    public = tm.Public(torch.rand(20, 4, generator=draws), classes=2)
    model, labels = partial(torch.nn.Linear, 4, 2), torch.arange(40) % 2
    client = tm.Client.from_arrays(
        "north", model, torch.rand(40, 4), labels, public=public, privacy=PrivacyBudget(2.0, 3)
    )
    assert len({client.step(Request(1)).payload for _ in range(5)}) == 1


def test_a_state_that_is_rolled_back_or_lost_does_not_reset_what_was_spent(tmp_path: Path) -> None:
    first = make_client(tmp_path)
    answers = [first.step(Request(1)), first.step(Request(2))]
    shutil.rmtree(tmp_path / "first" / "states")
    second = make_client(tmp_path)
    assert [second.step(Request(number)).payload for number in (1, 2)] == [answer.payload for answer in answers]
    with pytest.raises(TrustmixError, match="epsilon 2 is promised, 2 is spent"):
        second.step(Request(3))


def test_a_new_run_goes_on_with_what_is_left_of_the_promise(tmp_path: Path) -> None:
    other = make_client(tmp_path, "second", rounds=20)
    spent = [make_client(tmp_path).step(Request(1)).epsilon or 0, other.step(Request(1)).epsilon or 0]
    assert 1 < spent[0] < spent[1] <= 2
    later = (other.step(Request(number)) for number in range(2, 21))
    with pytest.raises(TrustmixError, match="epsilon 2 is promised"):
        list(later)
    larger = make_client(tmp_path, "third", epsilon=4.0)
    assert 2 < (larger.step(Request(1)).epsilon or 0) <= 4


def test_rounds_out_of_order_are_refused_and_cost_nothing(tmp_path: Path) -> None:
    client = make_client(tmp_path, rounds=6)
    for number in (1, 2, 4):
        client.step(Request(number))
    before = PrivacyLedger(2.0, 1e-5, tmp_path / "ledger").epsilon_spent()
    for number in (1, 3):
        with pytest.raises(TrustmixError, match=f"round {number} was asked for after round 4"):
            client.step(Request(number))
    assert PrivacyLedger(2.0, 1e-5, tmp_path / "ledger").epsilon_spent() == before


def test_a_run_that_would_spend_too_much_is_refused_before_it_begins(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    PrivacyLedger(2.0, 1e-5, folder, "first").record(1, [ROUND], b"answer", {})
    needed = compute_total_epsilon([ROUND, ROUND], 1e-5)
    with pytest.raises(TrustmixError, match=r"would bring it to"):
        PrivacyLedger(0.99 * needed, 1e-5, folder, "second").validate_plan([ROUND])
    PrivacyLedger(1.01 * needed, 1e-5, folder, "second").validate_plan([ROUND])
    PrivacyLedger(0.99 * needed, 1e-5, folder, "first").validate_plan([ROUND])  # the same run, resumed


def test_a_ledger_that_is_damaged_or_missing_never_counts_as_empty(tmp_path: Path) -> None:
    client = make_client(tmp_path, rounds=3)
    client.step(Request(1))
    file = tmp_path / "ledger" / "ledger.json"
    for text in ("", "{}", '{"entries": [{"run": "first"}]}', '{"entries": [1]}', '{"entries": {}}'):
        file.write_text(text)
        with pytest.raises(StorageError, match=r"ledger\.json"):
            client.step(Request(2))
    file.unlink()
    with pytest.raises(TrustmixError, match="counts 0 rounds of the run, and the state 1"):
        make_client(tmp_path, rounds=3).step(Request(2))


@pytest.mark.parametrize("field", ["noise_multiplier", "sample_rate", "releases", "round"])
@pytest.mark.parametrize("value", ["NaN", "-1", "true", "null", '"2"', "1e999"])
def test_an_entry_of_a_ledger_that_is_no_release_is_refused(tmp_path: Path, field: str, value: str) -> None:
    entry = {"run": '"first"', "round": "1", "noise_multiplier": "4.0", "sample_rate": "0.5", "releases": "10"}
    text = ", ".join(f'"{name}": {shown}' for name, shown in (entry | {field: value}).items())
    (tmp_path / "ledger.json").write_text('{"entries": [{' + text + "}]}")
    with pytest.raises(StorageError, match=r"ledger\.json"):
        PrivacyLedger(2.0, 1e-5, tmp_path).epsilon_spent()


def test_the_noise_of_a_simulation_comes_from_its_seed_and_needs_no_ledger() -> None:
    public = tm.Public(torch.rand(20, 4), classes=2)
    model, labels = partial(torch.nn.Linear, 4, 2), torch.arange(40) % 2
    budget = PrivacyBudget(2.0, 3, simulated=True)
    client = tm.Client.from_arrays("north", model, torch.rand(40, 4), labels, public=public, privacy=budget)
    assert client.ledger is None


def test_a_density_ratio_that_is_released_is_on_record_once(tmp_path: Path) -> None:
    client = make_client(tmp_path, epsilon=8.0)
    budget = PrivacyBudget(8.0, 2, ratio=0.3)
    client.privacy, client.density = budget, "ratio"
    assert client.ledger is not None
    planned = budget.planned_releases(len(client.private), client.training)
    client.ledger.validate_plan(planned)
    spent = [client.step(Request(number)).epsilon for number in (1, 2)]
    assert spent[-1] == pytest.approx(compute_total_epsilon(planned, budget.delta))
    assert [entry.release == budget.ratio_release for entry in client.ledger.entries()].count(True) == 1
