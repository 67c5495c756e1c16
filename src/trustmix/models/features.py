"""Features of a sample: the inputs of a model's last layer."""

import torch
from torch import nn

from trustmix.errors import TrustmixError
from trustmix.models.classifier import ClassifierModel


class WithFeatures(nn.Module):
    """A wrapper that returns a model's logits and its features side by side.

    Features are the inputs of the last module called `head`. In a model without such a module they are the inputs of
    the last `nn.Linear`. Those of a classifier without layers are the values of its inputs.

    Parameters
    ----------
    model
        A network that returns logits (N, C).

    Raises
    ------
    TrustmixError
        If the model has neither a module called `head` nor a linear layer.

    Attributes
    ----------
    classes : int
        C, the number of logits; 0 before the first forward pass.

    Examples
    --------
    >>> network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> WithFeatures(network)(torch.rand(5, 4)).shape
    torch.Size([5, 5])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.classes = 0
        if isinstance(model, ClassifierModel):
            return
        heads = [module for name, module in model.named_modules() if name.split(".")[-1] == "head"]
        linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
        if not heads and not linear:
            raise TrustmixError(
                "This model has no features: it has neither a linear layer nor a module called head "
                '(density.kind = "features").'
            )
        self.last = (heads or linear)[-1]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs (N, ...) to logits and features (N, C + D), as float32.

        Raises
        ------
        TrustmixError
            If the last layer does not map features (N, D) to the logits.
        """
        if isinstance(self.model, ClassifierModel):
            self.classes = self.model.classes
            return torch.cat([self.model(inputs), self.model.features(inputs)], 1)
        calls: list[tuple[torch.Tensor, torch.Tensor]] = []
        hook = self.last.register_forward_hook(lambda _, inputs, output: calls.append((inputs[0], output)))
        try:
            logits: torch.Tensor = self.model(inputs)
        finally:
            hook.remove()
        features, output = calls[-1] if calls else (logits, None)
        if output is None or output.shape != logits.shape or features.ndim != 2:
            raise TrustmixError(
                "This model has no features: its last linear layer does not turn (N, D) into its logits "
                '(density.kind = "features"); call the one that does `head`.'
            )
        self.classes = logits.shape[1]
        return torch.cat([logits.to(torch.float32), features.to(torch.float32)], 1)
