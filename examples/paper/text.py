"""Texts of a batch with their tokens in order, from the gradient of an encoder."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from paper.experiments import Experiment
from paper.methods import Budget
from paper.models.sentences import PADDING, minilm, minilm_vocabulary, sentence_classifier
from sparsedl_fl.audit.text import recover_text

__all__ = ["TEXT_ROWS", "TextBatch"]

MOST_WORDS = 2000
"""Words of the vocabulary of a model with random weights; others are spelt."""

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


@dataclass(frozen=True)
class TextBatch(Experiment):
    """Sentences of English, of a length between half the longest and that, and what an encoder's client sends of them.

    Attributes
    ----------
    longest : int
        Tokens of the longest sentence, with those that begin and end it.
    network : str
        "encoder", with random weights and two blocks, or "minilm".
    number_format : str
        Of the gradient as it is sent.
    is_frozen : bool
        Whether the embedding's gradient is not sent, so that the whole vocabulary is tried.
    """

    metrics: ClassVar[tuple[str, ...]] = ("tokens", "sentences", "wrong", "replayed", "distance", "nearest_wrong")
    longest: int = 16
    network: str = "encoder"
    number_format: str = "float32"
    is_frozen: bool = False

    def run(self, method: str, seed: int, data: str | None, budget: Budget) -> dict[str, Any]:
        """Recover the texts of a seed; exact is every sentence, none else, proven to be all, and the client replayed.

        ``tokens`` and ``sentences`` are the shares of these that are certified; ``wrong`` counts certified tokens at
        positions where the batch has them not, and sentences that it lacks.
        """
        vocabulary = minilm_vocabulary(data) if self.network == "minilm" else _own_vocabulary()
        model = (
            minilm(data, random_state=seed)
            if self.network == "minilm"
            else sentence_classifier(len(vocabulary), width=self.width, random_state=seed)
        )
        ids, true = self._drawn(vocabulary, seed)
        labels = torch.from_numpy(np.random.default_rng(seed).integers(4, size=len(ids)))
        names = dict(model.named_parameters())
        sent = torch.autograd.grad(cross_entropy(model(ids), labels), list(names.values()))
        wire = getattr(torch, self.number_format)
        gradients = {name: part.to(wire).float() for name, part in zip(names, sent, strict=True)}
        if self.is_frozen:
            gradients.pop("words.weight")
        start = time.perf_counter()
        found = recover_text(model, gradients, torch.ones((1, self.longest), dtype=torch.long))
        seconds = time.perf_counter() - start
        pairs = {(place, token) for sentence in true for place, token in enumerate(sentence)}
        known = {(place, token) for place, tokens in found.by_position.items() for token in tokens}
        sentences = {one.tokens for one in found.sentences}
        is_replayed = found.replay is not None and found.replay.is_match
        return {
            "exact": found.is_complete and sentences == true and is_replayed,
            "tokens": len(known & pairs) / len(pairs),
            "sentences": len(sentences & true) / len(true),
            "wrong": len(known - pairs) + len(sentences - true),
            "replayed": float(is_replayed),
            "distance": float(f"{max((one.distance for one in found.sentences), default=np.nan):.2g}"),
            "nearest_wrong": float(f"{found.pairs.nearest_wrong:.2g}") if found.pairs is not None else np.nan,
            "n_pairs": len(pairs),
            "certified": len(sentences),
            "starts": 0,
            "seconds": round(seconds, 3),
            "status": str(found),
        }

    def _drawn(self, vocabulary: dict[str, int], seed: int) -> tuple[torch.Tensor, set[tuple[int, ...]]]:
        """Return padded sentences as the model takes them, and each without padding."""
        rng, words = np.random.default_rng(seed), _words()
        begin, end = vocabulary["[CLS]"], vocabulary["[SEP]"]
        ids = torch.full((self.batch_size, self.longest), PADDING)
        sentences = set()
        for row in ids:
            length = int(rng.integers(self.longest // 2, self.longest + 1))
            first = int(rng.integers(len(words) - self.longest))
            text = [token for word in words[first : first + length] for token in _pieces(word, vocabulary)]
            sentence = [begin, *text[: length - 2], end]
            row[: len(sentence)] = torch.tensor(sentence)
            sentences.add(tuple(sentence))
        return ids, sentences


@cache
def _words() -> list[str]:
    """Return the words of the descriptions of data sets that scikit-learn ships, in their order."""
    folder = files("sklearn.datasets.descr")
    texts = [part.read_text(encoding="utf-8") for part in sorted(folder.iterdir(), key=lambda one: one.name)
             if part.name.endswith(".rst")]  # fmt: skip
    return re.findall(r"[a-z0-9]+|[^\sa-z0-9]", " ".join(texts).lower())


@cache
def _own_vocabulary() -> dict[str, int]:
    """Return the most frequent words with ids, and all characters to spell the others with."""
    counts = Counter(_words())
    characters = sorted(set("".join(counts)))
    tokens = [*SPECIAL, *(f"##{one}" for one in characters), *characters]
    tokens += [word for word, _ in counts.most_common() if word not in tokens][: MOST_WORDS - len(tokens)]
    return {token: number for number, token in enumerate(tokens)}


def _pieces(word: str, vocabulary: dict[str, int]) -> list[int]:
    """Return a word's tokens, the longest first, as WordPiece has them."""
    found, start = [], 0
    while start < len(word):
        ends = range(len(word), start, -1)
        pieces = ((f"##{word[start:end]}" if start else word[start:end], end) for end in ends)
        piece, start = next(((piece, end) for piece, end in pieces if piece in vocabulary), ("[UNK]", len(word)))
        found.append(vocabulary[piece])
    return found


TEXT_ROWS: dict[str, Experiment] = {
    f"{network}-{b}x{longest}-{wire}": TextBatch(b, 128 if network == "encoder" else 384, longest, network, wire)
    for network, b, longest, wire in (
        ("minilm", 1, 64, "float32"),
        ("minilm", 1, 64, "bfloat16"),
        ("minilm", 2, 32, "float32"),
        ("minilm", 2, 32, "bfloat16"),
        ("minilm", 4, 16, "float32"),
        ("encoder", 1, 64, "float32"),
        ("encoder", 1, 64, "bfloat16"),
        ("encoder", 2, 32, "float32"),
        ("encoder", 4, 16, "float32"),
        ("encoder", 8, 32, "float32"),
    )
} | {"minilm-1x16-frozen": TextBatch(1, 384, 16, "minilm", is_frozen=True)}
"""Of the table of texts: model, sentences and tokens of the longest, number format; embedding that is not sent."""
