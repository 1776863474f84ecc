import numpy as np
import pytest
from torch import nn

from sparsedl_fl.crowded import CrowdedProblem, CrowdedSearch


@pytest.mark.parametrize("activation", [nn.ReLU, nn.SiLU, nn.Tanh])
def test_all_are_found(crowd, activation):
    inputs, _, _, given = crowd(activation=activation)
    problem = CrowdedProblem.of(given)
    found = CrowdedSearch().run(problem, random_state=0)
    recovered = problem.inputs(found.whitened)
    distances = np.abs(recovered[:, None] - inputs.double().numpy()).max(axis=2)
    assert len(recovered) == 24
    assert sorted(distances.argmin(axis=1)) == list(range(24))
    assert found.status.startswith("complete")
    assert found.n_successes >= 24


def test_a_cap_on_the_time_is_said(crowd):
    found = CrowdedSearch(n_starts=1, max_seconds=1e-6).run(CrowdedProblem.of(crowd()[3]), random_state=0)
    assert "cut short by the cap" in found.status


def test_inputs_that_are_known_are_confirmed_and_others_are_not(crowd):
    inputs, _, _, given = crowd()
    problem = CrowdedProblem.of(given)
    claimed = np.vstack([inputs[:5].double().numpy(), np.full((2, 6), 0.7)])
    assert len(CrowdedSearch().confirm(problem, claimed).whitened) in (5, 6, 7)  # a wrong one may be led to an input
    assert len(CrowdedSearch().confirm(problem, inputs.double().numpy()).whitened) == 24


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param(None, id="none"),
        pytest.param(np.zeros((3, 5)), id="of another length"),
        pytest.param(np.full((3, 6), np.nan), id="not finite"),
    ],
)
def test_inputs_that_cannot_be_those_of_the_layer_are_named(crowd, inputs):
    with pytest.raises(ValueError, match=r"inputs must be finite and of shape \(any number, 6\)"):
        CrowdedSearch().confirm(CrowdedProblem.of(crowd()[3]), inputs)
