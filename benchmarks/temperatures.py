"""Where a temperature makes clients as sure as they are right: at their uploads, at the teacher, or at their own use.

    python -m benchmarks.temperatures demo --rules uwa suwa trust --seeds 10 11 --at nowhere uploads teacher

Each line is a run, measured in its last round on the test set, in per cent (NLL in nats), mean over clients. `ECE` and
`NLL` are of the clients' models as they are, `fitted` with a temperature that each client fits on its held-out samples
after distilling (train.calibrate). Uploads get a temperature fitted in the same way before they are sent; the teacher
is sharpened by `--sharpen` before clients distil it.
"""

import argparse
from dataclasses import replace
from statistics import fmean

import torch

from trustmix import Client, Recipe
from trustmix.experiment.build import build_federation
from trustmix.federation import Request
from trustmix.federation.client import ModelState
from trustmix.learners import Lesson
from trustmix.learners.training import evaluate, predict
from trustmix.metrics import fit_temperature
from trustmix.wire import decode_upload, encode_teacher, encode_upload

ENGINE = ["engine.mode=sequential", "engine.precision=float32", "engine.device=cpu"]
RULES = {"trust": ["wire.labels=set"]}
"""Settings that a rule needs."""
HEAD = "| recipe | rule | seed | temperature at | accuracy | ECE | fitted | NLL | fitted | teacher's ECE |"


def temper(probabilities: torch.Tensor, temperature: float) -> torch.Tensor:
    """Probabilities (N, C) of logits that are divided by the temperature."""
    return torch.softmax(probabilities.double().clamp_min(1e-12).log() / temperature, 1).to(probabilities.dtype)


def temper_uploads(client: Client) -> None:
    """Let a client upload its predictions at the temperature of its held-out samples."""
    make_plain = client.make_upload

    def make_upload(state: ModelState, request: Request) -> bytes:
        header = client.public.header(client.id, request.round)
        upload = decode_upload(make_plain(state, request), header)
        logits = predict(state.model, client.calibration.inputs, client.hardware)
        predictions = temper(upload.predictions, fit_temperature(logits, client.calibration.labels))
        return encode_upload(replace(upload, predictions=predictions), header, client.codec)

    client.make_upload = make_upload  # type: ignore[method-assign]


def temper_teacher(client: Client, temperature: float) -> None:
    """Let a client distil a sharper teacher."""
    learn_plain = client.apply_server_message

    def apply_server_message(state: ModelState, round_: int, message: bytes) -> Lesson | None:
        teacher = temper(client.public.teacher(message, round_ - 1), temperature)
        header = client.public.header("server", round_ - 1)
        return learn_plain(state, round_, encode_teacher(teacher, header, "float32"))

    client.apply_server_message = apply_server_message  # type: ignore[method-assign]


def study(recipe: Recipe, at: str, sharpen: float) -> list[float]:
    """The figures of one run."""
    with build_federation(recipe) as experiment:
        for client in experiment.clients:
            if at == "uploads":
                temper_uploads(client)
            elif at == "teacher":
                temper_teacher(client, sharpen)
        line = experiment.federation.run(recipe.rounds).rounds[-1]
        plain = []
        for client in experiment.clients:
            assert client.test is not None
            model = client._resume(recipe.rounds + 2).model
            plain.append(evaluate(model, client.test.inputs, client.test.labels, client.hardware))
    ece, nll = fmean(one.ece for one in plain), fmean(one.nll for one in plain)
    percent = [100 * figure for figure in (line.accuracy_mean or 0, ece, line.ece_mean or 0)]
    return [*percent, nll, line.nll_mean or 0, 100 * (line.teacher_ece or 0)]


def main() -> None:
    """Run all combinations and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--rules", nargs="+", default=["uwa", "suwa", "trust"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--at", nargs="+", default=["nowhere"], choices=["nowhere", "uploads", "teacher"])
    parser.add_argument("--sharpen", type=float, default=0.7, help="the teacher's temperature")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="key=value")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    print(HEAD + "\n" + "|---" * (HEAD.count("|") - 1) + "|", flush=True)
    for rule in wanted.rules:
        for seed in wanted.seeds:
            changes = [f"rule={rule}", f"seed={seed}", *RULES.get(rule, []), "train.calibrate=true"]
            recipe = Recipe.load(wanted.recipe, [*wanted.changes, *changes, *ENGINE])
            for at in wanted.at:
                figures = study(recipe, at, wanted.sharpen)
                text = "{:.1f} | {:.1f} | {:.1f} | {:.2f} | {:.2f} | {:.1f}".format(*figures)
                print(f"| {wanted.recipe} | {rule} | {seed} | {at} | {text} |", flush=True)


if __name__ == "__main__":
    main()
