"""An input that does not activate a unit of its own column is off by about as much as that unit says."""

from types import SimpleNamespace

import numpy as np
import pytest

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.certify.contradicted import distances_to_own_pattern
from sparsedl_fl.certify.hypothesis import Hypothesis
from sparsedl_fl.certify.sent_back_columns import SentBackColumns
from sparsedl_fl.constraints.problem import LayerProblem
from tests.sparsedl_fl.certify.test_one_linear_piece import B, client

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def case_of(layer, inputs):
    """Return what the distances ask for: the batch's own columns, and inputs that may be others."""
    problem = LayerProblem.of(layer)
    own = np.linalg.inv((BATCH @ problem.factors.right.T) / problem.factors.singular_values)
    whitened = inputs @ problem.factors.right.T / problem.factors.singular_values
    is_active = problem.is_active(problem.at(whitened))
    errors = np.full(B, 1e-7), np.zeros((B, B)), np.zeros(B)
    return SimpleNamespace(
        hypothesis=Hypothesis(problem, own / np.linalg.norm(own, axis=0), np.ones(B, dtype=bool)),
        inputs=inputs,
        whitened=whitened,
        disaggregation=own,
        is_active=is_active,
        errors_by_columns=errors,
        columns=np.ones(B, dtype=bool),
        sent_back=SentBackColumns.none((1, B)),
    )


MODEL, BATCH, SENT = client(1, 10, is_same_label=False)
LAYER = LayerGradient.from_model(MODEL, SENT)


def test_the_batch_itself_is_contradicted_by_rounding_alone():
    assert distances_to_own_pattern(case_of(LAYER, BATCH.astype(float))).max() < 1e-5


@pytest.mark.parametrize("size", [0.05, 0.1, 0.3])
def test_one_that_was_moved_is_said_to_be_off_by_about_as_much(size):
    moved = BATCH.astype(float).copy()
    moved[3] += size * (moved[5] - moved[4])
    found = distances_to_own_pattern(case_of(LAYER, moved))
    off = np.sqrt(np.mean((moved[3] - BATCH[3]) ** 2))
    assert 0.1 * off < found[3] < 4 * off
    assert np.delete(found, 3).max() < 1e-5


def test_where_most_are_contradicted_the_weights_are_others():
    moved = BATCH + 0.1 * np.roll(BATCH, 1, axis=0)
    assert (distances_to_own_pattern(case_of(LAYER, moved.astype(float))) == 0).all()


@pytest.mark.parametrize("seed", range(6))
def test_two_of_other_labels_with_parallel_columns_are_as_far_off_as_expected(seed):
    """Of a layer alone nothing tells how large the gradient of one sample is: they come back as one beyond the two."""
    model, batch, sent = client(seed, 2, is_same_label=False, is_deep=True)
    layer = LayerGradient(
        weight=model[0].weight.detach().numpy(),
        weight_grad=sent["0.weight"].numpy(),
        bias=model[0].bias.detach().numpy(),
        bias_grad=sent["0.bias"].numpy(),
    )
    inverter = GradientInverter(random_state=0).fit(layer)
    errors = np.sqrt(np.mean((inverter.inputs_[:, None] - batch) ** 2, axis=2)).min(axis=1)
    allowed = np.hypot(inverter.uncertainty_, inverter.resolution_)
    assert (errors <= 4 * allowed)[inverter.recovered_].all()
