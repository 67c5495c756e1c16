"""Texts as hashed words: numbers for a linear model or an MLP, without a tokenizer, a network or a vocabulary."""

from collections.abc import Sequence

import torch

WORDS = "words"
"""The tokenizer that needs no files: words and pairs of words, hashed into `WORD_FEATURES` numbers."""
WORD_FEATURES = 4096
"""Numbers that a text becomes by hashing its words."""


def hash_words(texts: Sequence[str]) -> torch.Tensor:
    """Count words and pairs of words at places given by their hash, signed.

    Parameters
    ----------
    texts
        The texts (n).

    Returns
    -------
    torch.Tensor
        (n, `WORD_FEATURES`) of float32; the same on every machine.

    Examples
    --------
    >>> one, same, other = hash_words(["the goal", "The goal!", "a song"])
    >>> torch.equal(one, same), torch.equal(one, other)
    (True, False)
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    counts = HashingVectorizer(n_features=WORD_FEATURES, ngram_range=(1, 2), norm=None).transform(texts)
    return torch.from_numpy(counts.toarray()).float()
