"""What was found of the texts of a batch: sentences, tokens at their positions, or why nothing can be said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparsedl_fl.audit.text.pairs import Pairs
from sparsedl_fl.certify.labels import NO_LABEL
from sparsedl_fl.propagate.replay import Replay

__all__ = ["Sentence", "Text"]


@dataclass(frozen=True)
class Sentence:
    """A text of the batch.

    Attributes
    ----------
    tokens : tuple of int
        Its token ids in their order.
    start : int
        Position of the first of them.
    p_value : float
        Chance that a wrong sentence is taken for one of the batch.
    distance : float
        Largest distance of its vectors from the row space, relative to them.
    proof : str
        Layer behind an attention that was held against the whole sentence; empty where there was none, and it follows
        from one token a position and the replay.
    label : int
        Its label, `sparsedl_fl.certify.labels.NO_LABEL` where it is not known.
    """

    tokens: tuple[int, ...]
    start: int = 0
    p_value: float = 1.0
    distance: float = 0.0
    proof: str = ""
    label: int = NO_LABEL

    def in_words(self, vocabulary: Mapping[int, str]) -> str:
        """Return its tokens in words, as far as a vocabulary has them; continuations (##) are joined.

        Examples
        --------
        >>> Sentence((4, 7, 5, 9)).in_words({4: "re", 7: "##cover", 5: "it"})
        'recover it 9'
        """
        text = " ".join(vocabulary.get(token, str(token)) for token in self.tokens)
        return text.replace(" ##", "")


@dataclass(frozen=True, eq=False)
class Text:
    """What the gradients of the first layers that are fed tokens say of the texts of a batch.

    Attributes
    ----------
    reason : str
        Why nothing can be said, or what is open; empty where nothing is.
    layer : str
        Name of the first of these layers; empty for none.
    limit : int
        Number of different tokens and positions up to which they show a batch.
    n_shown : int
        Number of these that the gradients show, or the least number.
    pairs : Pairs or None
        Tokens at their positions that lie in the row space; None where none were tried.
    has_order : bool
        Whether the vectors depend on the position.
    sentences : tuple of Sentence
        Texts that were found whole.
    is_complete : bool
        Whether these are all texts of the batch; equal ones count once.
    replay : Replay or None
        The client run again with them.
    replay_reason : str
        Why it was not.
    """

    reason: str = ""
    layer: str = ""
    limit: int = 0
    n_shown: int = 0
    pairs: Pairs | None = field(default=None, repr=False)
    has_order: bool = True
    sentences: tuple[Sentence, ...] = ()
    is_complete: bool = False
    replay: Replay | None = None
    replay_reason: str = ""

    @property
    def n_certified(self) -> int:
        """Number of tokens, each at its position, that are certain."""
        return 0 if self.pairs is None else self.pairs.n_certified

    @property
    def by_position(self) -> dict[int, list[int]]:
        """Certain tokens by their position; -1 where the model adds no positions."""
        if self.pairs is None:
            return {}
        places = sorted(set(self.pairs.positions[self.pairs.is_single].tolist()))
        return {place: self.pairs.at(place) for place in places}

    @property
    def count(self) -> str:
        """How many of how many were recovered, in words."""
        if not self.n_certified:
            return ""
        what = "tokens at their positions" if self.has_order else "tokens without their order"
        total = f"{'' if self.is_complete else 'at least '}{max(self.n_shown, self.n_certified)}"
        return f"{self._sentences_in_words()}{self.n_certified} of {total} {what}"

    def _sentences_in_words(self) -> str:
        if not self.sentences:
            return ""
        n = len(self.sentences)
        whole = f"all {n} sentences" if n > 1 else "the sentence"
        return f"{whole if self.is_complete else f'{n} sentences'} with tokens in order; "

    def __str__(self) -> str:
        if not self.n_certified:
            return f"OUT OF RANGE: {self.reason}"
        proof = f"; {self.replay}" if self.replay is not None else ""
        return f"{self.count}{f'; {self.reason}' if self.reason else ''}{proof}"

    def to_dict(self, show_samples: bool = False) -> dict[str, Any]:
        """Return it as plain data, without token ids unless samples are shown."""
        by_position = {str(place): tokens for place, tokens in self.by_position.items()}
        rows = [
            {
                "length": len(one.tokens),
                "tokens": list(one.tokens) if show_samples else [],
                "start": one.start,
                "label": one.label if show_samples else NO_LABEL,
                "p_value": one.p_value,
                "distance": one.distance,
                "proof": one.proof,
            }
            for one in self.sentences
        ]
        return {
            "summary": str(self),
            "reason": self.reason,
            "layer": self.layer,
            "limit": self.limit,
            "n_shown": self.n_shown,
            "n_certified": self.n_certified,
            "has_order": self.has_order,
            "n_sentences": len(rows),
            "is_complete": self.is_complete,
            "sentences": rows,
            "by_position": by_position if show_samples else {},
        }
