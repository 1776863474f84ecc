"""What units that are off withhold of a gradient: batches behind activations that are straight around zero."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.activations import Hardtanh, ReLU
from sparsedl_fl.certify.constraint_criteria import _agree_with_tail as returns
from sparsedl_fl.certify.mixtures import are_no_mixtures
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions import ActivationDirections
from sparsedl_fl.metrics import are_mislabelled, are_wrong
from sparsedl_fl.search import SampleCoordinates
from sparsedl_fl.search.columns_and_forward_pass import ScaledForward
from sparsedl_fl.search.withheld.joint_equations import LeftEquations
from sparsedl_fl.search.withheld.layer_reflection import OneLayerReflection
from sparsedl_fl.search.withheld.left_over import LeftOver, Minimisers
from sparsedl_fl.search.withheld.sparsest_vectors import SparseStarts
from sparsedl_fl.search.withheld.withheld_space import BackSpace
from sparsedl_fl.search.withheld.withheld_state import WithheldSearch, WithheldState
from sparsedl_fl.simulation import client_gradient, fully_connected

WIDTH, BATCH = 100, 8


class Setting:
    """Inputs of different sizes behind two layers of Hardtanh: of some hardly any unit is off, of others a third."""

    def __init__(self, seed, labels=None, scales=(0.5, 3.0)):
        rng = torch.Generator().manual_seed(seed)
        sizes = torch.linspace(*scales, BATCH)[:, None]
        self.inputs = sizes * torch.randn((BATCH, 150), generator=rng)
        drawn = torch.randint(0, 10, (BATCH,), generator=rng)
        self.labels = drawn if labels is None else torch.tensor(labels)
        self.model = fully_connected(150, width=WIDTH, n_hidden=2, n_classes=10, random_state=seed)
        self.model[1] = self.model[3] = nn.Hardtanh()
        self.given = LayerGradient.from_model(self.model, client_gradient(self.model, self.inputs, self.labels))
        self.problem = LayerProblem.of(self.given)
        self.left = torch.from_numpy(self.problem.factors.left)
        self.preactivations = torch.from_numpy(self.given.preactivations(self.inputs.double().numpy()).T.copy())
        self.is_active = self.preactivations.abs() < 1
        gradients = self.problem.backward.at(self.preactivations, self.labels)[1][0]
        self.columns = gradients @ self.left / BATCH
        self.whitened = torch.linalg.inv(self.columns).T
        self.coordinates = SampleCoordinates.of_problem(self.problem)

    def unit_columns(self, index=slice(None)):
        return normalize(self.columns[index], dim=1)


@pytest.fixture(scope="module")
def setting():
    return Setting(0)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_at_every_unit_one_of_two_entries_vanishes(setting):
    spaces = BackSpace.all_of(setting.problem)
    assert [space.back.shape[1] for space in spaces] == sorted({space.back.shape[1] for space in spaces})
    whole = spaces[-1]
    fitted = whole.fitted(setting.is_active)
    passed, withheld = whole.entries(fitted)
    sizes = (passed - withheld).norm(dim=1)
    assert (torch.where(setting.is_active, withheld, passed).norm(dim=1) < 1e-4 * sizes).all()
    has_off = ~setting.is_active.all(dim=1)
    assert (torch.where(setting.is_active, passed, withheld).norm(dim=1)[has_off] > 1e-2 * sizes[has_off]).all()


def test_columns_are_accepted_from_nearby_and_mixtures_are_not(setting):
    space = BackSpace.all_of(setting.problem)[-1]
    enough = (~setting.is_active).sum(dim=1) > 5
    true = space.fitted(setting.is_active[enough])
    nearby = true + 1e-4 * torch.randn(true.shape, generator=generator(), dtype=true.dtype)
    columns, is_active = space.columns(nearby)
    assert len(columns) == enough.sum()
    overlaps = (columns @ setting.unit_columns(enough).T).abs()
    assert (overlaps.amax(dim=1) > 1 - 1e-8).all()
    assert (is_active == setting.is_active[enough][overlaps.argmax(dim=1)]).all()
    mixtures = normalize(true[:-1] + true[1:], dim=1)
    assert len(space.columns(mixtures)[0]) == 0
    far = torch.randn(true.shape, generator=generator(), dtype=true.dtype)
    assert len(space.columns(far)[0]) == 0


def test_inputs_of_which_no_unit_is_off_are_no_columns_of_their_own():
    setting = Setting(3, scales=(0.2, 3.0))
    nothing = setting.is_active.all(dim=1)
    assert nothing.sum() >= 2
    space = BackSpace.all_of(setting.problem)[-1]
    assert len(space.columns(space.fitted(setting.is_active[nothing]))[0]) == 0


def test_differences_of_inputs_of_one_label_are_none():
    setting = Setting(5, [3, 3, 3, 1, 2, 5, 6, 7])
    rounds = WithheldState(WithheldSearch(), setting.problem, str, generator())
    back = setting.problem.backward.at(setting.preactivations, setting.labels)[2][0]
    assert rounds.have_labels(back).all()
    assert rounds.have_labels(-2 * back).all()
    assert not rounds.have_labels(back[:2] - back[1:3]).any()
    assert not rounds.have_labels(back[3:6] - back[4:7]).any()


def test_sparse_starts_end_at_columns_and_are_blind_to_those_known(setting):
    space, stage = BackSpace.all_of(setting.problem)[-1], SparseStarts()
    nothing = torch.zeros((0, WIDTH), dtype=torch.float64)
    columns, is_active = space.columns(stage.candidates(space, nothing, generator()))
    assert len(columns) >= 3
    assert ((columns @ setting.unit_columns().T).abs().amax(dim=1) > 1 - 1e-7).all()
    known, others = space.entries(space.fitted(is_active))[1][:1], columns[1:]
    again, _ = space.columns(stage.candidates(space, known, generator()))
    assert (again @ columns[0]).abs().max() < 0.99
    assert (again @ others.T).abs().max() > 1 - 1e-7


def test_patterns_that_are_nearly_right_lead_to_columns(setting):
    space, index = BackSpace.all_of(setting.problem)[-1], int((~setting.is_active).sum(dim=1).argmax())
    flipped = setting.is_active[[index]].clone()
    flipped[0, :4] = ~flipped[0, :4]
    columns, _ = space.columns(SparseStarts().near(space, flipped))
    assert len(columns) == 1
    assert (columns[0] @ setting.unit_columns([index])[0]).abs() > 1 - 1e-8


def test_reflections_end_at_patterns_of_inputs_that_are_left(setting):
    order = (~setting.is_active).sum(dim=1).argsort(descending=True)
    left, known = order[:2], order[2:]
    forward = ScaledForward.of(setting.coordinates.deflated_by(setting.unit_columns(known)))
    labels = setting.labels[left].repeat(8)
    z = OneLayerReflection().preactivations(forward, setting.left, setting.problem.backward, labels, generator())
    differing = ((z.abs() < 1)[:, None] != setting.is_active[left]).sum(dim=2)
    assert (differing.amin(dim=0) <= 3).all()


def equations_of(setting, left, known, labels=None):
    coordinates = setting.coordinates.deflated_by(setting.unit_columns(known))
    labels = setting.labels[left] if labels is None else labels
    return LeftEquations.of(coordinates, setting.problem.tail_from_prior, setting.left, labels)


def ended(equations, n_rounds):
    """Return where rounds for inputs that are left lead."""
    minimisers, stage, numbers = [], LeftOver(), generator()
    for _ in range(n_rounds):
        minimisers.append(stage.minimisers(equations, minimisers, str, numbers))
        if minimisers[-1].costs[0] < stage.enough:
            break
    return minimisers


def test_the_jacobian_of_what_is_left_over_is_that_of_its_squares(setting):
    equations = equations_of(setting, slice(0, 3), slice(3, None)).smoothed(0.3)
    at, weights = torch.randn((2, 3, 2), generator=generator(), dtype=torch.float64), torch.tensor([0.3, 1.0]).double()
    gram, pull = equations.normal(at, weights)
    for number, change in enumerate(1e-5 * torch.eye(6, dtype=torch.float64)):
        change = change.reshape(3, 2)
        ahead, behind = (equations.costs(at + sign * change, weights) for sign in (1, -1))
        torch.testing.assert_close(pull[:, number, 0], (ahead - behind) / 4e-5, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(gram, gram.transpose(1, 2))
    # Where nothing is left of the equations the Gram matrix is half of the second derivative.
    equations = equations_of(setting, slice(0, 3), slice(3, None))
    true = exact(equations, setting)[None]
    gram, _ = equations.normal(true, weights[1:])
    along = torch.randn((1, 3, 2), generator=generator(), dtype=torch.float64)
    changes = [equations.costs(true + sign * 1e-4 * along, weights[1:]) for sign in (-1, 0, 1)]
    second = (changes[0] - 2 * changes[1] + changes[2]) / 1e-8
    torch.testing.assert_close(2 * (along.flatten() @ gram[0] @ along.flatten()), second[0], rtol=1e-2, atol=0)


def exact(equations, setting):
    """Return the coordinates of the first inputs."""
    differences = setting.whitened[: equations.n_inputs] - equations.forward.origin
    return torch.linalg.lstsq(equations.forward.axes, differences.T).solution.T


def test_inputs_that_are_left_fulfil_their_equations_and_others_do_not(setting):
    equations = equations_of(setting, slice(0, 3), slice(3, None))
    true, ones = exact(equations, setting)[None], torch.ones(1, dtype=torch.float64)
    assert equations.costs(true, ones) < 1e-7
    assert equations.costs(1.1 * true, ones) > 1e-6


@pytest.mark.parametrize("labels", [[3, 3, 3, 1, 2, 5, 6, 7], [0, 4, 4, 1, 2, 5, 6, 7]], ids=["three", "two"])
def test_inputs_of_one_label_with_no_unit_off_are_told_apart(labels):
    setting = Setting(5, labels, scales=(0.4, 3.0))
    left = slice(0, 3)
    equations = equations_of(setting, left, slice(3, None))
    found = equations.inputs(ended(equations, 4)[-1].coordinates[0])
    distances = torch.cdist(found * setting.coordinates.sizes, setting.whitened[left] * setting.coordinates.sizes)
    assert (distances.amin(dim=0) < 1e-3 * (setting.whitened[left] * setting.coordinates.sizes).norm(dim=1)).all()


def test_a_single_input_that_is_left_follows_from_the_others(setting):
    equations = equations_of(setting, slice(0, 1), slice(1, None))
    minimisers = ended(equations, 1)[-1]
    torch.testing.assert_close(equations.inputs(minimisers.coordinates[0]), setting.whitened[:1], rtol=1e-4, atol=1e-4)
    wrong = (setting.labels[:1] + 1) % 10
    assert ended(equations_of(setting, slice(0, 1), slice(1, None), wrong), 1)[-1].costs[0] > LeftOver().enough


def test_later_rounds_start_from_the_best_ends_and_keep_these(setting):
    equations = equations_of(setting, slice(0, 4), slice(4, None), torch.tensor([9, 9, 9, 9]))
    minimisers = ended(equations, 4)
    assert len(minimisers) == 4  # with labels that are wrong none is right
    best = [float(one.costs[0]) for one in minimisers]
    assert best == sorted(best, reverse=True)
    assert all(len(one.costs) <= LeftOver().n_kept for one in minimisers)


def test_a_budget_that_is_spent_ends_a_round(setting):
    equations = equations_of(setting, slice(0, 4), slice(4, None))
    minimisers = LeftOver().minimisers(equations, [], lambda: "over", generator())
    assert minimisers.costs[0] > LeftOver().enough
    assert minimisers.coordinates.isfinite().all()


def test_ends_that_are_as_good_count_once():
    costs = torch.tensor([3.0, 1.0, 1.001, 2.0])
    best = Minimisers(torch.arange(4.0)[:, None, None], costs).best(2)
    assert best.costs.tolist() == [1.0, 2.0]
    assert best.coordinates.flatten().tolist() == [1.0, 3.0]


def test_starts_are_forced_to_have_units_off():
    phi, z = Hardtanh(), torch.randn((40, 30), generator=generator())
    forced = OneLayerReflection(most_forced=3)._forced(phi, z, generator())
    assert forced.sum(dim=1).unique().tolist() == [1, 2, 3]
    assert (z[forced].abs() > 1).double().mean() > 0.95


@pytest.mark.parametrize("seed", range(3))
def test_batches_come_back_whole_and_certified(seed):
    setting = Setting(seed)
    inverter = GradientInverter(random_state=seed).fit(setting.given)
    true = setting.inputs.double().numpy()
    assert inverter.recovered_.all()
    assert "backpropagation" in inverter.status_
    assert not are_wrong(true, inverter.inputs_, inverter.uncertainty_).any()
    assert not are_mislabelled(true, setting.labels.numpy(), inverter.inputs_, inverter.labels_).any()
    errors = np.sqrt(np.mean((true[:, None] - inverter.inputs_) ** 2, axis=2).min(axis=1))
    assert (errors < 1e-3 * np.sqrt(np.mean(true**2, axis=1))).all()


def certified_wrongly(setting, given, seed):
    search = ActivationDirections(max_seconds=3, withheld=WithheldSearch(patience=2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inverter = GradientInverter(search, random_state=seed).fit(given)
    true = setting.inputs.double().numpy()
    wrong = are_wrong(true, inverter.inputs_, inverter.uncertainty_) & inverter.recovered_
    return wrong | are_mislabelled(true, setting.labels.numpy(), inverter.inputs_, inverter.labels_)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("lie", ["weight", "next_weight", "weight_grad", "next_weight_grad"])
@pytest.mark.parametrize("size", [1e-5, 1e-2])
def test_what_is_not_what_it_should_be_certifies_nothing_wrong(lie, size, seed):
    setting = Setting(seed)
    true = getattr(setting.given, lie)
    noise = size * torch.randn(true.shape, generator=generator(seed)).numpy()
    changed = {lie: true * (1 + noise) if "grad" not in lie else true * (1 + 10 * size)}
    if lie == "next_weight":
        changed["behind"] = [replace(setting.given.behind[0], weight=changed[lie]), *setting.given.behind[1:]]
    assert not certified_wrongly(setting, replace(setting.given, **changed), seed).any()


@pytest.mark.parametrize("apart", [1e-6, 1e-3, 0.1])
def test_twins_at_which_no_unit_is_off_are_not_certified_as_one(apart):
    setting = Setting(7, [2, 2, 2, 3, 4, 5, 6, 7], scales=(0.3, 3.0))
    setting.inputs[1] = setting.inputs[0] + apart * setting.inputs[1]
    given = LayerGradient.from_model(setting.model, client_gradient(setting.model, setting.inputs, setting.labels))
    assert not certified_wrongly(setting, given, 0).any()


def test_mixtures_that_are_flat_on_the_other_side_prove_nothing_by_spans():
    """Of two inputs that differ at one unit a mixture may lie in the span as well: what comes back to it does not."""
    slopes = np.ones((2, 6))
    slopes[1, 0] = 0.0
    assert are_no_mixtures(slopes, slopes >= 0).all()
    assert not are_no_mixtures(slopes, slopes >= 0, has_two_kinks=True).any()
    setting = Setting(1)
    rest = setting.problem.tail_from_prior
    assert returns(rest, setting.preactivations).all()
    mixtures = 1.5 * setting.preactivations[:-1] - 0.5 * setting.preactivations[1:]
    assert not returns(rest, mixtures).any()
    assert not returns(None, setting.preactivations).any()


def test_it_applies_where_units_are_straight_around_zero_and_the_way_back_is_known(setting):
    search = WithheldSearch()
    assert search.applies(setting.problem)
    for given in (
        replace(setting.given, head=None),
        replace(setting.given, rest=None),
        replace(setting.given, next_weight_grad=None),
        replace(setting.given, activation="relu"),
        replace(setting.given, learning_rate=0.1),
    ):
        assert not search.applies(LayerProblem.of(given))
    assert Hardtanh(-0.5, 2.0).is_straight_around_zero
    assert not Hardtanh(0.0, 1.0).is_straight_around_zero
    assert not ReLU().is_straight_around_zero


def test_the_nearest_places_where_units_are_off():
    z = torch.tensor([-2.0, -0.4, 0.3, 0.9, 3.0])
    assert Hardtanh().nearest_off(z).tolist() == [-2.0, -1.0, 1.0, 1.0, 3.0]
    assert ReLU().nearest_off(z).tolist() == [-2.0, pytest.approx(-0.4), 0.0, 0.0, 0.0]
