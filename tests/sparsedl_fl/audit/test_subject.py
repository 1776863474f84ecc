"""Large models: said before the work where memory does not hold it, cut at the cap, and left as they are."""

import numpy as np
import pytest
import torch

from sparsedl_fl import LayerGradient
from sparsedl_fl.audit import Verdict, audit_model, layer_attack, subject
from sparsedl_fl.cli import main
from sparsedl_fl.layers.bias_as_input import LayerGradientWithBias, gradient_with_bias, unit_of_bias, with_bias_as_input
from sparsedl_fl.layers.blocks import OutOfTime, column_blocks, cut_at
from sparsedl_fl.layers.running_model import in_double
from sparsedl_fl.simulation import client_gradient, fully_connected


def client(batch_size=3, n_inputs=20, width=40):
    model = fully_connected(n_inputs, width=width, random_state=0)
    batch = torch.randn(batch_size, n_inputs, generator=torch.Generator().manual_seed(0))
    return model, client_gradient(model, batch, torch.arange(batch_size)), batch


@pytest.fixture
def small_chunks(monkeypatch):
    """Let layers of these tests count as large."""
    for module in (subject, layer_attack):
        monkeypatch.setattr(module, "CHUNK_ENTRIES", 100)
    monkeypatch.setattr("sparsedl_fl.layers.blocks.CHUNK_ENTRIES", 100)


def test_a_model_too_large_is_said_before_the_work(monkeypatch):
    model, gradient, _ = client()
    total = sum(tensor.nbytes for tensor in model.parameters())
    monkeypatch.setattr(subject, "_available", lambda: 6 * total - 1)
    monkeypatch.setattr("sparsedl_fl.audit.attack.trace_model", lambda *_: pytest.fail("work was begun"))
    with pytest.raises(ValueError, match=r"too large for this machine.*GB.*layers"):
        audit_model(model, gradient)


def test_fewer_layers_take_less(monkeypatch):
    model, gradient, batch = client()
    total = sum(tensor.nbytes for tensor in model.parameters())
    monkeypatch.setattr(subject, "_available", lambda: 6 * total - 1)
    found = audit_model(model, gradient, layers=iter([0]), example=batch[:1])
    assert found.verdict is Verdict.RECOVERED
    name = found.layers[0].name
    subject.check_room(model, [name])
    monkeypatch.setattr(subject, "_available", lambda: 2 * total)
    with pytest.raises(ValueError, match="name fewer"):
        subject.check_room(model, [name])


def test_memory_that_is_not_known_stops_nobody(monkeypatch):
    monkeypatch.setattr(subject, "_available", lambda: None)
    subject.check_room(client()[0], None)


def test_the_command_line_says_it_in_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(subject, "_available", lambda: 0)
    text = "import torch\ndef build():\n    torch.manual_seed(0)\n    return torch.nn.Linear(4, 3)\n"
    (tmp_path / "model.py").write_text(text)
    update = tmp_path / "update.npz"
    np.savez(update, weight=np.ones((3, 4), np.float32), bias=np.ones(3, np.float32))
    with pytest.raises(SystemExit) as ended:
        main(["audit", f"{tmp_path / 'model.py'}:build", str(update)])
    assert ended.value.code == 2
    assert "too large for this machine" in capsys.readouterr().err


def test_work_on_a_large_matrix_is_cut_between_blocks(small_chunks):
    large, small = np.ones((10, 20)), np.ones((5, 5))
    with cut_at(0.0):
        assert len(list(column_blocks(small))) == 1
        with pytest.raises(OutOfTime):
            list(column_blocks(large))
    assert list(column_blocks(large))


def test_a_layer_that_is_cut_is_no_conclusion(monkeypatch, small_chunks):
    model, gradient, batch = client()
    monkeypatch.setattr(layer_attack.LayerAttack, "latest", 0.0)
    found = audit_model(model, gradient, layers=[0], example=batch[:1], max_seconds=1000)
    assert found.verdict is Verdict.OUT_OF_RANGE
    assert "too large for max_seconds='1000'" in found.layers[0].why_open
    assert "40 x 20" in found.layers[0].why_open
    assert not found.is_complete


def test_the_same_comes_back_where_layers_are_large_and_the_model_stays(monkeypatch, small_chunks):
    model, gradient, batch = client()
    before = [tensor.clone() for tensor in (*model.parameters(), *gradient.values())]
    found = audit_model(model, gradient, example=batch[:1])
    assert found.verdict is Verdict.RECOVERED
    assert len(found.samples) >= len(batch)
    after = (*model.parameters(), *gradient.values())
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_layers_that_take_too_much_are_not_kept(monkeypatch, small_chunks):
    model, gradient, batch = client()
    kept = []
    one = subject.Subject.layer_gradient

    def counted(self, name, sums=None):
        found = one(self, name, sums)
        kept.append(len(self._layers))
        return found

    monkeypatch.setattr(subject.Subject, "layer_gradient", counted)
    monkeypatch.setattr(subject.Subject, "_most_bytes", 1)
    audit_model(model, gradient, example=batch[:1])
    assert set(kept) == {1}


def test_a_large_tensor_of_the_audit_is_not_copied(small_chunks):
    model, gradient, _ = client()
    weight = next(model.parameters()).detach()
    bias = torch.ones(len(weight))
    shared = subject.Shared(weight)
    given = LayerGradient(weight=shared, bias=bias, weight_grad=torch.ones_like(weight), bias_grad=bias)
    assert np.shares_memory(given.weight, weight.numpy())
    copied = LayerGradient(weight=weight, bias=bias, weight_grad=torch.ones_like(weight), bias_grad=bias)
    assert not np.shares_memory(copied.weight, weight.numpy())


def test_the_bias_as_an_input_is_what_the_constructor_makes_of_it():
    model, gradient, _ = client()
    given = LayerGradient.from_model(model, gradient)
    made = with_bias_as_input(given)
    assert isinstance(made, LayerGradientWithBias)
    assert made.constant_input == unit_of_bias(given)
    assert made.weight.shape == made.weight_grad.shape == (40, 21)
    np.testing.assert_array_equal(made.weight_grad, gradient_with_bias(given))
    np.testing.assert_array_equal(made.weight_grad[:, -1], (made.constant_input * given.bias_grad).astype(np.float32))
    assert made.tail is given.tail
    assert made.layers is given.layers


def test_a_copy_in_double_precision_shares_nothing():
    model = fully_connected(5, width=6, random_state=0).double()
    copied = in_double(model)
    for own, other in zip(model.parameters(), copied.parameters(), strict=True):
        assert torch.equal(own, other)
        assert own.data_ptr() != other.data_ptr()
    assert all(tensor.dtype == torch.float64 for tensor in copied.parameters())
