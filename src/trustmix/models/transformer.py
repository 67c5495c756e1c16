"""Text classifiers: any encoder of transformers (the extra `text`) with a linear head.

Inputs are token ids (N, length), padded with -1. Inputs without -1 are padded with the encoder's own padding id.
A batch is cut to its longest text, so that it costs no more than that text.
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
from trustmix.imports import require_extra
from trustmix.models.pretrained import load_weights, locate_weights
from trustmix.models.registry import MODELS

BERT_TINY = {
    "vocab_size": 30522,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
}
MAX_POSITIONS = 512
"""Longest input in tokens of BERT-tiny's pretrained weights."""


class TextClassifier(nn.Module):
    """An encoder with a linear head on its pooled output, or on the output of its first token if it has no pooler.

    Parameters
    ----------
    encoder
        A model of transformers that takes `input_ids` and `attention_mask` and returns hidden states.
    classes
        Number of classes.
    """

    def __init__(self, encoder: Any, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.pad_token_id = encoder.config.pad_token_id
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(encoder.config.hidden_size, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map token ids (N, length) to logits (N, classes)."""
        real = tokens >= 0
        if self.pad_token_id is not None and bool(real.all()):
            real = tokens != self.pad_token_id
        positions = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        longest = max(int((real * positions).max()), 1)
        real = real[:, :longest]
        ids = torch.where(real, tokens[:, :longest], self.pad_token_id or 0).to(torch.int64)
        output = self.encoder(input_ids=ids, attention_mask=real.to(torch.int64))
        pooled = getattr(output, "pooler_output", None)
        logits: torch.Tensor = self.head(self.dropout(output.last_hidden_state[:, 0] if pooled is None else pooled))
        return logits


@MODELS.register("bert-tiny")
def bert_tiny(shape: tuple[int, ...], classes: int, *, weights: str | None = None) -> nn.Module:
    """Build a classifier on BERT-tiny (Turc et al. 2019): two layers of width 128, a vocabulary of 30,522 tokens.

    Parameters
    ----------
    shape
        Shape of one input: its length in tokens.
    classes
        Number of classes.
    weights
        A file, a folder or a name on the hub with pretrained weights; None starts from scratch.

    Returns
    -------
    nn.Module
        A network that maps token ids (batch, length) to logits (batch, classes).

    Raises
    ------
    TrustmixError
        If transformers is not installed, the inputs are not token ids, the weights are of another architecture, or the
        inputs are longer than the weights allow.

    Examples
    --------
    >>> bert_tiny((16,), 4)(torch.randint(0, 30522, (2, 16))).shape
    torch.Size([2, 4])
    """
    transformers = _import_transformers("bert-tiny", shape)
    config = transformers.BertConfig(**BERT_TINY, max_position_embeddings=max(MAX_POSITIONS, shape[0]))
    encoder = transformers.BertModel(config)
    if weights is not None:
        if shape[0] > MAX_POSITIONS:
            raise TrustmixError(
                f"data.length is {shape[0]}; the weights of BERT-tiny take up to {MAX_POSITIONS} tokens."
            )
        load_weights(encoder, weights, head=("cls.", "classifier."), prefix="bert.")
    return TextClassifier(encoder, classes)


@MODELS.register("encoder")
def encoder(shape: tuple[int, ...], classes: int, *, weights: str) -> nn.Module:
    """Build a classifier on any pretrained encoder of transformers.

    Parameters
    ----------
    shape
        Shape of one input: its length in tokens.
    classes
        Number of classes.
    weights
        A folder with the encoder's config.json and weights, or a name on the hub.

    Returns
    -------
    nn.Module
        A network that maps token ids (batch, length) to logits (batch, classes).

    Raises
    ------
    TrustmixError
        If transformers is not installed, the inputs are not token ids, or the folder holds no complete encoder.
    """
    transformers = _import_transformers("encoder", shape)
    folder = locate_weights(weights)
    try:
        network, report = transformers.AutoModel.from_pretrained(
            str(folder), output_loading_info=True, trust_remote_code=False, local_files_only=True
        )
    except (OSError, ValueError, RuntimeError, KeyError, AttributeError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise TrustmixError(f"{folder} (model.weights) is not an encoder of transformers: {reason}") from error
    missing = sorted(name for name in report["missing_keys"] if "pooler" not in name)
    if missing:
        raise TrustmixError(f"{folder} holds weights of another architecture: {missing[0]} is missing.")
    return TextClassifier(network, classes)


def _import_transformers(name: str, shape: tuple[int, ...]) -> Any:
    """Import transformers for a model that takes token ids; its progress bar is switched off."""
    transformers = require_extra("transformers", f'The model "{name}"', "text")
    transformers.utils.logging.disable_progress_bar()
    if len(shape) != 1:
        raise TrustmixError(f'The model "{name}" takes token ids (length,), not {shape}.')
    return transformers


def save_for_transformers(model: TextClassifier, folder: Path, class_names: Sequence[str]) -> bool:
    """Save a model as a folder that AutoModelForSequenceClassification.from_pretrained opens, where that is possible.

    It is possible if the architecture's own classifier computes the same logits, which is tried. BERT has a linear
    layer on the pooled output, as `TextClassifier`. RoBERTa has its pooler inside the head. Other architectures have
    further layers in their heads and are not saved.

    Parameters
    ----------
    model
        The trained model.
    folder
        The folder to write; an existing one is replaced.
    class_names
        Names of the classes, for the configuration.

    Returns
    -------
    bool
        Whether the folder was written.
    """
    transformers: Any = importlib.import_module("transformers")
    config = copy.deepcopy(model.encoder.config)
    config.id2label = dict(enumerate(class_names))
    config.label2id = {name: number for number, name in enumerate(class_names)}
    try:
        classifier = transformers.AutoModelForSequenceClassification.from_config(config)
        classifier.load_state_dict(_rename_weights(model, classifier))
        same = _same_logits(model, classifier)
    except (ValueError, RuntimeError):
        return False
    if same:
        temporary = folder.with_name(folder.name + ".tmp")
        classifier.save_pretrained(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    return same


def _rename_weights(model: TextClassifier, classifier: Any) -> dict[str, torch.Tensor]:
    """Return the model's weights under the names of transformers' classifier."""
    prefix = classifier.base_model_prefix
    state = {f"{prefix}.{name}": value for name, value in model.encoder.state_dict().items()}
    pooler_in_head = "classifier.out_proj.weight" in classifier.state_dict()
    if pooler_in_head:
        state = {name.replace(f"{prefix}.pooler.", "classifier."): value for name, value in state.items()}
    head = "classifier.out_proj" if pooler_in_head else "classifier"
    return state | {f"{head}.{name}": value for name, value in model.head.state_dict().items()}


@torch.no_grad()
def _same_logits(model: TextClassifier, classifier: Any) -> bool:
    ids = torch.arange(2, 10).reshape(2, 4) % model.encoder.config.vocab_size
    ours = model.eval()(ids)
    theirs = classifier.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    return bool(torch.allclose(ours, theirs, atol=1e-5))
