"""The modules that are no plain sequence: residual blocks, transformers, recurrent and adapted networks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.hostile.data import N_CLASSES, TEXT_LENGTH, VOCABULARY

__all__ = [
    "Adapted",
    "BertLike",
    "FrozenBackbone",
    "Recurrent",
    "TextClassifier",
    "TiedLanguageModel",
    "VisionTransformer",
]


def encoder(width: int, dropout: float = 0.0) -> nn.TransformerEncoder:
    """Return one layer of a transformer with two heads."""
    layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


class TextClassifier(nn.Module):
    """Embedding and positions, a transformer, the mean over the tokens, a head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, width)
        self.pos = nn.Parameter(0.02 * torch.randn(1, TEXT_LENGTH, width))
        self.enc = encoder(width)
        self.head = nn.Linear(width, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of four classes."""
        return self.head(self.enc(self.emb(ids) + self.pos).mean(1))


class BertLike(nn.Module):
    """Three embeddings with a normalisation, a transformer with dropout, a pooler at the first token, a head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.position_embeddings = nn.Embedding(64, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.encoder = encoder(width, dropout=0.1)
        self.pooler = nn.Linear(width, width)
        self.classifier = nn.Linear(width, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of four classes."""
        places = torch.arange(ids.shape[1]).expand_as(ids)
        x = self.word_embeddings(ids) + self.position_embeddings(places) + self.token_type_embeddings(0 * ids)
        x = self.encoder(self.norm(x), src_key_padding_mask=ids == 0)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class Recurrent(nn.Module):
    """Embedding, an LSTM, and a head at its last state."""

    def __init__(self, width: int = 32, n_classes: int = 20) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, 24)
        self.lstm = nn.LSTM(24, width, batch_first=True)
        self.head = nn.Linear(width, n_classes)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of the classes."""
        return self.head(self.lstm(self.emb(ids))[0][:, -1])


class TiedLanguageModel(nn.Module):
    """The next token from the mean of those before, by the weights of the embedding itself."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, width)
        nn.init.normal_(self.emb.weight, std=0.1)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of the token behind each, shape (n, length, vocabulary)."""
        x = self.emb(ids)
        x = x.cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None]
        x = x + self.down(functional.gelu(self.up(x)))
        return functional.linear(x, self.emb.weight)


class FrozenBackbone(nn.Module):
    """A residual network whose convolutions are not trained, with a head of two layers that is."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.one, self.two = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(64, width), nn.Linear(width, N_CLASSES)
        for module in (self.stem, self.one, self.two):
            module.requires_grad_(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of the classes."""
        x = functional.relu(self.stem(images))
        x = functional.relu(x + self.two(functional.relu(self.one(x))))
        x = functional.adaptive_avg_pool2d(x, 2).flatten(1)
        return self.fc2(functional.relu(self.fc1(x)))


class Adapter(nn.Module):
    """A linear layer that is not trained, plus a product of two thin ones that is (LoRA)."""

    def __init__(self, n_inputs: int, n_outputs: int, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(n_inputs, n_outputs).requires_grad_(False)
        self.lora_a = nn.Linear(n_inputs, rank, bias=False)
        self.lora_b = nn.Linear(rank, n_outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of both."""
        return self.base(x) + self.lora_b(self.lora_a(x))


class Adapted(nn.Module):
    """A perceptron of adapted layers, of which nothing but the adapters is sent."""

    def __init__(self, n_inputs: int, width: int = 64) -> None:
        super().__init__()
        self.fc1, self.fc2 = Adapter(n_inputs, width), Adapter(width, N_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of the classes."""
        return self.fc2(functional.relu(self.fc1(x)))


class VisionTransformer(nn.Module):
    """Patches of 4 x 4 pixels through a linear layer, a token for the class, a transformer, a head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patch = nn.Linear(48, width)
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.pos = nn.Parameter(0.02 * torch.randn(1, 17, width))
        self.enc = encoder(width)
        self.head = nn.Linear(width, N_CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of the classes."""
        x = self.patch(functional.unfold(images, 4, stride=4).transpose(1, 2))
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.enc(x)[:, 0])
