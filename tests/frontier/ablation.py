"""What each part of the search and of the proof brings: the yardstick without it, on the kinds that it serves.

    python -m tests.frontier ablate record.json --out ablation.json     (all parts, or --only "descent" "scale")
    python -m tests.frontier ablation record.json ablation.json     (the table)

A part is switched off in the process that runs one problem, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

__all__ = ["PARTS", "Part", "ablation_table"]


@dataclass(frozen=True)
class Part:
    """A part that can be switched off.

    Attributes
    ----------
    off : callable without arguments
        Switches it off for the rest of this process.
    serves : tuple of str
        Words, of which a kind's name holds one where the part serves it.
    """

    off: Callable[[], None]
    serves: tuple[str, ...]


def _replace(target: str, value: Any) -> None:
    mock.patch(target, value).start()


def _set(target: str, **values: Any) -> None:
    """Give a class of settings other defaults."""
    module, name = target.rsplit(".", 1)
    cls = getattr(__import__(module, fromlist=[name]), name)
    old = cls.__init__

    def new(self: Any, *args: Any, **kwargs: Any) -> None:
        old(self, *args, **{**values, **kwargs})

    cls.__init__ = new


def _without_stage(*names: str) -> Callable[[], None]:
    """Take stages out of all recipes; where none is left they stay, and cannot be judged."""

    def off() -> None:
        from sparsedl_fl.search.recipes import Recipe

        whole = Recipe.stages_for

        def fewer(self: Recipe, state: Any) -> list[Any]:
            stages = whole(self, state)
            return [stage for stage in stages if stage.name not in names] or stages

        _replace("sparsedl_fl.search.recipes.Recipe.stages_for", fewer)

    return off


def _without_criterion(*names: str) -> Callable[[], None]:
    def off() -> None:
        from sparsedl_fl.certify import certificate

        kept = tuple(kind for kind in certificate.CRITERIA if type(kind).__name__ not in names)
        assert len(kept) == len(certificate.CRITERIA) - len(names)
        certificate.certify.__defaults__ = (kept,)

    return off


def _without_deflation() -> None:
    _replace("sparsedl_fl.search.remaining.Remaining.leave_out", lambda self, knowledge, fits: None)


def _without_columns_from_downstream() -> None:
    _replace(
        "sparsedl_fl.search.knowledge.Knowledge._from_downstream", lambda self, inputs, others, own=None: inputs[:0]
    )


def _without_equilibration() -> None:
    for place in ("sparsedl_fl.inverter", "sparsedl_fl.audit.likely"):
        _replace(f"{place}.in_units_of_rounding", lambda given, batch_size: (given, np.ones(given.shape[0])))


def _without_fallback() -> None:
    from sparsedl_fl.directions import default

    _replace("sparsedl_fl.inverter.best_known", lambda *args: default.ActivationDirections())


NEXT, SENT = "next layer", ("int8", "float16", "epochs")
SMOOTH = (
    *(f"{name} 60x200" for name in ("gelu", "silu", "elu", "tanh", "sigmoid", "selu", "mish")),
    "gelu 95",
    "tanh 110",
)
STRAIGHT = ("leaky-relu", "prelu", "relu6", "threshold", "relu 105")
"""Kinds behind smooth activations and straight pieces; ReLU's other kinds are `NEXT` and one layer."""

