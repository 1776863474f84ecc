"""What an audit concludes, in four words; none of them is "safe"."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

__all__ = ["Verdict"]


class Verdict(StrEnum):
    """What these attacks got out of a layer, or of the whole update."""

    RECOVERED = "RECOVERED"
    """Every input of a layer (of the model, features, tokens) came back, certified."""

    PARTLY = "PARTLY"
    """Some inputs, or labels only."""

    LIKELY = "LIKELY"
    """Candidates that chance does not explain, and nothing certifies."""

    NOT_RECOVERED = "NOT RECOVERED"
    """In range of the attacks, which ended without anything certified: this says nothing of other attacks."""

    OUT_OF_RANGE = "OUT OF RANGE"
    """No attack of ours applies: no conclusion."""

    @classmethod
    def worst(cls, verdicts: Iterable[Verdict]) -> Verdict:
        """Return the one that gives most away."""
        order = list(cls)
        return min(verdicts, key=order.index, default=cls.OUT_OF_RANGE)

    @property
    def exit_status(self) -> int:
        """0 nothing recovered, 1 something was, 3 no conclusion."""
        return {self.NOT_RECOVERED: 0, self.OUT_OF_RANGE: 3}.get(self, 1)

    @property
    def meaning(self) -> str:
        """What the word stands for, in a sentence."""
        return {
            self.RECOVERED: "Every input of at least one layer came back, certified.",
            self.PARTLY: "Some inputs came back, or labels only.",
            self.LIKELY: "Candidates came back that chance does not explain, and nothing certifies.",
            self.NOT_RECOVERED: (
                "The attacks apply, and ended without anything certified. Other attacks, or more time, may still "
                "recover something."
            ),
            self.OUT_OF_RANGE: "None of these attacks applies: there is no conclusion.",
        }[self]
