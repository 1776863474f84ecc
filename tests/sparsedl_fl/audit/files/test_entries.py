"""Which part of a file fits a model: checkpoints, lists of arrays, prefixes, counters."""

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl.audit.files import load_model, load_update

MODEL = """
from torch import nn


def make():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def plain():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
"""


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    return f"{tmp_path}/mine.py:make"


@pytest.fixture
def state(spec):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return load_model(spec).state_dict()


def is_loaded(spec, path, state, **options):
    found = load_model(spec, path, **options).state_dict()
    return all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_lists_of_arrays_are_in_the_order_of_the_state_or_of_the_parameters(spec, state, tmp_path):
    arrays = [tensor.numpy() for tensor in state.values()]
    np.savez(tmp_path / "flower.npz", *arrays)
    torch.save(list(state.values()), tmp_path / "list.pt")
    np.savez(tmp_path / "flat.npz", *[np.atleast_1d(array) for array in arrays])  # counters of another shape
    np.savez(tmp_path / "named.npz", **{name: np.atleast_1d(array) for name, array in zip(state, arrays, strict=True)})
    for name in ("flower.npz", "list.pt", "flat.npz", "named.npz"):
        assert is_loaded(spec, tmp_path / name, state)
    model = load_model(spec)
    gradients = {name: torch.randn_like(tensor) for name, tensor in model.named_parameters()}
    np.savez(tmp_path / "gradients.npz", *[tensor.numpy() for tensor in gradients.values()])
    sent = load_update(model, tmp_path / "gradients.npz").gradients
    assert all(torch.equal(sent[name], tensor) for name, tensor in gradients.items())
    np.savez(tmp_path / "few.npz", *arrays[:3])
    with pytest.raises(ValueError, match="has 3 arrays, and the model 9 in its state"):
        load_update(model, tmp_path / "few.npz")
    np.savez(tmp_path / "turned.npz", *arrays[::-1])
    with pytest.raises(ValueError, match=r"'0.weight' of shape \(3,\)"):
        load_update(model, tmp_path / "turned.npz")


def test_the_running_statistics_are_no_counters(spec, state, tmp_path):
    parameters = [tensor.numpy() for name, tensor in state.items() if "running" not in name and "num_" not in name]
    np.savez(tmp_path / "x.npz", *parameters)
    with pytest.raises(ValueError, match="lacks the tensor '1.running_mean'"):
        load_model(spec, tmp_path / "x.npz")
    uncounted = {name: tensor for name, tensor in state.items() if "num_" not in name}
    torch.save(uncounted, tmp_path / "x.pt")
    assert is_loaded(spec, tmp_path / "x.pt", uncounted)


def test_a_checkpoint_is_read_for_the_entry_that_fits(spec, state, tmp_path):
    optimizer = {"state": {0: {"exp_avg": torch.ones(8, 6)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    average = {name: tensor + 1 for name, tensor in state.items()}
    path = tmp_path / "x.pt"
    for checkpoint in (
        {"model_state_dict": state, "epoch": 3, "optimizer_state_dict": optimizer},
        {"state": {"model": state, "loss": torch.tensor(0.5)}, "args": ["a"]},
        {"state_dict": {f"net.{name}": tensor for name, tensor in state.items()}, "pytorch-lightning_version": "2"},
        {**state, "epoch": 3},
        {"parameters": list(state.values())},
    ):
        torch.save(checkpoint, path)
        assert is_loaded(spec, path, state)
    torch.save({"model": state, "ema": average, "epoch": 3}, path)
    with pytest.raises(ValueError, match=r"several entries that fit the model, \['ema', 'model'\]: name one by key"):
        load_model(spec, path)
    assert is_loaded(spec, path, average, key="ema")
    with pytest.raises(ValueError, match=r"no entry 'teacher'; it has \['model', 'ema'\]"):
        load_model(spec, path, key="teacher")
    torch.save({"a": {"x": torch.ones(2)}, "b": {"y": torch.ones(3)}}, path)
    with pytest.raises(ValueError, match=r"no entry that fits the model: name one by key; it has \['a', 'b'\]"):
        load_model(spec, path)
    torch.save({"epoch": 3}, path)
    with pytest.raises(ValueError, match=r"must hold tensors by name, or a list of them; it has \['epoch'\]"):
        load_model(spec, path)


@pytest.mark.parametrize("prefix", ["net.", "encoder.model.", "module.net."])
def test_a_prefix_that_all_names_have_is_no_matter(spec, state, tmp_path, prefix):
    torch.save({prefix + name: tensor for name, tensor in state.items()}, tmp_path / "x.pt")
    assert is_loaded(spec, tmp_path / "x.pt", state)


def test_a_prefix_of_the_models_own_names_is_no_matter(spec, state, tmp_path):
    (tmp_path / "wrapped.py").write_text(MODEL + "\n\ndef wrapped():\n    return nn.ModuleDict({'net': make()})\n")
    torch.save(dict(state), tmp_path / "x.pt")
    found = load_model(f"{tmp_path}/wrapped.py:wrapped", tmp_path / "x.pt").state_dict()
    assert torch.equal(found["net.0.weight"], state["0.weight"])


def test_a_prefix_of_some_names_or_of_several_readings_is_an_error(spec, state, tmp_path):
    names = list(state)
    partly = {f"net.{name}" if name != names[-1] else f"other.{name}": tensor for name, tensor in state.items()}
    torch.save(partly, tmp_path / "partly.pt")
    with pytest.raises(ValueError, match="'net.0.weight' that the model lacks"):
        load_model(spec, tmp_path / "partly.pt")
    torch.save({"x." + name: tensor for name, tensor in {"a.b": torch.ones(2)}.items()}, tmp_path / "none.pt")
    with pytest.raises(ValueError, match="'x.a.b' that the model lacks"):
        load_model(spec, tmp_path / "none.pt")

    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.weight = nn.Linear(4, 4, bias=False), nn.Parameter(torch.zeros(4, 4))

    torch.save({"x.a.weight": torch.ones(4, 4)}, tmp_path / "two.pt")
    with pytest.raises(ValueError, match="several prefixes of its names"):
        load_update(Nested(), tmp_path / "two.pt")
