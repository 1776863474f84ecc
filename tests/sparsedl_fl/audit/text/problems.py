"""Text models and clients that may mislead: what is certified has to be in the batch, whatever they do."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, embedding, scaled_dot_product_attention

PADDING = 0


@dataclass
class Client:
    """A model as the server has it, what was sent, an example, and the batch: sentences without masked padding."""

    model: nn.Module
    gradients: dict
    example: torch.Tensor
    sentences: list
    described: str = ""
    has_positions: bool = True
    notes: list = field(default_factory=list)

    @property
    def pairs(self):
        return {
            (place if self.has_positions else -1, token) for one in self.sentences for place, token in enumerate(one)
        }


class Encoder(nn.Module):
    """Tokens, positions of some kind, maybe a class token or a normalisation, an encoder, and a head."""

    def __init__(self, vocabulary, width, depth, kind, is_tied, masks, dropout, is_batch_first, is_norm_first):
        super().__init__()
        self.kind, self.masks, self.is_batch_first = kind, masks, is_batch_first
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=PADDING if kind == "padded" else None)
        self.places = nn.Embedding(96, width)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(dropout if kind == "dropout" else 0.0)
        nn.init.normal_(self.norm.bias, std=0.3)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout, batch_first=is_batch_first, norm_first=is_norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary if is_tied else 4)
        if is_tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        n, length = ids.shape
        x, width = self.tokens(ids), self.tokens.embedding_dim
        if self.kind == "sinusoidal":
            angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
            x = x + torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(length, width).to(x)
        elif self.kind == "roberta":
            x = x + self.places(torch.cumsum((ids != PADDING).long(), dim=1) * (ids != PADDING))
        elif self.kind != "none":
            x = x + self.places(torch.arange(length))
        if self.kind in ("normed", "dropout"):
            x = self.drop(self.norm(x))
        mask = ids == PADDING if self.masks else None
        if self.kind == "class token":
            x = torch.cat([self.first.expand(n, -1, -1), x], dim=1)
            mask = None if mask is None else torch.cat([torch.zeros(n, 1, dtype=torch.bool), mask], dim=1)
        order = (lambda part: part) if self.is_batch_first else (lambda part: part.transpose(0, 1))
        x = order(self.encoder(order(x), src_key_padding_mask=mask))
        if self.kind == "class token":
            return self.head(x[:, 0])
        weights = torch.ones_like(x[..., :1]) if mask is None else (~mask)[..., None].to(x)
        return self.head((weights * x).sum(1) / weights.sum(1).clamp(min=1))


class Causal(nn.Module):
    """Matrices stored as (inputs, outputs) and used as functions, each token from those before it; no head of rows."""

    def __init__(self, vocabulary, width, depth):
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(vocabulary, width) / 4)
        self.places = nn.Parameter(torch.randn(96, width) / 4)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        sizes = ((width, 3 * width), (width, width), (width, 2 * width), (2 * width, width))
        self.blocks = nn.ModuleList(
            nn.ParameterList(nn.Parameter(torch.randn(n, m) / n**0.5) for n, m in sizes) for _ in range(depth)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, ids):
        n, length = ids.shape
        x = embedding(ids, self.tokens) + self.places[:length]
        for number, (qkv, out, up, down) in enumerate(self.blocks):
            parts = (self.norms[2 * number](x) @ qkv).reshape(n, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
            mixed = scaled_dot_product_attention(*parts, is_causal=True)
            x = x + mixed.transpose(1, 2).reshape(n, length, -1) @ out
            x = x + nn.functional.gelu(self.norms[2 * number + 1](x) @ up) @ down
        return self.head(x[:, -1])


LIES = ("nothing", "bfloat16", "float16", "noise", "other weights", "training", "steps", "frozen", "filtered")
LIES += ("clipped", "other table", "short example", "doubled")
KINDS = ("learned", "sinusoidal", "none", "normed", "normed", "roberta", "class token", "padded", "dropout", "causal")


def client(seed):
    """Return the client of a seed."""
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kind, lie = str(rng.choice(KINDS)), str(rng.choice(LIES, p=[0.28, *[0.06] * 12]))
        width, vocabulary = int(rng.choice([32, 48, 64])), int(rng.choice([30, 300]))
        masks, is_tied = bool(rng.random() < 0.5), bool(rng.random() < 0.15)
        depth, modes = int(rng.choice([1, 2, 2])), rng.random(2) < [0.8, 0.4]
        if kind == "causal":
            model, masks = Causal(vocabulary, width, depth), False
        else:
            dropout = 0.1 if lie == "training" or kind == "dropout" else 0.0
            model = Encoder(vocabulary, width, depth, kind, is_tied, masks, dropout, *map(bool, modes))
        ids = _texts(rng, vocabulary, masks)
        model.train(lie == "training" or (kind == "dropout" and bool(rng.random() < 0.5)))
        labels = torch.from_numpy(rng.integers(4, size=len(ids)))
        sent = _sent(model, ids, labels, lie, rng)
    sentences = [[t for t in row if not (masks and t == PADDING)] for row in ids.tolist()]
    example = torch.ones((1, max(2, ids.shape[1] // 2) if lie == "short example" else ids.shape[1]), dtype=torch.long)
    described = f"{seed}: {kind}, {depth} x {width}, {vocabulary} tokens, batch {tuple(ids.shape)}, {lie}, {masks=}"
    return Client(model, sent, example, sentences, described, kind != "none")


def _texts(rng, vocabulary, masks):
    """Return a batch, some of whose sentences are alike, of few tokens, or shorter."""
    b, length = int(rng.choice([1, 1, 1, 2, 3])), int(rng.integers(3, 14))
    few = int(rng.choice([2, 3, 8, vocabulary]))
    ids = torch.from_numpy(rng.integers(1, min(few, vocabulary), size=(b, length)))
    how = str(rng.choice(["any", "any", "same", "one other", "common ends", "shorter", "beginning"]))
    if b > 1 and how == "same":
        ids[1] = ids[0]
    if b > 1 and how == "one other":
        ids[1] = ids[0]
        ids[1, int(rng.integers(length))] = int(rng.integers(1, vocabulary))
    if how == "common ends":
        ids[:, 0], ids[:, -1] = 1, min(2, vocabulary - 1)
    if how == "shorter":
        for row in ids:
            row[int(rng.integers(2, length + 1)) :] = PADDING
    if b > 1 and how == "beginning":
        ids[1] = ids[0]
        ids[1, int(rng.integers(2, length + 1)) :] = PADDING
    return ids


def _sent(model, ids, labels, lie, rng):
    parameters = dict(model.named_parameters())
    if lie == "doubled":
        ids, labels = torch.cat([ids, ids[:1]]), torch.cat([labels, labels[:1]])

    def gradient(batch):
        parts = torch.autograd.grad(cross_entropy(model(batch), labels), list(parameters.values()), allow_unused=True)
        return {name: part for name, part in zip(parameters, parts, strict=True) if part is not None}

    sent = gradient(ids)
    if lie == "steps":
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        for _ in range(int(rng.integers(1, 4))):
            step = gradient(ids)
            with torch.no_grad():
                for name, part in step.items():
                    parameters[name] -= 0.05 * part
            sent = {name: sent[name] + part for name, part in gradient(ids).items()}
        model.load_state_dict(state)
    if lie in ("bfloat16", "float16"):
        sent = {name: part.to(getattr(torch, lie)).float() for name, part in sent.items()}
    if lie == "noise":
        size = float(10 ** rng.uniform(-7, 0))
        sent = {
            name: part + size * part.std() * torch.randn(part.shape) for name, part in sent.items() if part.numel() > 1
        }
    if lie == "other weights":
        with torch.no_grad():
            size = float(10 ** rng.uniform(-7, 0))
            for part in model.parameters():
                part += size * part.square().mean().sqrt() * torch.randn(part.shape)
    if lie == "frozen":
        sent = {name: part for name, part in sent.items() if "tokens" not in name}
    if lie == "filtered":
        sent = {name: torch.where(part.abs() > part.abs().quantile(0.3), part, 0.0) for name, part in sent.items()}
    if lie == "clipped":
        sent = {name: part.clamp(*part.quantile(torch.tensor([0.05, 0.95])).tolist()) for name, part in sent.items()}
    if lie == "other table" and "tokens.weight" in sent:
        sent["tokens.weight"] = gradient(ids.flip(1)).get("tokens.weight").roll(1, 0)
    return sent


def judged(one, found):
    """Return what is certified and not in the batch."""
    known = {(place, token) for place, tokens in found.by_position.items() for token in tokens}
    true = {tuple(row) for row in one.sentences if row}
    sentences = {sentence.tokens for sentence in found.sentences}
    wrong = [f"{pair} is in no sentence" for pair in known - one.pairs]
    wrong += [f"{sentence} is no sentence" for sentence in sentences - true]
    if found.is_complete:
        wrong += [f"complete, without {sentence}" for sentence in true - sentences]
    return wrong
