"""Text classifiers ignore padding, and BERT-tiny has the size of the published network."""

import subprocess
import sys

import pytest
import torch

from trustmix import TrustmixError
from trustmix.models import bert_tiny


def test_bert_tiny_has_the_size_of_the_paper_and_ignores_padding() -> None:
    torch.manual_seed(0)
    model = bert_tiny((32,), 10).eval()
    encoder = sum(p.numel() for name, p in model.named_parameters() if name.startswith("encoder."))
    assert encoder == 4_385_920
    tokens = torch.zeros(3, 32, dtype=torch.int32)
    tokens[0, :5], tokens[1, :9], tokens[2, :3] = 7, 11, 13
    together = model(tokens)
    alone = torch.cat([model(row[None, : int((row != 0).sum())]) for row in tokens])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_padding_that_no_text_of_a_batch_needs_costs_nothing() -> None:
    model = bert_tiny((512,), 10).eval()
    lengths: list[int] = []
    model.encoder.register_forward_pre_hook(  # type: ignore[union-attr]
        lambda _, __, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    tokens = torch.zeros(4, 512, dtype=torch.int32)
    tokens[:, :17] = 5
    model(tokens)
    assert lengths == [17]


def test_inputs_that_are_no_token_ids_are_refused() -> None:
    with pytest.raises(TrustmixError, match="takes token ids"):
        bert_tiny((3, 32, 32), 10)


def test_without_transformers_the_error_names_what_to_install() -> None:
    code = "import sys; sys.modules['transformers'] = None\nfrom trustmix.models import bert_tiny\nbert_tiny((8,), 2)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'needs transformers: pip install "trustmix[text]"' in result.stderr
