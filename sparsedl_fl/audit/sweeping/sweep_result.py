"""The result of a sweep: a table, a picture, plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from sparsedl_fl.audit.findings import Verdict
from sparsedl_fl.audit.sweeping.defences import Setting
from sparsedl_fl.audit.writing import written
from sparsedl_fl.wording import installs, plain_json

__all__ = ["SweepResult", "SweepRow"]

VERSION = "1.0"
"""Of the result as plain data."""


@dataclass(frozen=True)
class SweepRow:
    """The result of one setting.

    Attributes
    ----------
    defence, setting : str
        The defence, and its strength.
    n_records : int
        Records of one update.
    share : float
        Share of them that were certified, and right: within five expected errors, and within 5 % of their size.
    label_share : float
        Share of the labels that were recovered.
    n_wrong : int
        Inputs certified that were off by more than five expected errors, over all batches.
    error : float or None
        Median root-mean-square error of the right ones.
    what : str
        What was recovered: inputs of the model, or features.
    verdicts : dict of str to int
        How often each verdict was given.
    epsilon : float or None
        Of Opacus' accountant, for noise per record.
    accuracy_lost : float or None
        By a short training with this setting, against one without it.
    seconds : float
        Median time of an audit.
    """

    defence: str
    setting: str
    n_records: int
    share: float
    label_share: float
    n_wrong: int
    error: float | None
    what: str
    verdicts: dict[str, int]
    epsilon: float | None
    accuracy_lost: float | None
    seconds: float

    @classmethod
    def of(
        cls, setting: Setting, records: list[dict[str, Any]], epsilon: float | None, accuracy_lost: float | None
    ) -> SweepRow:
        """Return the result of a setting from the records of its audits."""
        share, label_share, n_wrong, errors, whats, verdicts, seconds = (
            [record[name] for record in records]
            for name in ("share", "label_share", "n_wrong", "errors", "what", "verdict", "seconds")
        )
        errors, whats = sum(errors, []), [what for what in whats if what]
        return cls(
            defence=setting.defence,
            setting=setting.name,
            n_records=setting.client.n_records,
            share=float(np.mean(share)),
            label_share=float(np.mean(label_share)),
            n_wrong=sum(n_wrong),
            error=float(np.median(errors)) if errors else None,
            what=max(whats, key=whats.count, default=""),
            verdicts={verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)},
            epsilon=epsilon,
            accuracy_lost=accuracy_lost,
            seconds=float(np.median(seconds)),
        )

    @property
    def n_coarse(self) -> int:
        """Batches that leak something, if only to within an error that is more than 5 % of its size."""
        return sum(count for verdict, count in self.verdicts.items() if Verdict(verdict).is_leak)

    @property
    def is_stopped(self) -> bool:
        """Whether these attacks recovered nothing in any batch, and did apply."""
        return set(self.verdicts) == {str(Verdict.NOT_RECOVERED)} and self.label_share == 0


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep.

    Attributes
    ----------
    rows : tuple of SweepRow
        One a setting.
    n_batches : int
        Batches a setting.
    data : str
        What the clients had.
    """

    rows: tuple[SweepRow, ...]
    n_batches: int
    data: str

    @property
    def weakest(self) -> dict[str, str | None]:
        """By defence, the first setting from which on these attacks recovered nothing; None where there is none."""
        found: dict[str, str | None] = {}
        for row in self.rows:
            if not row.is_stopped:
                found[row.defence] = None
            elif found.get(row.defence) is None:
                found[row.defence] = row.setting
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        found = {"sweep_version": VERSION, "n_batches": self.n_batches, "data": self.data}
        return found | {"settings": [asdict(row) for row in self.rows], "weakest": self.weakest}

    def to_json(self, path: str | Path | None = None) -> str:
        """Return everything as JSON, and write it where a path is given."""
        return written(plain_json(self.to_dict()) + "\n", path)

    def to_table(self) -> str:
        """Return a Markdown table."""
        lines = [
            "| defence | setting | records | recovered | labels | error, median | epsilon | accuracy lost | seconds |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for row in self.rows:
            share = f"{row.share:.0%} ({row.what})" if row.share else "0%"
            if not row.share and row.n_coarse:  # coarse records, likely ones, token ids
                share = f"0%; a leak all the same in {row.n_coarse} of {sum(row.verdicts.values())}"
            elif not row.share and str(Verdict.OUT_OF_RANGE) in row.verdicts:
                share = "out of range"
            numbers = (row.error, row.epsilon, row.accuracy_lost, row.seconds)
            cells = [row.defence, row.setting, str(row.n_records), share, f"{row.label_share:.0%}"]
            cells += ["-" if x is None else f"{x:.2g}" for x in numbers]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def plot(self, axes: Any = None) -> Any:
        """Draw the share recovered at each setting; needs matplotlib. Returns the axes."""
        with installs("plot needs matplotlib", "audit"):
            from matplotlib.figure import Figure
        if axes is None:
            axes = Figure(figsize=(7, 0.28 * len(self.rows) + 1.2), layout="constrained").subplots()
        colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(row.defence for row in self.rows))}
        names = [f"{row.defence}: {row.setting}" for row in self.rows]
        positions = range(len(names))
        axes.barh(positions, [row.share for row in self.rows], color=[colours[row.defence] for row in self.rows])
        axes.scatter([row.label_share for row in self.rows], positions, marker="|", color="black", label="labels")
        axes.set_yticks(positions, names, fontsize="small")
        axes.set_xlim(0, 1.02)
        axes.invert_yaxis()
        axes.set_xlabel("share recovered, certified")
        axes.legend(loc="lower right", frameon=False)
        return axes

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.to_table())}</pre>"
