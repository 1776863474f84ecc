"""What an audit returns: one object for the notebook, the command line and the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsedl_fl.audit.facts import AuditFacts
from sparsedl_fl.audit.findings import LayerAudit, LikelySample, Sample
from sparsedl_fl.audit.report import as_dict, as_html, as_json, as_table, plot_layers
from sparsedl_fl.audit.writing import written

__all__ = ["AuditResult", "LayerAudit", "LikelySample", "Sample"]


class AuditResult(AuditFacts):
    """What an audit found (`sparsedl_fl.audit.facts.AuditFacts`), with methods that write it down."""

    def to_dict(self, show_samples: bool = False) -> dict[str, Any]:
        """Return the report as plain data, which follows the published schema.

        Parameters
        ----------
        show_samples : bool, default=False
            Whether to include the recovered numbers. They are personal data where the batch was.
        """
        return as_dict(self, show_samples)

    def to_json(self, path: str | Path | None = None, *, show_samples: bool = False) -> str:
        """Return the report as JSON, and write it where a path is given."""
        return written(as_json(self, show_samples), path, is_private=show_samples)

    def to_html(
        self,
        path: str | Path | None = None,
        *,
        show_samples: bool = False,
        decoder: Any = None,
        sweep: Any = None,
        vocabulary: Mapping[int, str] | None = None,
    ) -> str:
        """Return the report as one self-contained page, and write it where a path is given.

        Parameters
        ----------
        path : str or Path or None, default=None
            Where it goes.
        show_samples : bool, default=False
            Whether to show what was recovered. It is personal data where the batch was.
        decoder : callable or sklearn.compose.ColumnTransformer, default=None
            Turns values of shape (k, n) into images (k, height, width[, 3]) in [0, 1], or into a mapping of column
            names to columns; a fitted encoder of a table will do. None shows images where the model's input has the
            shape of one, and numbers else.
        sweep : SweepResult or None, default=None
            Measured effect of defences, for the chapter about them.
        vocabulary : mapping of int to str or None, default=None
            Tokens by their ids.
        """
        options = {"decoder": decoder, "sweep": sweep, "vocabulary": vocabulary}
        return written(as_html(self, show_samples=show_samples, **options), path, is_private=show_samples)

    def plot(self, axes: Any = None) -> Any:
        """Draw how much of its batch each layer leaks; needs matplotlib."""
        return plot_layers(self, axes)

    def _repr_html_(self) -> str:
        return as_table(self)

    def __repr__(self) -> str:
        return f"<AuditResult: {self.verdict}: {self.reason}>"
