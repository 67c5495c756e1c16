"""BERT-tiny (Turc et al. 2019: two layers, 128 wide) for classification, through transformers (the extra `text`).

Inputs are token ids (N, length), padded with 0. Padding that no text of a batch needs is cut off first, so a batch
costs what its longest text costs, not what the longest text of all does.
"""

import importlib
from typing import Any

import torch
from torch import nn

from trustmix.errors import TrustmixError
from trustmix.models.networks import MODELS

TINY = {
    "vocab_size": 30522,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
}


class TextClassifier(nn.Module):
    """An encoder of transformers and a linear head on its first token's pooled output."""

    def __init__(self, encoder: Any, width: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids (N, length) to logits (N, classes)."""
        longest = int((tokens != 0).sum(1).max())
        tokens = tokens[:, : max(longest, 1)].to(torch.int64)
        pooled = self.encoder(input_ids=tokens, attention_mask=(tokens != 0).to(torch.int64)).pooler_output
        logits: torch.Tensor = self.head(self.dropout(pooled))
        return logits


@MODELS.register("bert-tiny")
def bert_tiny(shape: tuple[int, ...], classes: int) -> nn.Module:
    """BERT-tiny from scratch, for token ids of the 30,522-piece uncased vocabulary."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise TrustmixError('The model "bert-tiny" needs transformers: pip install "trustmix[text]".') from error
    if len(shape) != 1:
        raise TrustmixError(f'The model "bert-tiny" takes token ids (length,), not {shape}.')
    config = transformers.BertConfig(**TINY, max_position_embeddings=max(512, shape[0]))
    return TextClassifier(transformers.BertModel(config), TINY["hidden_size"], classes)
