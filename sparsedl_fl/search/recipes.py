"""Which stages serve which kind of layer, in the order of their first turns, and where that was measured.

A stage of a recipe that lacks what it needs (`Stage.requires`) is left out. To add a stage, write its class and put its
name in the line of each kind of layer that it serves, with the measurement there.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparsedl_fl.search.many_samples_search import MANY_SAMPLES_STAGES, ManySamplesState
from sparsedl_fl.search.stage import Stage, State
from sparsedl_fl.search.stages import STAGES
from sparsedl_fl.search.state import SearchState
from sparsedl_fl.search.withheld.withheld_stages import WITHHELD_STAGES
from sparsedl_fl.search.withheld.withheld_state import WithheldState

__all__ = ["ALL_STAGES", "RECIPES", "Recipe", "recipe_for"]

ALL_STAGES = ChainMap[str, Stage[Any]](STAGES, MANY_SAMPLES_STAGES, WITHHELD_STAGES)
"""By name."""


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
        The measurement that put them there.
    last_resort : str or None, default="alternation"
        Name of the stage that has a round now and then, where the others find nothing new.
    """

    layer: str
    fits: Callable[[Any], bool]
    stages: tuple[str, ...]
    measured: str
    last_resort: str | None = "alternation"

    def stages_for(self, state: State) -> list[Stage[Any]]:
        """Return the stages whose requirements a layer meets."""
        return [ALL_STAGES[name] for name in self.stages if ALL_STAGES[name].requires(state) is None]


def _is_smooth(state: SearchState) -> bool:
    return not state.is_flat and not state.activation.is_piecewise_linear


RECIPES = (
    Recipe(
        "more samples than features",
        lambda state: isinstance(state, ManySamplesState),
        ("reflection of the others",),
        "64 rows of 30 features at 200 units, 100 at 400: the yardstick's batches are whole.",
        last_resort="reflection of all",
    ),
    Recipe(
        "zero-slope regions, most units active",
        lambda state: isinstance(state, WithheldState),
        ("sparsest withheld", "label reflection", "all that is left"),
        "Hardtanh (20, 200): none and 0.15 of a batch without all that is left, 5 times as long or lost without label "
        "reflections, two seeds.",
        last_resort=None,
    ),
    Recipe(
        "one layer alone, zero-slope region",
        lambda state: state.equations is None,
        ("sent-back reflection", "dictionary descent", "reflection", "alternation"),
        "ReLU (65, 1000), ten seeds: 0.8 to 1.1 s, and 1.2 to 2.1 without dictionary descents; (100, 4000), one seed: "
        "6.4 and 12.0 s. (180, 1000): 3 of 3 whole; without reflections not measured. With the weights of a head of "
        "ten classes (90, 200): 10 of 10 whole in 5 to 9 s, nothing of (80, 200) without (one seed); 64 at 200 after "
        "1000 steps of training, 10 of 10 (examples/paper/results/before-head.md).",
    ),
    Recipe(
        "network tail alone, or a head",
        lambda state: state.subspaces is None,
        ("class starts", "descent", "smoothed descent"),
        "Heads of 40 in 100: two to three times as long without class starts. SELU (20, 200) by the tail alone, two "
        "seeds: all and 0.8 of a batch, none without smoothed descents. (tests/frontier/ablation.md)",
    ),
    Recipe(
        "smooth, first subspace too small",
        lambda state: _is_smooth(state) and not state.subspaces.first.identifies,
        ("joint descent", "descent", "scaled reflection"),
        "GELU (120, 200), tanh (110, 200): 6 of 6 batches of the yardstick whole; its stages not measured one by one.",
    ),
    Recipe(
        "smooth, wide",
        lambda state: _is_smooth(state) and state.is_wide,
        ("scaled reflection", "tail descent", "descent", "joint descent"),
        "One batch each of 300 at 1000, in `ScaledReflection.for_smooth`; not in the yardstick.",
    ),
    Recipe(
        "smooth",
        _is_smooth,
        ("descent", "tail descent", "joint descent", "scaled reflection"),
        "Smooth activations at (60, 200), 22 problems: 1.6 times as long without descents by all subspaces, fewer "
        "certified without those by the tail, no difference without the others. (tests/frontier/ablation.md)",
    ),
    Recipe(
        "zero-slope region, beyond half of the width",
        lambda state: state.is_beyond_half,
        ("paired reflection", "chained reflection", "scaled reflection"),
        "ReLU (105, 200), three seeds: two thirds of the samples, in five times the time, without paired reflections. "
        "(tests/frontier/ablation.md)",
    ),
    Recipe(
        "kinks that have a scale",
        lambda state: state.subspaces.levels[0].up_to_scale() is None,
        ("scaled reflection", "descent"),
        "Threshold (60, 200), five seeds: whole in 4.5 to 7.7 s; Hardtanh where its own search does not apply.",
    ),
    Recipe(
        "two slopes, samples with much in common",
        lambda state: not state.is_flat and state.is_alike,
        ("scaled reflection", "projection"),
        "From before there were recipes; not in the yardstick.",
    ),
    Recipe(
        "two slopes",
        lambda state: not state.is_flat,
        ("projection", "scaled reflection", "descent"),
        "LeakyReLU 0.01 and 0.2, PReLU (60, 200), two seeds each: 1.6 times as long without projections. "
        "(tests/frontier/ablation.md)",
    ),
    Recipe(
        "zero-slope region, samples with much in common, several subspaces",
        lambda state: state.is_alike and state.all_levels is not None and not state.is_wide,
        ("chained reflection", "projection", "scaled reflection"),
        "ReLU on pixels in [0, 1], three seeds each: (80, 200) 4.2 s, and 5.5 to 11.8 with scaled reflections "
        "first; (40, 200) 0.7 s with either.",
    ),
    Recipe(
        "zero-slope region, samples with much in common",
        lambda state: state.is_alike,
        ("scaled reflection", "chained reflection", "projection"),
        "ReLU (80, 200) on pixels in [0, 1], next layer alone: 54 and 12 s (two seeds), 87 and 11 with projections "
        "first.",
    ),
    Recipe(
        "zero-slope region",
        lambda state: True,
        ("projection",),
        "ReLU (60, 200) to (98, 200) and (250, 1000): 33 of 33 batches of the yardstick whole.",
    ),
)
"""In order of precedence: the first that fits a layer serves it."""


def recipe_for(state: State) -> tuple[list[Stage[Any]], Stage[Any] | None]:
    """Return the stages for a layer, and the last resort where these find nothing."""
    recipe = next(recipe for recipe in RECIPES if recipe.fits(state))
    stages = recipe.stages_for(state)
    if recipe.last_resort is None:
        return stages, None
    last = ALL_STAGES[recipe.last_resort]
    if last in stages and len(stages) > 1:  # where others serve, it is the last resort
        stages.remove(last)
    return stages, None if last in stages or last.requires(state) else last
