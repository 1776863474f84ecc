import numpy as np
import pytest
from torch import nn

from sparsedl_fl.constraints.many_samples import ManySamplesProblem
from sparsedl_fl.directions import ActivationDirections
from sparsedl_fl.directions.more_samples_than_features import propose_samples
from sparsedl_fl.search.many_samples_search import confirm_many_samples


@pytest.mark.parametrize("activation", [nn.ReLU, nn.SiLU, nn.Tanh])
def test_all_are_found(many_samples, activation):
    inputs, _, _, given = many_samples(activation=activation)
    problem = ManySamplesProblem.of(given)
    found = propose_samples(problem, ActivationDirections(), random_state=0)
    recovered = problem.inputs(found.inputs)
    distances = np.abs(recovered[:, None] - inputs.double().numpy()).max(axis=2)
    assert len(recovered) == 24
    assert sorted(distances.argmin(axis=1)) == list(range(24))
    assert found.status.startswith("complete")
    assert found.n_successes >= 24


def test_a_cap_on_the_time_is_said(many_samples):
    found = propose_samples(
        ManySamplesProblem.of(many_samples()[3]), ActivationDirections(max_seconds=1e-6), random_state=0
    )
    assert "cut short by the cap" in found.status


def test_inputs_that_are_known_are_confirmed_and_others_are_not(many_samples):
    inputs, _, _, given = many_samples()
    problem = ManySamplesProblem.of(given)
    claimed = np.vstack([inputs[:5].double().numpy(), np.full((2, 6), 0.7)])
    assert len(confirm_many_samples(problem, claimed).inputs) in (5, 6, 7)  # a wrong one may be led to an input
    assert len(confirm_many_samples(problem, inputs.double().numpy()).inputs) == 24


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param(None, id="none"),
        pytest.param(np.zeros((3, 5)), id="of another length"),
        pytest.param(np.full((3, 6), np.nan), id="not finite"),
    ],
)
def test_inputs_that_cannot_be_those_of_the_layer_are_named(many_samples, inputs):
    with pytest.raises(ValueError, match=r"inputs must be finite and of shape \(any number, 6\)"):
        confirm_many_samples(ManySamplesProblem.of(many_samples()[3]), inputs)
