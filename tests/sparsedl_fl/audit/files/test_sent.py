"""What users have on disk: safe formats only, and a clear word where it is not what it should be."""

import pickle

import pytest
import torch
from safetensors.torch import save_file

from sparsedl_fl.audit import example
from sparsedl_fl.audit.files import load_model, load_tensors, load_update
from sparsedl_fl.simulation import SimulatedClient

SPEC = "sparsedl_fl.audit.example:model"


@pytest.fixture
def model():
    return load_model(SPEC, example.WEIGHTS)


def saved(tensors, path):
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
    return path


def test_a_model_from_a_file_of_ones_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from torch import nn\ndef make():\n    return nn.Linear(3, 2)\nmodule = nn.Linear(2, 2)\nx = 3\n")
    assert load_model(f"{file}:make").in_features == 3
    assert load_model(f"{file}:module").in_features == 2
    for spec, message in [
        (f"{file}:none", "has no 'none'"),
        (f"{file}:x", "must make a torch.nn.Module"),
        ("no.such.module:make", "cannot be imported"),
        (str(tmp_path / "none.py:make"), "there is no file"),
        ("nonsense", "package.module:name"),
    ]:
        with pytest.raises(ValueError, match=message):
            load_model(spec)


def test_pickles_that_could_run_code_are_refused(tmp_path):
    torch.save({"model": pickle.Pickler}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match="is refused"):
        load_tensors(tmp_path / "evil.pt")
    torch.save({"a": torch.ones(2)}, tmp_path / "good.pt")
    assert load_tensors(tmp_path / "good.pt")["a"].tolist() == [1, 1]
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    for name, message in [("none.pt", "no file"), ("broken.safetensors", "no safetensors file"), ("x.npz", "no file")]:
        with pytest.raises(ValueError, match=message):
            load_tensors(tmp_path / name)
    (tmp_path / "x.csv").write_bytes(b"")
    with pytest.raises(ValueError, match="must be a .safetensors"):
        load_tensors(tmp_path / "x.csv")


def test_what_is_not_of_the_same_model_is_named(model, tmp_path):
    gradients = load_tensors(example.UPDATE)
    wrong = {
        "lacks": ({name: gradients[name] for name in gradients} | {"7.weight": torch.ones(2)}, "'7.weight'"),
        "shape": (gradients | {"3.weight": torch.ones(3, 3)}, "'3.weight' of shape"),
    }
    for name, (tensors, message) in wrong.items():
        with pytest.raises(ValueError, match=message):
            load_update(model, saved(tensors, tmp_path / f"{name}.safetensors"))
    with pytest.raises(ValueError, match="lacks the tensor"):
        load_model(SPEC, saved({"1.weight": gradients["1.weight"]}, tmp_path / "part.safetensors"))


@pytest.mark.parametrize("kind", ["weights", "delta"])
def test_weights_after_training_are_told_from_gradients(model, tmp_path, kind):
    gradients = load_update(model, example.UPDATE).gradients
    state = {f"module.{name}": tensor - 0.1 * gradients[name] for name, tensor in model.state_dict().items()}
    state["module.counter"] = torch.tensor(3)
    if kind == "delta":
        state = {name: -0.1 * tensor for name, tensor in gradients.items()}
    else:
        del state["module.counter"]
    path = saved(state, tmp_path / "update.safetensors")
    with pytest.raises(ValueError, match="learning rate is needed"):
        load_update(model, path, kind="auto" if kind == "weights" else kind)
    sent = load_update(model, path, kind="auto" if kind == "weights" else kind, learning_rate=0.1, n_steps=1)
    assert sent.kind == kind
    assert sent.learning_rate is None
    torch.testing.assert_close(sent.gradients["1.weight"].float(), gradients["1.weight"], atol=1e-5, rtol=1e-3)
    assert load_update(model, path, kind=kind, learning_rate=0.1).learning_rate == 0.1


def test_buffers_and_counters_in_a_state_are_no_matter(tmp_path):
    file = tmp_path / "normed.py"
    file.write_text(
        "from torch import nn\ndef make():\n"
        "    return nn.Sequential(nn.Linear(20, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 5)).eval()\n"
    )
    model = load_model(f"{file}:make")
    sent = SimulatedClient(batch_size=4, n_epochs=2).update(model, torch.randn(4, 20), torch.arange(4))
    after = model.state_dict() | {
        name: (tensor - 0.01 * sent.gradients[name]).float() for name, tensor in model.named_parameters()
    }
    path = saved(after, tmp_path / "after.safetensors")
    loaded = load_update(model, path, learning_rate=0.01)
    assert set(loaded.gradients) == dict(model.named_parameters()).keys()


def test_frozen_parameters_are_no_part_of_an_update_unless_they_moved(model, tmp_path):
    gradients = dict(load_update(model, example.UPDATE).gradients)
    model[3].requires_grad_(False)
    after = {name: tensor - 0.1 * gradients[name] for name, tensor in model.state_dict().items()}
    path = tmp_path / "after.safetensors"
    client = {"kind": "weights", "learning_rate": 0.1, "n_steps": 1}
    assert set(load_update(model, saved(after, path), **client).gradients) == set(gradients)
    after |= {name: tensor for name, tensor in model.state_dict().items() if name.startswith("3.")}
    assert "3.weight" not in load_update(model, saved(after, path), **client).gradients
    sent = {name: 0 * tensor if name.startswith("3.") else tensor for name, tensor in gradients.items()}
    assert "3.weight" not in load_update(model, saved(sent, path)).gradients
