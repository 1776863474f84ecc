"""Whoever calls, in whatever units, the same comes back: scale, state of the process, tensors that are spoilt."""

import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl.arrays import as_tensor
from sparsedl.linalg import least_squares
from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.audit import audit_model
from sparsedl_fl.federation import LeakPolicy
from sparsedl_fl.layers.formats import rounding_noise
from sparsedl_fl.models import inspect_model
from sparsedl_fl.simulation import client_gradient, fedavg_update


def problem(activation=nn.ReLU, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(40, 80), activation(), nn.Linear(80, 60), activation(), nn.Linear(60, 10))
        batch = torch.randn(6, 40)
    return model, batch, client_gradient(model, batch, torch.arange(6))


def numbers_of(model, gradients, **settings):
    found = GradientInverter(random_state=0, **settings).fit(LayerGradient.from_model(model, gradients))
    return found.recovered_.all(), found.inputs_.tobytes(), found.uncertainty_.tobytes(), found.labels_.tobytes()


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("power", [-1000, -60, 900])
def test_a_power_of_two_changes_no_digit(activation, power):
    model, _, gradients = problem(activation)
    scaled = {name: torch.ldexp(tensor.double(), torch.tensor(power)) for name, tensor in gradients.items()}
    plain = {name: tensor.double() for name, tensor in gradients.items()}
    assert numbers_of(model, scaled) == numbers_of(model, plain)
    assert numbers_of(model, plain)[0]


def test_a_noise_level_goes_along_with_the_scale():
    model, _, gradients = problem()
    noise = 1e-7 * max(float(tensor.abs().max()) for tensor in gradients.values())
    noisy = {name: tensor.double() + noise * torch.randn(tensor.shape, dtype=torch.float64,
                                                         generator=torch.Generator().manual_seed(1))
             for name, tensor in gradients.items()}  # fmt: skip
    scaled = {name: tensor * 2.0**-500 for name, tensor in noisy.items()}
    expected = numbers_of(model, noisy, batch_size=6, noise_level=noise)
    assert numbers_of(model, scaled, batch_size=6, noise_level=noise * 2.0**-500) == expected


@pytest.mark.parametrize("power", [-20, 0, 14])
def test_half_precision_is_known_in_any_units(power):
    half = torch.randn(30, 40, generator=torch.Generator().manual_seed(0)).mul(1e-3).half().double().numpy()
    rounding = rounding_noise(np.ldexp(half, power))
    np.testing.assert_array_equal(rounding, np.ldexp(rounding_noise(half), power))
    assert rounding is not None


@pytest.mark.parametrize("power", [-950, 0])
def test_a_whole_audit_at_a_tiny_scale(power):
    model, _, gradients = problem()
    scaled = {name: torch.ldexp(tensor.double(), torch.tensor(power)) for name, tensor in gradients.items()}
    found = audit_model(model, scaled)
    assert [layer.n_certified for layer in found.layers] == [6, 6, 6]
    assert found.replay.is_match


def default_dtype(dtype):
    @contextmanager
    def block():
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    return block


@contextmanager
def default_device():
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


STATES = {
    "float64": default_dtype(torch.float64),
    "float16": default_dtype(torch.float16),
    "meta": default_device,
    "errors": lambda: np.errstate(all="raise"),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "deterministic": deterministic,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.Hardtanh])
def test_the_state_of_the_process_changes_nothing_and_is_left_alone(activation, state):
    model, batch, gradients = problem(activation)
    labels = torch.arange(6)

    def all_of_it():
        again = client_gradient(model, batch, labels)
        rows = [(row.name, row.behind, row.attack) for row in inspect_model(model)]
        return rows, [tensor.numpy().tobytes() for tensor in again.values()], numbers_of(model, gradients)

    expected, seed = all_of_it(), torch.get_rng_state()
    with STATES[state]():
        modes = torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), np.geterr()
        assert all_of_it() == expected
        after = torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), np.geterr()
    assert after == modes
    assert torch.equal(seed, torch.get_rng_state())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_blocking_filter_blocks_whatever_the_default_dtype():
    model, batch, _ = problem()
    before, after = fedavg_update(model, batch, torch.arange(6), learning_rate=0.1)
    with STATES["float64"]():
        policy = LeakPolicy(model, 0.1, mode="block", n_steps=1)
        with pytest.warns(UserWarning, match="blocked: RECOVERED"):
            checked = policy.check(before, {name: t.numpy() for name, t in after.items()}, client=0, server_round=0)
    assert checked.is_blocked


def test_threads_share_a_model():
    model, _, gradients = problem(nn.Tanh)
    expected, found = numbers_of(model, gradients), [None] * 4

    def run(index):
        found[index] = numbers_of(model, gradients)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
    assert model.training


def test_numbers_lie_as_torch_puts_its_own_and_least_squares_agree():
    buffer = np.arange(40.0)
    assert all(as_tensor(buffer[start : start + 8]).data_ptr() % 64 == 0 for start in range(8))
    A, B = (torch.randn(15, k, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) for k in (14, 24))
    found = set()
    for start in range(50):
        _ = [torch.randint(-5, 5, (n,), dtype=torch.int32) for n in range(1, 40)]
        found.add(least_squares(A, B + 0 * start).numpy().tobytes())
    assert len(found) == 1
    assert least_squares(A, B[:, :0]).shape == (14, 0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(("name", "lost"), [("0.weight", 0), ("2.bias", None), ("4.weight", 2)])
def test_a_spoilt_tensor_counts_as_missing_and_is_named(name, lost, value):
    model, _, gradients = problem()
    gradients = {key: tensor.clone() for key, tensor in gradients.items()}
    gradients[name].view(-1)[3] = value
    with pytest.warns(UserWarning, match=f"NaN or infinity in '{name}'"):
        found = audit_model(model, gradients)
    assert [layer.n_certified for layer in found.layers] == [0 if place == lost else 6 for place in range(3)]
    assert found.context["missing"] == [name]
    assert lost is None or name in found.layers[lost].reason  # without its bias a layer follows from another


def test_nothing_left_and_a_spoilt_model_are_errors():
    model, _, gradients = problem()
    with pytest.raises(ValueError, match="every gradient contains NaN or infinity"):
        audit_model(model, {name: tensor * np.nan for name, tensor in gradients.items()})
    model[2].bias.data[0] = np.nan
    for call in (audit_model, LayerGradient.from_model):
        with pytest.raises(ValueError, match="the model's '2.bias' contains NaN or infinity"):
            call(model, gradients)
