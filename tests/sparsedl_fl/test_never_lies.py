"""No input is certified that is wrong: hostile problems inside and far outside what can be recovered."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from paper.methods import Budget
from paper.tables import TABLES
from sparsedl import SparseDictionaryRecovery
from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.activations import resolve
from sparsedl_fl.audit import audit_model, example
from sparsedl_fl.certify.assembly import Assembly
from sparsedl_fl.certify.hypothesis import Hypothesis
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions import ActivationDirections, DictionaryDirections
from sparsedl_fl.layers.blocks import alive
from sparsedl_fl.simulation import client_gradient, fully_connected
from tests.hostile.problems import TWISTS, hostile_problem
from tests.hostile.problems.audits import LIES, hostile_audit

N_SEEDS, N_CHUNKS = 100, 4
RIGHT = 1e-2
"""Error, relative to the size of an input, below which it counts as right."""


def is_right_to_refuse(problem, message):
    """Return whether what a refusal says is so, by the truth."""
    given, true = problem.layer_gradient, problem.inputs.double().numpy()
    # Signs and whole numbers leave most rows of some gradients empty.
    is_crowded, is_without_next = len(true) >= alive(given.weight_grad).min(), given.next_weight_grad is None
    # More samples than features come back by the next layer's gradient, but not where the server is told a lie.
    is_out_of_reach = is_without_next or (is_crowded and "lies about" in problem.description)
    if "nearly all entries have one size" in message:  # signs, or a step of Adam
        return "sign" in problem.description
    if "as large as the layer" in message:
        return is_crowded and is_out_of_reach
    if "nowhere zero" in message:
        return not resolve(given.activation).has_flat_part and is_out_of_reach
    if "column space" in message:  # inputs of which some are mixtures of others, or a layer that mixes them
        return (
            np.linalg.matrix_rank(true, tol=1e-5 * np.linalg.norm(true, 2)) < len(true)
            or "batch norm" in problem.description
        )
    return False


def fitted(problem, random_state):
    """Return the inverter, or None for a refusal that says what is so."""
    fallback = DictionaryDirections(SparseDictionaryRecovery(max_rounds=2))
    search = ActivationDirections(patience=60, fallback=fallback)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (ConvergenceWarning, UserWarning))
        try:
            return GradientInverter(search, random_state=random_state, **problem.told).fit(problem.layer_gradient)
        except ValueError as error:
            if is_right_to_refuse(problem, str(error)):
                return None
            raise


def attack(seed, twist=None, random_state=None, may_refuse=False):
    """Attack a problem; return how many inputs are right, how many of these certified, and those certified wrongly.

    Only where a refusal is no surprise it is a result as well, None: that nothing wrong is certified of a problem says
    nothing where it was never attacked.
    """
    problem = hostile_problem(seed, twist)
    assert problem.layer_gradient is not None, problem.refusal
    inverter = fitted(problem, seed if random_state is None else random_state)
    if inverter is None:
        assert may_refuse, "refused"
        return None
    true = problem.inputs.double().numpy()
    squares = np.mean((true[None] - inverter.inputs_[:, None]) ** 2, axis=2)
    errors, sizes = np.sqrt(squares.min(axis=1)), np.sqrt(np.mean(true**2, axis=1))[squares.argmin(axis=1)]
    certified, is_right = inverter.recovered_, errors < RIGHT * sizes
    wrong = certified & (errors > 10 * inverter.uncertainty_) & (errors > 1e-3 * sizes)
    lies = [f"{problem.description}: {error:.1e} off" for error in errors[wrong]]
    is_near = np.sqrt(squares) < RIGHT * np.sqrt(np.mean(true**2, axis=1))
    fits = inverter.labels_[:, None] == problem.labels.numpy()
    mislabelled = (inverter.labels_ >= 0) & is_near.any(axis=1) & ~(is_near & fits).any(axis=1)
    lies += [f"{problem.description}: a wrong label"] * mislabelled.sum()
    return is_right.sum(), (is_right & certified).sum(), lies


def check(seeds):
    results = [attack(seed, may_refuse=True) for seed in seeds]
    attacked = [result for result in results if result is not None]
    lies = [lie for _, _, found in attacked for lie in found]
    n_right, n_certified = (sum(result[i] for result in attacked) for i in (0, 1))
    print(
        f"\n{len(attacked)} of {len(results)} problems attacked: {n_certified} of {n_right} inputs that are right are "
        f"certified, {len(lies)} wrong"
    )
    assert not lies
    assert len(attacked) >= 0.8 * len(results)
    assert n_certified > n_right / 2 > 50


def test_a_mean_of_two_whose_difference_hardly_shows_is_not_certified_as_one():
    """Found among some 570 problems: the difference was taken for that of other inputs."""
    assert not attack(2500573)[2]


def test_a_last_column_of_which_nothing_comes_from_behind_ends_no_search():
    """Seventeen inputs of which one reaches no unit behind that is on: a matrix of columns was inverted with a zero."""
    n_right, n_certified, lies = attack(2500498)
    assert not lies
    assert n_certified <= n_right


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(N_CHUNKS))
def test_nothing_wrong_is_certified(chunk):
    check(range(chunk, N_SEEDS, N_CHUNKS))


@pytest.mark.benchmark
def test_nothing_wrong_is_certified_in_a_thousand_problems():
    check(range(1000, 2000))


def test_every_twist_makes_a_problem():
    for name in TWISTS:
        for seed in range(4):
            problem = hostile_problem(seed, name)
            assert name in problem.description
            assert not problem.refusal
            assert problem.layer_gradient is not None


def audited(problem, **options):
    """Return the audit of a hostile client, whatever it warns of; every layer named comes to inputs, proven or not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        audit = audit_model(problem.model, problem.gradients, **options)
    for layer in options.get("layers", []):
        assert audit[layer].n_inputs > 0, audit[layer].reason
    return audit


