"""Whose turn it is: what stages brought for their cost, and which stages a kind of layer has."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from sparsedl_fl import LayerGradient
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.search.recipes import ALL_STAGES, RECIPES, recipe_for
from sparsedl_fl.search.schedule import Schedule
from sparsedl_fl.search.scheduler import Scheduler
from sparsedl_fl.search.settings import SearchSettings
from sparsedl_fl.search.stage import Stage
from sparsedl_fl.search.stages import STAGES
from sparsedl_fl.search.state import SearchState
from sparsedl_fl.simulation import client_gradient, fully_connected


class Idle(Stage):
    def __init__(self, name, cost=1.0, draws=True):
        self.name, self.cost, self.draws = name, (cost, cost), draws

    def requires(self, state):
        return None

    def propose(self, state, n_starts, generator):
        raise AssertionError("the scheduler runs nothing")


SCHEDULE = Schedule(optimism=0.25, alternation_every=4)
STATE = SimpleNamespace(is_wide=False, n_starts=16, is_flat=False, schedule=SCHEDULE)


def scheduler(*stages, last=None):
    return Scheduler(stages, last, STATE)


def leaders(lead, finds):
    found = []
    for n_new in finds:
        found.append(lead.leader.name)
        lead.learn(lead.leader, n_new, 32)
    return found


def test_the_stage_that_brings_more_for_its_cost_leads():
    lead = scheduler(Idle("cheap"), Idle("dear", 4.0))
    # 2 against 0.25 / 4; 10 / 4 against 0.25; 0.5 / 4 against 0.5.
    assert leaders(lead, (2, 0, 10, 0.5, 0)) == ["cheap", "cheap", "dear", "dear", "cheap"]


def test_a_stage_that_draws_nothing_waits_until_something_else_is_found():
    lead = scheduler(Idle("classes", draws=False), Idle("descent"))
    assert leaders(lead, (5, 0, 0, 0, 2, 0)) == ["classes", "classes", *["descent"] * 4]
    assert lead.leader.name == "classes"


def test_the_last_resort_has_every_fourth_round():
    lead = scheduler(Idle("reflection"), last=Idle("alternation"))
    rounds = [[stage.name for stage, _ in lead.round()] for _ in range(8)]
    assert rounds == 2 * ([["reflection"]] * 3 + [["reflection", "alternation"]])


def test_every_stage_serves_a_kind_of_layer_and_every_recipe_says_where_it_was_measured():
    used = {name for recipe in RECIPES for name in recipe.stages}
    last = {recipe.last_resort for recipe in RECIPES} - {None}
    assert used | last == set(ALL_STAGES)
    assert all(recipe.measured.strip() for recipe in RECIPES)
    assert len({recipe.layer for recipe in RECIPES}) == len(RECIPES)


def state_of(activation, **changes):
    torch.manual_seed(0)
    model = fully_connected(40, width=60, n_hidden=3, n_classes=4, random_state=0)
    for index in range(1, len(model), 2):
        model[index] = activation()
    inputs, labels = torch.randn(8, 40), torch.arange(8) % 4
    given = LayerGradient.from_model(model, client_gradient(model, inputs, labels), layer=0)
    problem, generator = LayerProblem.of(given, 8), torch.Generator().manual_seed(0)
    subspaces = problem.subspaces if changes.get("subspaces", True) else None
    equations = subspaces if changes.get("equations", True) else None
    settings = SearchSettings(use_next_layer=subspaces is not None)
    return SearchState(settings, problem, subspaces, equations, generator, 120)


@pytest.mark.parametrize(
    ("state", "expected", "last"),
    [
        (lambda: state_of(nn.ReLU, subspaces=False), ["alternation"], None),
        (lambda: state_of(nn.ReLU), ["projection"], "alternation"),
        (lambda: state_of(nn.LeakyReLU), ["projection", "scaled reflection", "descent"], None),
        (lambda: state_of(nn.GELU), ["descent", "tail descent", "joint descent", "scaled reflection"], None),
    ],
    ids=["relu alone", "relu", "leaky relu", "gelu"],
)
def test_recipes(state, expected, last):
    stages, last_resort = recipe_for(state())
    assert [stage.name for stage in stages] == expected
    assert (last_resort and last_resort.name) == last


def test_what_a_stage_lacks_is_said_with_both_sides():
    state = state_of(nn.GELU)
    lacking = {name: stage.requires(state) for name, stage in STAGES.items()}
    assert lacking["descent"] is None
    for name in ("class starts", "chained reflection", "paired reflection", "projection", "alternation"):
        assert lacking[name].startswith("needs ")
        assert ";" in lacking[name], "what is needed; what there is"