PARTS = {
    "classes": Part(_without_stage("class starts"), ("head",)),
    "smoothed descent": Part(_without_stage("smoothed descent"), ("weights of the rest",)),
    "descent of all spans": Part(_without_stage("descent"), SMOOTH),
    "descent of the tail alone": Part(_without_stage("tail descent"), SMOOTH),
    "descent of spans and tail": Part(_without_stage("joint descent"), SMOOTH),
    "scaled reflection": Part(_without_stage("scaled reflection"), ("raw", *SMOOTH, *STRAIGHT)),
    "projection": Part(_without_stage("projection"), (NEXT, *STRAIGHT, *SENT)),
    "all spans at once": Part(_without_stage("chained reflection"), ("raw", "relu 105")),
    "paired reflection": Part(_without_stage("paired reflection"), ("relu 105x200",)),
    "dictionary descent": Part(_without_stage("dictionary descent"), ("65x1000", "int8")),
    "reflection of wide layers": Part(_without_stage("reflection"), ("x1000, one layer",)),
    "four ridges of the alternation": Part(
        lambda: _set("sparsedl_fl.search.schedule.Schedule", ridges=(0.005,)), ("one layer", "steps", "noise")
    ),
    "withheld": Part(
        lambda: _replace("sparsedl_fl.search.withheld.withheld_state.WithheldSearch.applies", lambda *a: False),
        ("hardtanh",),
    ),
    "inputs' own zeros": Part(
        lambda: _replace("sparsedl_fl.constraints.problem.LayerProblem.is_stored", False), ("int8", "float16", "stored")
    ),
    "last fit": Part(
        lambda: _set("sparsedl_fl.search.joint_refinement.JointRefinement", widest=0),
        (*SMOOTH, *STRAIGHT, "rest", NEXT),
    ),
    "fit of the whole batch": Part(
        lambda: _replace("sparsedl_fl.search.settling._fit_together", lambda state, generator: None),
        (*SMOOTH, *STRAIGHT, "rest", "head"),
    ),
    "deflation of equations": Part(_without_deflation, (*SMOOTH, *STRAIGHT, "rest", "head")),
    "columns from downstream": Part(_without_columns_from_downstream, (*SMOOTH, *STRAIGHT, "rest", NEXT, "head")),
    "deflation of the column view": Part(
        lambda: _replace("sparsedl_fl.search.knowledge.Knowledge.deflate_columns", lambda self: None),
        ("one layer", NEXT, "steps"),
    ),
    "columns taken again": Part(
        lambda: _replace("sparsedl_fl.search.knowledge.Knowledge.repeat_downstream", lambda self, **k: False),
        ("relu 105x200",),
    ),
    "fallback to a dictionary search": Part(_without_fallback, ("one layer", "steps", "noise", "epochs")),
    "search again for mixtures": Part(
        lambda: _replace(
            "sparsedl_fl.directions.activation.ActivationDirections._may_be_mixtures", lambda *args: False
        ),
        (NEXT, "relu"),
    ),
    "maximum likelihood": Part(
        lambda: _set("sparsedl_fl.certify.assembly.Assembly", refine_above=np.inf),
        ("noise", "int8", "float16", "steps"),
    ),
    "equilibration of rows": Part(_without_equilibration, ("head",)),
    **{
        f"criterion {name}": Part(_without_criterion(name), serves)
        for name, serves in {
            "ZerosOfOthers": ("one layer", "steps", "noise"),
            "ByTail": ("rest", "head", *SMOOTH),
            "BySubspace": (NEXT, *SMOOTH, *STRAIGHT, "int8"),
            "ByTailAndSubspaces": SMOOTH,
            "ReplayOfAll": ("head", "rest", *SMOOTH),
            "ZerosOfInput": ("one layer", "steps", "noise", "int8", "float16"),
            "ZerosOfAll": ("one layer", "steps", "noise", "int8", "float16"),
        }.items()
    },
}
"""Parts by name."""


def ablation_table(record: Sequence[dict[str, Any]], ablated: Sequence[dict[str, Any]]) -> str:
    """Return a table in Markdown: what a part brings in samples and certificates, and in time, on what it serves.

    The first rows of a part are all kinds that it serves together, and those where exact samples differ.
    """
    old = {(line["kind"], line["seed"]): line for line in record}
    rows = [
        "| without | kinds | problems | exact | certified | wrong | starts | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(line["without"] for line in ablated):
        pairs = [(old[line["kind"], line["seed"]], line) for line in ablated if line["without"] == name]
        kinds = list(dict.fromkeys(line["kind"] for _, line in pairs))
        rows.append(_row(name, f"all {len(kinds)}", pairs))
        for kind in kinds:
            of_kind = [pair for pair in pairs if pair[1]["kind"] == kind]
            if any(abs(a[key] - b[key]) > 1e-9 for a, b in of_kind for key in ("exact", "certified")):
                rows.append(_row("", kind, of_kind))
    return "\n".join(rows)


def _row(name: str, kinds: str, pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    sides = list(zip(*pairs, strict=True))
    exact, certified = ([np.mean([line[key] for line in side]) for side in sides] for key in ("exact", "certified"))
    wrong, starts, seconds = (
        [sum(line[key] for line in side) for side in sides] for key in ("wrong", "starts", "seconds")
    )
    return (
        f"| {name} | {kinds} | {len(pairs)} | {exact[0]:.3f} -> {exact[1]:.3f} | {certified[0]:.3f} -> "
        f"{certified[1]:.3f} | {wrong[0]} -> {wrong[1]} | {starts[0]} -> {starts[1]} | "
        f"{seconds[0]:.0f} -> {seconds[1]:.0f} |"
    )
