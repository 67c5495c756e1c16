"""Clients of different architectures: they only exchange predictions, so their models need nothing in common."""

import trustmix as tm

MODELS = [{"name": "mlp", "hidden": [32]}, {"name": "mlp", "hidden": [128]}, {"name": "mlp", "hidden": [128, 64]}]
recipe = {
    "clients": 6,
    "rounds": 3,
    "data": {"name": "digits"},
    "split": {"classes_per_client": 3, "samples_per_client": 120},
    "public": {"samples": 300},
    "model": MODELS,  # dealt to the clients in turn; {"name": "cnn"} or {"source": "my_model:build"} would do as well
    "train": {"lr": 3e-3, "first_epochs": 15, "public_epochs": 5},
    "engine": {"mode": "sequential"},
}

accuracies = [tm.run({**recipe, "rule": rule}).rounds[-1].accuracy for rule in ("alone", "suwa")]

print(f"{'model':40} {'alone':>8} {'suwa':>8}")
for index, model in enumerate(MODELS):
    own = [str(client) for client in range(6) if client % len(MODELS) == index]
    means = [sum(found[client] for client in own) / len(own) for found in accuracies]
    print(f"{model!s:40} " + " ".join(f"{100 * mean:6.1f} %" for mean in means))
