"""What an audit concludes, in five words; none of them is "safe"."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Verdict"]


class Verdict(StrEnum):
    """What these attacks got out of a layer, or of the whole update."""

    RECOVERED = "RECOVERED"
    """Every input of a layer that carries the whole batch (of the model, features, tokens) came back, certified."""

    PARTLY = "PARTLY"
    """Some of them; or which token ids the batch holds."""

    LIKELY = "LIKELY"
    """Candidates that chance does not explain and nothing certifies."""

    OUT_OF_RANGE = "OUT OF RANGE"
    """No attack of ours applies, or none was carried to its end: no conclusion."""

    NOT_RECOVERED = "NOT RECOVERED"
    """What carries the batch was in range, was attacked to the end, and gave nothing: nothing is said of others."""

    @property
    def is_leak(self) -> bool:
        """Whether something of the batch was read."""
        return self in (self.RECOVERED, self.PARTLY, self.LIKELY)

    @property
    def exit_status(self) -> int:
        """0 nothing recovered, 1 something was, 3 no conclusion."""
        return {self.NOT_RECOVERED: 0, self.OUT_OF_RANGE: 3}.get(self, 1)

    @property
    def meaning(self) -> str:
        """What the word stands for, in a sentence."""
        return {
            self.RECOVERED: "Every record of the batch came back, certified, or the features or tokens of every one.",
            self.PARTLY: "Some of the batch came back: records or their features, certified, or the ids of its tokens.",
            self.LIKELY: "Records or their features came back that chance does not explain; nothing certifies them.",
            self.OUT_OF_RANGE: (
                "No attack of ours applies, none was carried to its end, or what it rests on is in doubt: there is no "
                "conclusion. This does not mean that nothing leaks."
            ),
            self.NOT_RECOVERED: (
                "A layer that carries the whole batch was in range, was attacked to the end, and gave nothing. Other "
                "attacks, or more time, may still recover something."
            ),
        }[self]
