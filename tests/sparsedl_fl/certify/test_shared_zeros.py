"""Columns that share all of their zeros, and where the inputs of such columns can be."""

import numpy as np
import pytest
import torch

from sparsedl.selection import complete_basis
from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.certify.hypothesis import Hypothesis
from sparsedl_fl.certify.shared_region import centred
from sparsedl_fl.certify.shared_zeros import SharedZeros, leave_another, radii_of, with_shared_zeros
from sparsedl_fl.constraints.problem import LayerProblem
from tests.sparsedl_fl.certify.test_one_linear_piece import B, client, over_expected

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

OTHERS, NARROW = np.arange(B) > 1, 0.02
"""The first two records activate the same units, and are the only ones that do."""


@pytest.fixture(scope="module", params=range(3))
def problem(request):
    """Return a layer, its batch, the coordinates of the true columns and which units are active, (m, b)."""
    model, batch, sent = client(request.param, 10, is_same_label=False)
    z = model[0](torch.from_numpy(batch)).detach().double().requires_grad_()
    torch.nn.functional.cross_entropy(model.double()[1:](z), torch.arange(B) % 10).backward()
    found = LayerProblem.of(LayerGradient.from_model(model.float(), sent))
    columns = found.factors.left.T @ z.grad.numpy().T
    return found, batch, columns / np.linalg.norm(columns, axis=0), (z > 0).numpy().T


def grouped(problem, basis, certified=OTHERS):
    return with_shared_zeros(Hypothesis(problem[0], basis, np.ones(B, dtype=bool)), certified, NARROW)


def angle(space, columns):
    """Return the sine of the largest angle between columns and a space with an orthonormal basis."""
    return np.linalg.norm(columns - space @ (space.T @ columns), 2)


def check(found, problem):
    hypothesis, groups = found
    _, _, columns, is_active = problem
    (group,) = groups
    assert sorted(group.members) == [0, 1]
    assert (group.rows == ~is_active[:, 0]).all()
    assert angle(group.space, columns[:, :2]) < 1e-3  # along the difference of two that are nearly parallel
    assert hypothesis.proposed.tolist() == OTHERS.tolist()
    return group


def test_two_mixtures_of_two_columns_span_what_these_span(problem):
    basis = problem[2].copy()
    basis[:, :2] = np.linalg.qr(basis[:, :2])[0]
    check(grouped(problem, basis), problem)


def test_a_zero_that_came_by_choice_is_left_out(problem):
    factors, columns, is_active = problem[0].factors, problem[2], problem[3]
    rows = factors.left[np.flatnonzero(is_active[:, 0])[[0, 1]]] @ columns[:, :2]
    basis = columns.copy()
    basis[:, :2] = columns[:, :2] @ np.stack([rows[:, 1], -rows[:, 0]])
    basis[:, :2] /= np.linalg.norm(basis[:, :2], axis=0)
    check(grouped(problem, basis), problem)


def test_a_missing_one_takes_the_place_of_a_column_without_zeros(problem):
    columns = problem[2]
    basis = complete_basis(columns[:, np.r_[0, 2:B]])[:, np.r_[0, B - 1, 1 : B - 1]]
    check(grouped(problem, basis), problem)


def test_columns_without_shared_zeros_are_no_group(problem):
    columns = problem[2]
    basis = complete_basis(columns[:, 2:])[:, np.r_[B - 2, B - 1, : B - 2]]
    hypothesis, groups = grouped(problem, basis)
    assert groups == ()
    assert (hypothesis.basis == basis).all()
    assert grouped(problem, columns, np.arange(B) > 0)[1] == ()  # a single one is none


def test_any_columns_that_share_zeros_enough_are_a_group(problem):
    """Two records with different units share a quarter of the zeros, 20 of 80 units, and 14 determine a plane."""
    columns = problem[2]
    basis, places = columns.copy(), [2, 3]
    basis[:, places] = columns[:, places] @ np.array([[1.0, 0.6], [1.0, -0.8]])
    basis /= np.linalg.norm(basis, axis=0)
    _, groups = grouped(problem, basis, ~np.isin(np.arange(B), places))
    assert sorted(groups[0].members) == places
    assert angle(groups[0].space, columns[:, places]) < 1e-5


def test_columns_that_share_few_zeros_are_no_group(problem):
    """Four share five of 80 units, where 12 would determine what they span."""
    columns, places = problem[2], [2, 3, 4, 5]
    basis = columns.copy()
    basis[:, places] = columns[:, places] @ np.random.default_rng(0).standard_normal((4, 4))
    basis /= np.linalg.norm(basis, axis=0)
    assert grouped(problem, basis, ~np.isin(np.arange(B), places))[1] == ()


def test_the_difference_of_a_pair_is_told_from_directions_of_the_group(problem):
    factors, columns, is_active = problem[0].factors, problem[2], problem[3]
    own = np.linalg.qr(columns[:, :2])[0]
    assert (
        not SharedZeros(np.array([0, 1]), ~is_active[:, 0], own)
        .may_hold_difference(factors, ~is_active[:, OTHERS])
        .any()
    )
    # A column that vanishes where the third does may be what two records differ by, whose mean the third is.
    foreign = np.linalg.qr(columns[:, [0, 2]])[0]
    held = SharedZeros(np.array([0, 1]), ~is_active[:, 0], foreign).may_hold_difference(factors, ~is_active[:, 2:5])
    assert held.tolist() == [True, False, False]


