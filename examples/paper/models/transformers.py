"""Small transformers to audit: one for pictures, one for text. Their linear layers see every token as an input."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sparsedl.arrays import draw_seed

__all__ = ["text_transformer", "vision_transformer"]

EMBEDDING_SCALE = 0.02
"""Standard deviation of embeddings, as in ViT and GPT-2."""


class Block(nn.Module):
    """Attention and a perceptron, each behind a layer normalisation and with a path around it."""

    def __init__(self, width: int, n_heads: int, is_causal: bool) -> None:
        super().__init__()
        self.n_heads, self.is_causal = n_heads, is_causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.activation, self.fc2 = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return tokens of shape (n, n_tokens, width) for tokens of the same."""
        n, n_tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).reshape(n, n_tokens, 3, self.n_heads, width // self.n_heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + self.projection(mixed.transpose(1, 2).reshape(n, n_tokens, width))
        return x + self.fc2(self.activation(self.fc1(self.norm2(x))))


class VisionTransformer(nn.Module):
    """``head(norm(blocks([class token, patches] + positions))[0])``."""

    def __init__(self, side: int, patch: int, width: int, n_heads: int, depth: int, n_classes: int) -> None:
        super().__init__()
        n_tokens = 1 + (side // patch) ** 2
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(EMBEDDING_SCALE * torch.randn(1, 1, width))
        self.positions = nn.Parameter(EMBEDDING_SCALE * torch.randn(1, n_tokens, width))
        self.blocks = nn.Sequential(*(Block(width, n_heads, is_causal=False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, n_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of images of shape (n, 3, side, side)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(images), -1, -1), patches], dim=1) + self.positions
        return self.head(self.norm(self.blocks(tokens))[:, 0])


class TextTransformer(nn.Module):
    """``head(norm(blocks(embedding(x) + positions)))``, each token from those before it."""

    def __init__(self, n_tokens: int, vocabulary: int, width: int, n_heads: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(EMBEDDING_SCALE * torch.randn(1, n_tokens, width))
        self.blocks = nn.Sequential(*(Block(width, n_heads, is_causal=True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        nn.init.normal_(self.embedding.weight, std=EMBEDDING_SCALE)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token at each place, of shape (n, vocabulary, n_tokens)."""
        tokens = self.embedding(text) + self.positions[:, : text.shape[1]]
        return self.head(self.norm(self.blocks(tokens))).transpose(1, 2)


def vision_transformer(
    *,
    side: int = 32,
    patch: int = 4,
    width: int = 192,
    n_heads: int = 3,
    depth: int = 4,
    n_classes: int = 10,
    random_state: Any = None,
) -> VisionTransformer:
    """Build a vision transformer with random weights, without touching torch's global seed.

    Parameters
    ----------
    side, patch : int, default=32 and 4
        Pixels along a picture and along a patch: 65 tokens with the defaults.
    width, n_heads, depth, n_classes : int, default=192, 3, 4 and 10
        Length of a token, heads of the attention, blocks, outputs.
    random_state : int, RandomState or None, default=None
        Seed.

    References
    ----------
    Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw_seed(random_state))
        return VisionTransformer(side, patch, width, n_heads, depth, n_classes)


def text_transformer(
    *,
    n_tokens: int = 64,
    vocabulary: int = 128,
    width: int = 192,
    n_heads: int = 3,
    depth: int = 4,
    random_state: Any = None,
) -> TextTransformer:
    """Build a transformer that predicts the next token, with random weights.

    Parameters
    ----------
    n_tokens, vocabulary : int, default=64 and 128
        Longest text, and how many tokens there are: the characters of ASCII.
    width, n_heads, depth : int, default=192, 3 and 4
        Length of a token, heads of the attention, blocks.
    random_state : int, RandomState or None, default=None
        Seed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw_seed(random_state))
        return TextTransformer(n_tokens, vocabulary, width, n_heads, depth)