def check_audits(seeds):
    n_certified, lies = 0, []
    for seed in seeds:
        problem = hostile_audit(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            audit = audit_model(problem.model, problem.gradients, max_seconds=2)
        certified, found = problem.lies_of(audit)
        n_certified, lies = n_certified + certified, lies + found
    print(f"\n{len(seeds)} audits: {n_certified} inputs certified, {len(lies)} wrong")
    assert not lies
    return n_certified


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(2))
def test_no_audit_certifies_what_is_wrong(chunk):
    assert check_audits(range(chunk, 24, 2)) > 100


@pytest.mark.benchmark
def test_no_audit_certifies_what_is_wrong_in_five_hundred():
    assert check_audits(range(1000, 1500)) > 10_000


def test_every_lie_makes_an_audit():
    for lie in LIES:
        assert lie in hostile_audit(0, lie).description


@pytest.mark.parametrize("seed", [1071, 3023])
def test_a_span_proves_only_by_equations_that_an_end_could_break(seed):
    """Thirty units, a dozen on for an end: what is left of the span has hardly more equations than an end has unknowns.

    Ends that were no inputs fulfilled all of them to 1e-10, and were certified.
    """
    problem = hostile_audit(seed)
    audit = audited(problem, layers=["layers.0"], max_seconds=10)
    assert problem.lies_of(audit)[1] == []


def test_a_layer_behind_contradicts_single_inputs_as_well():
    """The first layer's gradient came scaled; one of nine inputs was certified too small, the whole next layer told."""
    problem = hostile_audit(20312)
    audit = audited(problem, max_effort=6)
    assert problem.lies_of(audit)[1] == []
    assert "contradicted by layer 'layers.1'" in audit["layers.0"].reason


@pytest.mark.slow
def test_inputs_that_are_all_too_small_are_not_propagated_back():
    """The first layer's gradient came scaled by 0.81, which each of 17 inputs was within ten expected errors of."""
    problem = hostile_audit(191158)
    audit = audited(problem)
    certified, lies = problem.lies_of(audit)
    assert lies == []
    assert certified >= 51  # the three layers behind it
    batch = audit["layers.0"].batch
    assert batch is None or not batch.certified.any()


def test_as_many_active_units_as_unknowns_prove_no_input():
    """Sixteen inputs, fifteen active units, the gradient scaled: a mixture of inputs has the activations of one."""
    problem = hostile_audit(1248)
    inverter = GradientInverter(ActivationDirections(max_starts=64), random_state=0)
    assert problem.lies_of(audited(problem, inverter=inverter, layers=["layers.0"], peel=False))[1] == []


@pytest.mark.parametrize("random_state", range(2))
def test_copies_of_units_prove_nothing_twice(random_state):
    """A third of the units are copies: what the span says of both is the same, and all of 31 inputs were wrong."""
    assert attack(300324, "dead and doubled units", random_state=random_state)[2] == []


