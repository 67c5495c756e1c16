"""Text classifiers: any encoder of transformers (the extra `text`) with a linear head; BERT-tiny by name.

Inputs are token ids (N, length), padded with -1, or, where there is no -1, with the encoder's own padding. Padding that
no text of a batch needs is cut off first: a batch costs what its longest text costs, not what the longest of all does.
"""

import copy
import importlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from trustmix.errors import TrustmixError
from trustmix.models.networks import MODELS
from trustmix.models.pretrained import load_weights, locate_weights

TINY = {
    "vocab_size": 30522,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
}
LONGEST = 512
"""Positions that its weights know."""


class TextClassifier(nn.Module):
    """An encoder, and a linear head on its pooled output, or on its first token's where it has no pooler."""

    def __init__(self, encoder: Any, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.padding = encoder.config.pad_token_id
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(encoder.config.hidden_size, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids (N, length) to logits (N, classes)."""
        real = tokens >= 0
        if self.padding is not None and bool(real.all()):
            real = tokens != self.padding
        places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        longest = max(int((real * places).max()), 1)
        real = real[:, :longest]
        ids = torch.where(real, tokens[:, :longest], self.padding or 0).to(torch.int64)
        output = self.encoder(input_ids=ids, attention_mask=real.to(torch.int64))
        pooled = getattr(output, "pooler_output", None)
        logits: torch.Tensor = self.head(self.dropout(output.last_hidden_state[:, 0] if pooled is None else pooled))
        return logits


@MODELS.register("bert-tiny")
def bert_tiny(shape: tuple[int, ...], classes: int, *, weights: str | None = None) -> nn.Module:
    """BERT-tiny (Turc et al. 2019: two layers, 128 wide; 30,522 pieces), from scratch or from `weights`."""
    transformers = _transformers("bert-tiny", shape)
    config = transformers.BertConfig(**TINY, max_position_embeddings=max(LONGEST, shape[0]))
    encoder = transformers.BertModel(config)
    if weights is not None:
        if shape[0] > LONGEST:
            raise TrustmixError(f"data.length is {shape[0]}; the weights of BERT-tiny take up to {LONGEST} tokens.")
        load_weights(encoder, weights, head=("cls.", "classifier."), prefix="bert.")
    return TextClassifier(encoder, classes)


@MODELS.register("encoder")
def encoder(shape: tuple[int, ...], classes: int, *, weights: str) -> nn.Module:
    """Any encoder that transformers knows: `weights` is a folder with its config.json, or a name on the hub."""
    transformers = _transformers("encoder", shape)
    folder = locate_weights(weights)
    try:
        found, report = transformers.AutoModel.from_pretrained(
            str(folder), output_loading_info=True, trust_remote_code=False
        )
    except (OSError, ValueError, RuntimeError, KeyError, AttributeError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise TrustmixError(f"{folder} (model.weights) is not an encoder of transformers: {reason}") from error
    missing = sorted(name for name in report["missing_keys"] if "pooler" not in name)
    if missing:
        raise TrustmixError(f"{folder} holds weights of another architecture: {missing[0]} is missing.")
    return TextClassifier(found, classes)


def _transformers(name: str, shape: tuple[int, ...]) -> Any:
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise TrustmixError(f'The model "{name}" needs transformers: pip install "trustmix[text]".') from error
    transformers.utils.logging.disable_progress_bar()
    if len(shape) != 1:
        raise TrustmixError(f'The model "{name}" takes token ids (length,), not {shape}.')
    return transformers


def save_for_transformers(model: TextClassifier, folder: Path, names: Sequence[str]) -> bool:
    """Save as a folder that AutoModelForSequenceClassification.from_pretrained opens; says whether that was possible.

    It is where the architecture's own classifier computes the same logits, which is tried: BERT's is a linear layer on
    the pooled output, as here; RoBERTa's has its pooler inside the head; others have layers that ours has not.
    """
    transformers: Any = importlib.import_module("transformers")
    config = copy.deepcopy(model.encoder.config)
    config.id2label, config.label2id = dict(enumerate(names)), {name: number for number, name in enumerate(names)}
    try:
        whole = transformers.AutoModelForSequenceClassification.from_config(config)
        whole.load_state_dict(_renamed(model, whole))
        same = _same_logits(model, whole)
    except (ValueError, RuntimeError):
        return False
    if same:
        temporary = folder.with_name(folder.name + ".tmp")
        whole.save_pretrained(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    return same


def _renamed(model: TextClassifier, whole: Any) -> dict[str, torch.Tensor]:
    """The weights by the names of transformers' classifier."""
    state = {f"{whole.base_model_prefix}.{name}": value for name, value in model.encoder.state_dict().items()}
    inside = "classifier.out_proj.weight" in whole.state_dict()
    pooler = f"{whole.base_model_prefix}.pooler."
    if inside:
        state = {name.replace(pooler, "classifier."): value for name, value in state.items()}
    head = "classifier.out_proj" if inside else "classifier"
    return state | {f"{head}.{name}": value for name, value in model.head.state_dict().items()}


@torch.no_grad()
def _same_logits(model: TextClassifier, whole: Any) -> bool:
    ids = torch.arange(2, 10).reshape(2, 4) % model.encoder.config.vocab_size
    ours = model.eval()(ids)
    theirs = whole.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    return bool(torch.allclose(ours, theirs, atol=1e-5))