def test_the_region_holds_both_records_within_its_radius_of_the_centre(problem):
    layer, batch, columns, _ = problem
    basis = columns.copy()
    basis[:, :2] = np.linalg.qr(basis[:, :2])[0]
    hypothesis, groups = grouped(problem, basis)
    placed, groups = centred(hypothesis, groups, OTHERS)
    radius = radii_of(groups, B).max()
    whitened = placed.scaled()[1]
    inputs = (whitened * layer.factors.singular_values) @ layer.factors.right
    centre = groups[0].members[0]
    off = np.sqrt(np.mean((inputs[centre] - batch[:2]) ** 2, axis=1))
    assert 0 < off.max() <= radius < 1
    # No further out than where the first unit switches.
    assert (layer.at(whitened)[0][groups[0].rows, centre] < 0).all()


@pytest.mark.parametrize(
    ("seed", "is_alone"),
    [(0, False), (1, True)]
    + [pytest.param(seed, alone, marks=pytest.mark.slow) for seed in range(2, 6) for alone in (False, True)],
)
def test_two_with_the_same_units_take_no_certificate_from_the_others(seed, is_alone):
    """Before shared zeros counted, none of the 16 was certified, and 14 were right."""
    model, batch, sent = client(seed, 10, is_same_label=False)
    given = LayerGradient.from_model(model, sent)
    if is_alone:
        given = LayerGradient(
            weight=given.weight, weight_grad=given.weight_grad, bias=given.bias, bias_grad=given.bias_grad
        )
    inverter = GradientInverter(random_state=0).fit(given)
    is_centre = inverter.evidence_ == "zeros that several inputs share"
    assert inverter.recovered_.sum() == 15
    assert "15 of 16 inputs certified, 14 of them to within " in inverter.status_
    assert "; 1 stands for several records that no unit tells apart, to within 0." in inverter.status_
    assert is_centre.sum() == 1
    assert over_expected(inverter, batch).max() <= 3
    off = np.sqrt(np.mean((inverter.inputs_[is_centre] - batch[:2]) ** 2, axis=1))
    assert (off <= inverter.uncertainty_[is_centre]).all()
    assert inverter.resolution_[is_centre] == pytest.approx(2 * inverter.uncertainty_[is_centre], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("unit", [2.0**-30, 2.0**-8])
def test_the_region_has_no_unit(unit):
    """Smaller inputs, not larger ones, of which the bias gradient is below the noise of the others."""
    model, batch, sent = client(0, 10, is_same_label=False)
    given = LayerGradient.from_model(model, sent)
    layer = {"bias": given.bias, "bias_grad": given.bias_grad}
    plain = GradientInverter(random_state=0).fit(
        LayerGradient(weight=given.weight, weight_grad=given.weight_grad, **layer)
    )
    other = GradientInverter(random_state=0).fit(
        LayerGradient(weight=given.weight / unit, weight_grad=given.weight_grad * unit, **layer)
    )
    radii = [each.uncertainty_[each.evidence_ == "zeros that several inputs share"] for each in (plain, other)]
    assert plain.recovered_.sum() == other.recovered_.sum() == 15
    assert radii[1] / unit == pytest.approx(radii[0], rel=1e-3)


def test_another_initialisation_certifies_no_centre():
    model, batch, sent = client(0, 10, is_same_label=False)
    torch.manual_seed(99)
    with torch.no_grad():
        model[0].weight += 0.3 * model[0].weight.std() * torch.randn_like(model[0].weight)
    inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, sent))
    assert not (inverter.recovered_ & (inverter.uncertainty_ > 1e-4)).any()
    assert over_expected(inverter, batch).max(initial=0.0) <= 3


@pytest.mark.parametrize("seed", range(3))
def test_a_sparse_mixture_beside_a_pair_is_no_column(seed):
    """Before three classes what is sent back has two dimensions, and a pair with the same active units holds both."""
    model, batch, sent = client(seed, 3, is_same_label=False)
    problem = LayerProblem.of(LayerGradient.from_model(model, sent))
    model, labels, third = model.double(), torch.arange(B) % 3, 2
    labels[1] = 1
    z = model[0](torch.from_numpy(batch).double()).detach()
    is_active = (z > 0).numpy()
    outputs = torch.softmax(model[1:](z), dim=1) - torch.nn.functional.one_hot(labels, 3)
    sent_back = (outputs @ model[2].weight).detach().numpy()
    columns = problem.factors.left.T @ (sent_back * is_active).T
    mixture = sent_back[third] * (is_active[0].astype(float) - is_active[third])
    found = problem.factors.left.T @ mixture
    assert np.linalg.norm(problem.factors.left @ found - mixture) < 1e-3 * np.linalg.norm(mixture)
    columns, found = columns / np.linalg.norm(columns, axis=0), found / np.linalg.norm(found)
    others = columns[:, 2:]
    assert not leave_another(problem.factors, ~is_active[0], np.column_stack([columns[:, 1], others]))
    assert leave_another(problem.factors, ~is_active[0], np.column_stack([found, others]))
