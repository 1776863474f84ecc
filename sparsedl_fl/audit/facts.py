"""What an audit found, and what follows from it: verdict, reason, samples, labels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsedl_fl.audit.findings import Fed, LayerAudit, LikelySample, Sample, Verdict
from sparsedl_fl.audit.last_layer import LabelSigns
from sparsedl_fl.audit.membership import Membership
from sparsedl_fl.audit.record_weights import WeightGroup, weight_groups
from sparsedl_fl.audit.text import Sentence, Text
from sparsedl_fl.certify.candidates import SearchEnd
from sparsedl_fl.certify.labels import NO_LABEL
from sparsedl_fl.propagate.replay import Replay

__all__ = ["AuditFacts"]


@dataclass(frozen=True, eq=False)
class AuditFacts(Mapping):
    """Everything an audit found; also a mapping of layer names to `LayerAudit`.

    Attributes
    ----------
    layers : tuple of LayerAudit
        Linear layers first, in the order in which they run, then everything else.
    replay : Replay or None
        The client run again with what was recovered; None where that could not be done.
    replay_reason : str
        Why it could not.
    input_shape : tuple of int
        Shape of one of the model's inputs, where it is known.
    context : dict
        What the report says of how the audit was run: see `sparsedl_fl.audit.context.describe_run`.
    label_signs : LabelSigns
        What the gradient of the last layer's bias says of the labels.
    notes : tuple of str
        What looks wrong with the update or the arguments, a sentence each.
    given_batch_size : int or None
        Number of records of the update, where the caller gave it.
    was_interrupted : bool
        Whether Ctrl-C ended the audit before its end.
    targets : ndarray of shape (n_samples, n_outputs) or None
        Numbers, or several labels at a time, that the samples were trained for, in their order; where the loss is
        given.
    membership : Membership or None
        Which given records were trained on, where that was tested; it changes no verdict.
    """

    layers: tuple[LayerAudit, ...]
    replay: Replay | None = None
    replay_reason: str = ""
    input_shape: tuple[int, ...] = ()
    context: Mapping[str, Any] = field(default_factory=dict)
    label_signs: LabelSigns = field(default_factory=LabelSigns)
    notes: tuple[str, ...] = ()
    given_batch_size: int | None = None
    was_interrupted: bool = False
    targets: np.ndarray | None = None
    membership: Membership | None = None

    def __getitem__(self, name: str) -> LayerAudit:
        return {layer.name: layer for layer in reversed(self.layers)}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(layer.name for layer in self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def verdict(self) -> Verdict:
        """What these attacks recovered from the update: its worst leak, or whether its layers resisted."""
        certified = [layer for layer in self.layers if layer.n_certified]
        if any(layer.verdict is Verdict.RECOVERED and self._carries_all(layer) for layer in certified):
            return Verdict.RECOVERED
        text = self.text
        if text is not None and text.n_certified:
            return Verdict.RECOVERED if text.is_complete else Verdict.PARTLY
        if certified:
            return Verdict.PARTLY
        if self.likely:
            return Verdict.LIKELY
        if self.tokens:
            return Verdict.PARTLY
        is_open = not self.is_complete or any(layer.n_unproven for layer in self.layers)
        return Verdict.OUT_OF_RANGE if is_open or not self._resisting else Verdict.NOT_RECOVERED

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended the audit before its end."""
        return self.was_interrupted or any(layer.end is SearchEnd.INTERRUPTED for layer in self.layers)

    @property
    def is_complete(self) -> bool:
        """Whether every search ran to its end: no interrupt, and no budget or cap of the caller ended one early."""
        how_ended = [layer.end for layer in self.layers if not layer.n_certified or not layer.batch.is_whole]
        return not self.is_interrupted and SearchEnd.CUT not in how_ended

    @property
    def best(self) -> LayerAudit | None:
        """The layer that leaks most: of those with the worst verdict, one that is fed the model's input first."""
        return min(
            (layer for layer in self.layers if layer.n_certified or layer.likely_candidates),
            key=lambda layer: (
                not (layer.verdict is Verdict.RECOVERED and self._carries_all(layer)),
                not layer.n_certified,
                layer.what is not Fed.INPUTS,
                -layer.n_certified,
            ),
            default=None,
        )

    @property
    def batch_size(self) -> int:
        """Number of samples: as many as a layer shows, else at least that, or the number given; zero for unknown."""
        known = self._size_shown
        return known or max([layer.n_samples for layer in self.layers] + [self.given_batch_size or 0], default=0)

    @property
    def is_batch_size_known(self) -> bool:
        """Whether there are no more, as far as the gradient shows (equal inputs count once), or as the caller said."""
        return bool(self._size_shown) or self.batch_size == self.given_batch_size

    @property
    def _size_shown(self) -> int:
        shown = max((layer.n_samples for layer in self.layers if layer.is_size_known), default=0)
        return shown if shown >= max((layer.at_least for layer in self.layers if layer.n_samples), default=0) else 0

    @property
    def reason(self) -> str:
        """Why the verdict is what it is, in a sentence that names every kind of leak found."""
        parts = self._samples_in_words(), self._text_in_words(), self._likely_in_words(), self._tokens_in_words()
        found = [text for text in parts if text]
        if found:
            return "; ".join(found)
        if self.verdict is Verdict.NOT_RECOVERED:
            layer = self._resisting[0]
            return f"0 of {layer.n_inputs} {layer.what} recovered at layer '{layer.name}': {layer.reason}"
        reasons = list(dict.fromkeys(text for text in map(_why_open, self.layers) if text))
        start = "interrupted" if self.is_interrupted else "no conclusion"
        more = f" (and {len(reasons) - 3} more)" if len(reasons) > 3 else ""
        return f"{start}: " + "; ".join([*self.notes, *reasons[:3]]) + more

    @property
    def labels(self) -> np.ndarray:
        """Known labels, of the layer at which most are known; in the order of its inputs."""
        best = max(self.layers, key=lambda layer: layer.n_labels)
        return np.zeros(0, dtype=int) if best.n_labels == 0 else best.batch.labels[best.batch.labels != NO_LABEL]

    @property
    def labels_present(self) -> dict[int, int | None]:
        """Labels of the batch, with how often each occurs; None where only its presence shows.

        They depend on the loss, as `label_signs` says, and change no verdict: every classifier shows some.
        """
        whole = [layer for layer in self.layers if layer.n_labels and layer.n_labels == layer.n_inputs]
        known: dict[int, int | None] = {int(label): None for label in np.unique(self.labels)}
        if any(self._carries_all(layer) and layer.is_size_known for layer in whole) and self._is_counted_once:
            known = {label: int(np.sum(self.labels == label)) for label in known}
        return dict(sorted({**self.label_signs.present, **known}.items()))

    @property
    def tokens(self) -> list[int]:
        """Sorted ids of the batch's tokens, which the gradient of an embedding shows; empty where there is none."""
        return sorted({token for layer in self.layers for token in layer.tokens})

    @property
    def text(self) -> Text | None:
        """Tokens at their positions and sentences of the batch; None where no layer shows any."""
        return next((layer.text for layer in self.layers if layer.text is not None), None)

    @property
    def sentences(self) -> tuple[Sentence, ...]:
        """Texts of the batch that were recovered whole, their tokens in order."""
        return () if self.text is None else self.text.sentences

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Certified samples of the layer that leaks most."""
        return () if self.best is None else self.best.samples

    @property
    def likely(self) -> tuple[LikelySample, ...]:
        """Candidates that chance does not explain and nothing certifies, at the layer that has most of them."""
        # Where a whole batch was recovered, candidates of layers as large repeat it; of larger ones they mix local
        # steps.
        whole = [layer.n_inputs for layer in self.layers if layer.verdict is Verdict.RECOVERED and layer.rows == 1]
        most = min(whole, default=math.inf)
        return max((layer.likely for layer in self.layers if layer.n_inputs < most), key=len, default=())

    def _carries_all(self, layer: LayerAudit) -> bool:
        """Return whether a layer shows as many samples as any; one that is fed tokens is taken to."""
        return layer.n_samples == 0 or layer.n_samples >= self.batch_size

    @property
    def weight_groups(self) -> tuple[WeightGroup, ...]:
        """The whole batch by the records' weights in the update; empty where the client was not run again with it.

        In a sum of clients, records of different weights belong to different clients. (A record that is there twice
        counts double, and a loss that weights its classes gives each a weight of its own.)
        """
        if self.replay is None or not self.replay.is_match:
            return ()
        return weight_groups(self.replay.weights, self.replay.weight_errors)

    @property
    def _is_counted_once(self) -> bool:
        """Whether every input of the best layer is one sample, and none several equal ones."""
        if self.replay is not None and self.replay.is_match:
            weights = self.replay.weights
            return bool(np.ptp(weights) <= 0.1 * np.mean(weights))
        return self.given_batch_size is not None and self.given_batch_size == len(self.labels)

    @property
    def _resisting(self) -> list[LayerAudit]:
        """Layers that carry the whole batch, were in range, and leaked nothing to these attacks."""
        return [
            layer
            for layer in self.layers
            if layer.verdict is Verdict.NOT_RECOVERED and layer.n_samples and self._carries_all(layer)
        ]

    def _samples_in_words(self) -> str:
        best = self.best
        if best is None or not best.n_certified:
            return ""
        total, is_known = max(best.n_inputs, best.at_least), best.is_size_known
        if best.n_samples and not self._carries_all(best):
            total, is_known = self.batch_size, self.is_batch_size_known
        labels = f" and {best.n_labels} labels" if best.n_labels else ""
        return (
            f"{best.n_certified} of {'' if is_known else 'at least '}{total} {best.what}{labels} recovered at layer "
            f"'{best.name}', certified, each to within {best.worst_error:.1g} (expected error, in its units)"
        )

    def _text_in_words(self) -> str:
        text = self.text
        if text is None or not text.n_certified:
            return ""
        return f"{text.count} recovered at layer '{text.layer}', certified" + (
            f" ({text.reason})" if text.reason else ""
        )

    def _likely_in_words(self) -> str:
        likely = self.likely
        if not likely:
            return ""
        least = min(sample.correlation for sample in likely)
        return (
            f"{len(likely)} {likely[0].kind} likely at layer '{likely[0].layer}', not certified: each is expected to "
            f"correlate with a true one by {least:.2f} or more"
        )

    def _tokens_in_words(self) -> str:
        names = ", ".join(f"'{layer.name}'" for layer in self.layers if layer.tokens)
        return f"{len(self.tokens)} token ids of the batch can be read from the gradient of {names}" if names else ""


def _why_open(layer: LayerAudit) -> str:
    """Return why a linear layer gives no conclusion, with its name; an empty text for other modules."""
    if layer.row is not None and len(layer.row.shape) != 2:
        return ""
    why = layer.reason if layer.batch is None else layer.why_open
    return f"layer '{layer.name}': {why}" if why else ""
