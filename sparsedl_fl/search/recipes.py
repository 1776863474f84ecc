"""Which stages serve which kind of layer, in the order of their first turns, and where that was measured.

A stage of a recipe that lacks what it needs (`Stage.requires`) is left out. To add a stage, write its class and put its
name in the line of each kind of layer that it serves, with what it brought there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparsedl_fl.search.stage import Stage
from sparsedl_fl.search.stages import STAGES
from sparsedl_fl.search.state import SearchState

__all__ = ["RECIPES", "Recipe", "recipe_for"]

State = SearchState


@dataclass(frozen=True)
class Recipe:
    """The stages for a kind of layer.

    Attributes
    ----------
    layer : str
        The kind of layer, in words.
    fits : callable
        Whether a layer is of this kind; the first recipe that fits is taken.
    stages : tuple of str
        Names of stages.
    measured : str
        What put them there.
    """

    layer: str
    fits: Callable[[State], bool]
    stages: tuple[str, ...]
    measured: str

    def stages_for(self, state: State) -> list[Stage]:
        """Return the stages that lack nothing."""
        return [STAGES[name] for name in self.stages if STAGES[name].requires(state) is None]


def _is_smooth(state: State) -> bool:
    return not state.is_flat and not state.activation.is_piecewise_linear


RECIPES = (
    Recipe(
        "one layer alone, zero-slope region",
        lambda state: state.equations is None,
        ("reflection", "alternation"),
        "ReLU (180, 1000): reflections bring 3 of 3 batches back whole, alternation none of 3 in the time.",
    ),
    Recipe(
        "network tail alone, or a head",
        lambda state: state.subspaces is None,
        ("class starts", "descent", "smoothed descent"),
        "Heads of 40 in 100: class starts find those alone in their class at once. ELU (80, 200): of 64 smoothed "
        "starts 56 end at samples, one of others.",
    ),
    Recipe(
        "smooth, first subspace too small",
        lambda state: _is_smooth(state) and not state.subspaces.first.identifies,
        ("joint descent", "descent", "scaled reflection"),
        "GELU (120, 200), tanh (110, 200): where subspaces say little, nearly every start by all ends at a sample.",
    ),
    Recipe(
        "smooth, wide",
        lambda state: _is_smooth(state) and state.is_wide,
        ("scaled reflection", "tail descent", "descent", "joint descent"),
        "GELU (300, 1000): descents by the subspaces alone end at the same few samples.",
    ),
    Recipe(
        "smooth",
        _is_smooth,
        ("descent", "tail descent", "joint descent", "scaled reflection"),
        "GELU and tanh (80, 200) to (95, 200).",
    ),
    Recipe(
        "zero-slope region, beyond half of the width",
        lambda state: state.is_beyond_half,
        ("paired reflection", "chained reflection", "scaled reflection"),
        "ReLU (105, 200) and (120, 200).",
    ),
    Recipe(
        "kinks that have a scale",
        lambda state: state.subspaces.spans[0].up_to_scale() is None,
        ("scaled reflection", "descent"),
        "ReLU6, Threshold and Hardtanh (20, 200) to (60, 200).",
    ),
    Recipe(
        "two slopes, samples with much in common",
        lambda state: not state.is_flat and state.is_alike,
        ("scaled reflection", "projection"),
        "LeakyReLU behind pixels in [0, 1].",
    ),
    Recipe(
        "two slopes",
        lambda state: not state.is_flat,
        ("projection", "scaled reflection", "descent"),
        "LeakyReLU 0.2 (80, 200), (300, 1000).",
    ),
    Recipe(
        "zero-slope region, samples with much in common, several subspaces",
        lambda state: state.is_alike and state.chain is not None and not state.is_wide,
        ("chained reflection", "projection", "scaled reflection"),
        "ReLU behind pixels in [0, 1], three seeds each: (80, 200) 4.2 s, and 5.6 to 11.8 with scaled reflections "
        "first; (40, 200) 0.7 s with either.",
    ),
    Recipe(
        "zero-slope region, samples with much in common",
        lambda state: state.is_alike,
        ("scaled reflection", "chained reflection", "projection"),
        "ReLU (80, 200) behind pixels in [0, 1], next layer alone: 54 and 12 s (two seeds), 87 and 11 with projections "
        "first.",
    ),
    Recipe(
        "zero-slope region",
        lambda state: True,
        ("projection",),
        "ReLU (60, 200) to (98, 200), (250, 1000).",
    ),
)
"""In the order in which they are asked."""

LAST_RESORT = "alternation"
"""What has a round now and then behind zero-slope regions, where the others bring nothing new."""


def recipe_for(state: State) -> tuple[list[Stage], Stage | None]:
    """Return the stages for a layer, and what has a turn where these bring nothing."""
    recipe = next(recipe for recipe in RECIPES if recipe.fits(state))
    stages = recipe.stages_for(state)
    last = STAGES[LAST_RESORT]
    if state.equations is None and len(stages) > 1:  # where reflections serve, alternation is the last resort
        stages.remove(last)
    return stages, None if last in stages or last.requires(state) else last
