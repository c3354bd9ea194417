"""The forward pass of all-MiniLM-L6-v2 in numpy.

Six layers of BERT (Devlin et al. 2019; Wang et al. 2020 for the distilled weights): 12 heads of 32,
exact GELU, layer norm after each residual. One text at a time, so there is no padding that could
change a vector, and no torch to install or import.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

States = NDArray[np.float32]

TOKENS_MAX = 256  # the model was trained on no longer texts
_LAYERS, _HEADS, _HEAD_WIDTH, _VARIANCE_FLOOR = 6, 12, 32, 1e-12


class MiniLM:
    """The model with its tokenizer; call it with a text.

    Parameters
    ----------
    tokenizer
        A ``tokenizers.Tokenizer``; it adds the model's own first and last token.
    weights
        Arrays by their names in the Hugging Face ``BertModel``.
    """

    def __init__(self, tokenizer: Any, weights: Mapping[str, States]) -> None:
        self._tokenizer = tokenizer
        self._weights = weights

    def __call__(self, text: str) -> States:
        """Return the last hidden states (tokens, 384) of a text, cut at 256 tokens."""
        x = self._embed(self._tokenizer.encode(text).ids)
        for index in range(_LAYERS):
            layer = f"encoder.layer.{index}"
            mixed = self._linear(self._attend(x, layer), f"{layer}.attention.output.dense")
            x = self._normed(x + mixed, f"{layer}.attention.output.LayerNorm")
            inner = self._linear(x, f"{layer}.intermediate.dense")
            inner = inner * (1 + erf(inner / np.float32(np.sqrt(2)))) / 2
            inner = self._linear(inner, f"{layer}.output.dense")
            x = self._normed(x + inner, f"{layer}.output.LayerNorm")
        return np.asarray(x, dtype=np.float32)

    def _embed(self, ids: Sequence[int]) -> States:
        words = self._weights["embeddings.word_embeddings.weight"][np.asarray(ids)]
        positions = self._weights["embeddings.position_embeddings.weight"][: len(ids)]
        segment = self._weights["embeddings.token_type_embeddings.weight"][0]
        return self._normed(words + positions + segment, "embeddings.LayerNorm")

    def _attend(self, x: States, layer: str) -> States:
        query, key, value = (
            self._linear(x, f"{layer}.attention.self.{part}")
            .reshape(len(x), _HEADS, _HEAD_WIDTH)
            .swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(1, 2) / np.float32(np.sqrt(_HEAD_WIDTH))
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        mixed: States = (weights @ value).swapaxes(0, 1).reshape(x.shape)
        return mixed

    def _linear(self, x: States, name: str) -> States:
        mapped: States = x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return mapped

    def _normed(self, x: States, name: str) -> States:
        centred = x - x.mean(axis=1, keepdims=True)
        variance = np.mean(centred * centred, axis=1, keepdims=True)
        unit = centred / np.sqrt(variance + np.float32(_VARIANCE_FLOOR))
        scaled: States = unit * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return scaled


@functools.cache
def load_minilm(tokenizer_file: Path, weights_file: Path) -> MiniLM:
    """Return the model from its two files, read once a process (about 0.3 s, 90 MB)."""
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=TOKENS_MAX)
    return MiniLM(tokenizer, load_file(weights_file))
