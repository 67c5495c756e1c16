"""What a model computes just before its logits: the inputs of its last layer."""

import torch
from torch import nn

from trustmix.errors import TrustmixError


class WithFeatures(nn.Module):
    """A model that returns its logits (N, C) and its features (N, D) side by side, (N, C + D).

    Features are the inputs of the last module called `head`, else of the last `nn.Linear`.

    >>> network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> WithFeatures(network)(torch.rand(5, 4)).shape
    torch.Size([5, 5])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.classes = 0
        """C, known after the first forward pass."""
        named = [module for name, module in model.named_modules() if name.split(".")[-1] == "head"]
        linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
        if not named and not linear:
            raise TrustmixError(
                "This model has no features: it has neither a linear layer nor a module called head "
                '(density.kind = "features").'
            )
        self.last = (named or linear)[-1]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits and features."""
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        hook = self.last.register_forward_hook(lambda _, given, made: seen.append((given[0], made)))
        try:
            logits: torch.Tensor = self.model(inputs)
        finally:
            hook.remove()
        features, made = seen[-1] if seen else (logits, None)
        if made is None or made.shape != logits.shape or features.ndim != 2:
            raise TrustmixError(
                "This model has no features: its last linear layer does not turn (N, D) into its logits "
                '(density.kind = "features"); call the one that does `head`.'
            )
        self.classes = logits.shape[1]
        return torch.cat([logits.to(torch.float32), features.to(torch.float32)], 1)