def test_inputs_beside_one_that_is_none_are_not_moved_by_it():
    """Two that are 3 % apart came back as mixtures, and a fit of all at once moved the other thirteen by 10 errors."""
    assert attack(1300484)[2] == []


def test_a_batch_that_was_not_fitted_to_its_own_gradients_does_not_say_how_exact_it_is():
    """The last fit ended in a minimum beside the true one, and inputs were off by 240 expected errors."""
    problem = hostile_audit(30028)
    audit = audited(problem, max_seconds=20)
    certified, lies = problem.lies_of(audit)
    assert lies == []
    assert certified > 100


@pytest.mark.parametrize(
    ("seed", "layer"),
    [
        pytest.param(40119, "layers.1", id="bias gradient clipped, of which alone the scale comes"),
        pytest.param(40349, "layers.1", id="weight gradient scaled by 0.98, which few units tell"),
        pytest.param(50174, "layers.0", id="weight gradient scaled by 0.85, which the span of the next layer tells"),
        pytest.param(40423, "layers.2", id="a direction of which all equations hardly say anything"),
        pytest.param(110374, "layers.2", id="a penalty: all ends lie beside the span, and in line with one another"),
        pytest.param(140125, "layers.1", id="mixtures of inputs that differ at few units of LeakyReLU"),
        pytest.param(
            110428,
            "layers.0",
            id="stale layer behind: ends beside its span, which the rest does not tell",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_inputs_are_no_further_off_than_is_said(seed, layer):
    """All of these came back certified, and off by 11 to 200 expected errors and more."""
    problem = hostile_audit(seed)
    audit = audited(problem, layers=[layer], max_seconds=20)
    assert problem.lies_of(audit)[1] == []


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(112, id="weight gradient clipped, no pattern: the span tells the scale"),
        pytest.param(169, id="clipped, and an end beside an input, further from the span than its noise"),
        pytest.param(1237, id="sixteen that are repeated come back as two"),
        pytest.param(1273, id="as two, of which one is most of them"),
        pytest.param(1576, id="three pictures of seventeen come back as four"),
        pytest.param(1100242, id="one picture of seventeen comes back as four, with noise"),
    ],
)
def test_tokens_are_no_further_off_than_is_said(seed):
    """All came back certified, and off by 10 to 500 expected errors."""
    assert attack(seed, "tokens")[2] == []


@pytest.mark.slow
def test_digits_behind_a_network_in_training_are_no_further_off_than_is_said(raw_data):
    """Strokes on an empty ground: inputs have zeros of their own, and so have mixtures of two."""
    row = TABLES["frontier-raw"].rows["mnist-unit-20x200-2000"]
    assert row.run("activation", 1001, raw_data, Budget(seconds=20))["wrong"] == 0


@pytest.mark.parametrize("seed", range(4))
def test_zeros_that_two_inputs_share_in_one_ratio_prove_no_mixture(seed):
    """A stroke of one digit is an eighth of another's all along it: a mixture of the two has zeros there, all at once.

    One such was certified; what forbids it is that the column which is known by itself has other units on.
    """
    digits, labels = example.records()
    pick = np.random.default_rng(seed).choice(len(digits), 8, replace=False)
    inputs = digits[pick].flatten(1).double()
    inputs[1] = torch.where(inputs[0] > 0, inputs[0] / 8, inputs[1])
    model = fully_connected(64, width=100, random_state=seed).double()
    given = LayerGradient.from_model(model, client_gradient(model, inputs, labels[pick]))
    problem = LayerProblem.of(replace(given, next_weight_grad=None))
    columns = np.linalg.inv(inputs.numpy() @ problem.factors.right.T / problem.factors.singular_values)
    columns[:, 0] += columns[:, 1] / 8  # so that x1 - x0 / 8 comes back for the second, at the scale of one input
    hypothesis = Hypothesis(problem, columns / np.linalg.norm(columns, axis=0), np.ones(8, dtype=bool))
    batch = Assembly().of(hypothesis)
    np.testing.assert_allclose(7 / 8 * batch.inputs[1], inputs[1] - inputs[0] / 8, atol=1e-9)
    assert not batch.recovered[1]
    # Its zeros alone would prove it: more than chance, and they determine it.
    transposed = problem.factors.transposed
    direction = transposed.left.T @ batch.inputs[[1]].T / np.linalg.norm(batch.inputs[1])
    assert transposed.prove(direction, transposed.zeros(direction)).all()
