"""Clients of different architectures: they only exchange predictions, so their models need nothing in common."""

import trustmix as tm

MODELS = [{"name": "mlp"}, {"name": "mlp", "hidden": [128]}, {"name": "cnn", "width": 8}]
recipe = {
    "clients": 9,
    "rounds": 4,
    "data": {"name": "digits"},
    "split": {"classes_per_client": 3, "samples_per_client": 120},
    "public": {"samples": 400},
    "model": MODELS,  # dealt to the clients in turn
    "train": {"lr": 2e-3, "first_epochs": 15, "public_epochs": 5},
    "engine": {"mode": "sequential"},
}

accuracies = {}
for rule in ("alone", "avg", "suwa"):
    last = tm.run({**recipe, "rule": rule}).rounds[-1]
    accuracies[rule] = last.accuracy

print(f"{'model':40} {'alone':>8} {'avg':>8} {'suwa':>8}")
for index, model in enumerate(MODELS):
    own = [str(client) for client in range(9) if client % len(MODELS) == index]
    means = [sum(found[client] for client in own) / len(own) for found in accuracies.values()]
    print(f"{model!s:40} " + " ".join(f"{100 * mean:6.1f} %" for mean in means))
