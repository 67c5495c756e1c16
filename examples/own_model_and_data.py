"""Your own tensors and your own torch module: a federation in Python, without a recipe."""

import torch
from torch import nn

import trustmix as tm

CLASSES, WIDTH = 6, 12


class Network(nn.Module):
    """Any module will do that takes a batch of inputs and returns logits (n, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, CLASSES))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of the inputs."""
        logits: torch.Tensor = self.layers(inputs)
        return logits


torch.manual_seed(0)
centres = 2 * torch.randn(CLASSES, WIDTH)
labels = torch.arange(1800) % CLASSES
inputs = centres[labels] + 1.2 * torch.randn(1800, WIDTH)

public = tm.Public(inputs[:300], classes=CLASSES)  # everybody sees these inputs; nobody sees their labels
test = tm.Labelled(inputs[300:700], labels[300:700])
private_inputs, private_labels = inputs[700:], labels[700:]

clients = []
for number in range(6):
    own = torch.isin(private_labels, torch.tensor([number, (number + 1) % CLASSES]))  # two classes each
    data = private_inputs[own], private_labels[own]
    clients.append(tm.Client.from_arrays(str(number), Network, *data, public=public, test=test))

federation = tm.Federation(clients=clients, public=public, rule="suwa", public_labels=labels[:300])
for line in federation.run(rounds=8).rounds:
    print(
        f"round {line.round}: clients {100 * (line.accuracy_mean or 0):.1f} %, own classes "
        f"{100 * (line.local_accuracy_mean or 0):.1f} %, teacher {100 * (line.teacher_accuracy or 0):.1f} %"
    )
