"""Say which of given records a client trained on, from the model before and after any number of local steps of SGD.

Exit status: 1 a record was found, 0 none was and all are in range, 2 bad usage or unreadable files, 3 nothing can be
said of some of them (out of range), which is no reassurance. Not finding a record says that it left no trace above
rounding.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sparsedl_fl.cli._model import add_model_arguments, example_of, folder_of, model_of
from sparsedl_fl.cli._options import SEEDS, whole

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sparsedl_fl.audit import Membership

HELP = "say which of given records a client trained on"

RESULT = "members.json"

MOST_LINES = 20
"""Records that are printed; the file of --out and --json have all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_model_arguments(parser)
    parser.add_argument("update", metavar="UPDATE", nargs="?", help="what the client sent: .safetensors, .npz or .pt")
    parser.add_argument("--records", metavar="FILE", help="records to test: .npz, .safetensors or .pt with x")
    parser.add_argument("--others", metavar="FILE", help="records like these that were not trained on, twenty or more "
                        "(default: those tested that clearly lie outside, and made-up ones)")  # fmt: skip
    parser.add_argument("--kind", choices=("auto", "gradient", "weights", "delta"), default="auto",
                        help="what UPDATE is (default: weights where near the model's own, else gradient)")  # fmt: skip
    parser.add_argument("--layer", metavar="NAME", help="layer to look at (default: the largest whose inputs training "
                        "leaves the same)")  # fmt: skip
    parser.add_argument("--n-trained", type=whole(), help="different records that the client trained on, where that is "
                        "known: where fewer show, nothing is said of those not found")  # fmt: skip
    parser.add_argument("--seed", type=whole(0, SEEDS), default=0, help="seed of the made-up records (default: 0)")
    parser.add_argument("--out", metavar="FOLDER", help=f"where {RESULT} goes")
    parser.add_argument("--force", action="store_true", help="overwrite a file there that is no result of ours")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    """Test the records."""
    from sparsedl_fl.audit.files import check_fixed
    from sparsedl_fl.wording import escaped

    if options.model is None or options.update is None or options.records is None:
        raise ValueError("MODEL, UPDATE and --records are needed")
    folder = folder_of(options, (RESULT,))
    model = model_of(options, options.model, options.weights)
    if options.weights is None:
        check_fixed(options.model)
    how: dict[str, Any] = {"kind": options.kind, "key": options.key, "random_state": options.seed}
    how |= {"others": options.others, "layer": options.layer, "n_trained": options.n_trained}
    result = membership_of(model, example_of(options, model), options.update, options.records, **how)
    if folder is not None:
        result.to_json(folder / RESULT)
    if options.json:
        print(result.to_json(), end="")
    else:
        print("\n".join(map(escaped, _lines(result))))
    return result.exit_status


def membership_of(
    model: nn.Module,
    example: torch.Tensor | None,
    update: str,
    records: str,
    *,
    kind: str,
    key: str | None,
    others: str | None = None,
    **how: Any,
) -> Membership:
    """Load an update and records from their files, and test the records (see `sparsedl_fl.audit.members`)."""
    from sparsedl_fl.audit import members
    from sparsedl_fl.audit.files import load_records, load_sent

    shape = None if example is None else tuple(example.shape[1:])
    if others is not None:
        how["others"] = load_records(others, shape)[0]
    sent, kind = load_sent(model, update, kind=kind, key=key)
    return members(model, sent, load_records(records, shape)[0], kind=kind, **how)


def _lines(result: Membership) -> list[str]:
    """Return the summary, a line for each record that was found, and why others are out of range."""
    lines = [str(result)]
    found = [number for number, is_member in enumerate(result.is_member) if is_member]
    for number in found[:MOST_LINES]:
        lines.append(f"  record {number}: trained on, p = {result.p_values[number]:.1g}")
    if len(found) > MOST_LINES:
        lines.append(f"  ... and {len(found) - MOST_LINES} more")
    if not result.reason or found:
        reasons = sorted({reason for reason in result.reasons if reason})
        lines += [f"  out of range ({result.reasons.count(reason)}): {reason}" for reason in reasons]
    return lines
