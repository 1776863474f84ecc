import numpy as np
import pytest
import torch

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.layers.formats import rounding_noise
from sparsedl_fl.lowrank.factorization import factorize
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.simulation import WIRES, client_gradient, fully_connected

FORMATS = ["float16", "bfloat16", "int8", "int8 by row"]


def gradients_of(batch_size, width=400, seed=0, n_inputs=600):
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(batch_size, n_inputs, generator=generator)
    model = fully_connected(n_inputs, width=width, random_state=seed)
    return batch, model, client_gradient(model, batch, torch.arange(batch_size) % 10)


@pytest.mark.parametrize("name", [*FORMATS, "int4"])
def test_the_size_of_the_rounding_is_read_off(name):
    _, _, gradients = gradients_of(8)
    clean = gradients["0.weight"]
    coarse = WIRES[name](clean).float()
    noise = rounding_noise(coarse.numpy())
    true = (coarse - clean).double().square().mean().sqrt()
    assert np.sqrt(np.mean(noise**2)) == pytest.approx(float(true), rel=0.35)
    assert np.array_equal(noise, rounding_noise(coarse.double().numpy()))


def test_single_precision_is_no_coarse_format():
    _, _, gradients = gradients_of(8)
    assert rounding_noise(gradients["0.weight"].numpy()) is None
    assert rounding_noise(gradients["0.weight"].double().numpy() / 3) is None


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("batch_size", [2, 3, 4, 16, 100])
def test_the_rank_is_found_behind_the_rounding(name, batch_size):
    _, model, gradients = gradients_of(batch_size)
    given = LayerGradient.from_model(model, {key: WIRES[name](value) for key, value in gradients.items()})
    assert factorize(given).batch_size == batch_size


@pytest.mark.parametrize(
    ("name", "share"), [("float16", 1e-3), ("bfloat16", 1e-2), ("int8", 0.1), ("int8 by row", 0.05)]
)
def test_a_coarse_gradient_gives_the_batch_away(name, share):
    batch, model, gradients = gradients_of(12)
    coarse = {key: WIRES[name](value) for key, value in gradients.items()}
    inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, coarse))
    assert inverter.batch_size_ == 12
    assert inverter.recovered_.all()
    match = match_batches(batch, inverter.inputs_)
    errors = np.sqrt(match.squared_errors)
    assert errors.max() < share
    assert np.all(errors < 4 * inverter.uncertainty_[match.order])
    assert np.all(errors > inverter.uncertainty_[match.order] / 4)


@pytest.mark.parametrize("wire", ["int8", "int8 by row", "int4"])
@pytest.mark.parametrize("n_batch", [2, 6, 20])
def test_the_rank_of_few_quantised_columns_is_the_batch(wire, n_batch):
    """Rows of 60 entries hold nearly as many levels as entries, and lie on their grid all the same."""
    inputs = torch.randn(n_batch, 60, generator=torch.Generator().manual_seed(n_batch))
    model = fully_connected(60, width=120, random_state=n_batch)
    gradients = client_gradient(model, inputs, torch.arange(n_batch) % 10)
    sent = {name: WIRES[wire](gradient) for name, gradient in gradients.items()}
    assert factorize(LayerGradient.from_model(model, sent)).batch_size == n_batch


@pytest.mark.parametrize("n_columns", [5, 20, 60, 150])
def test_few_numbers_in_single_precision_lie_on_no_grid(n_columns):
    rng = np.random.default_rng(n_columns)
    assert rounding_noise(rng.standard_normal((40, n_columns)).astype(np.float32).astype(float)) is None
