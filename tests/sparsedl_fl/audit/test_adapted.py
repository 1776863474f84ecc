"""Updates of adapters: the whole gradient follows from both factors, or the audit says why it does not."""

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl.audit import Verdict, audit_model, recover_text
from sparsedl_fl.audit.example import records
from sparsedl_fl.audit.text import reach_of_text
from sparsedl_fl.federation import check_update
from sparsedl_fl.models import inspect_model

RANK = 12


class Adapted(nn.Module):
    """Names are those of PEFT."""

    def __init__(self, base, rank=RANK, std=0.05):
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})
        nn.init.normal_(self.lora_B["default"].weight, std=std)

    def forward(self, x):
        return self.base_layer(x) + 2 * self.lora_B["default"](self.lora_A["default"](x))


def gradient_of(model, inputs, labels):
    sent = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    loss = nn.functional.cross_entropy(model(inputs), labels)
    return dict(zip(sent, torch.autograd.grad(loss, list(sent.values())), strict=True))


def client(batch, *, has_bias=False, std=0.05, make=nn.ReLU, seed=0):
    """Return a perceptron with two adapted layers, records, and its gradient."""
    torch.manual_seed(seed)
    layers = [Adapted(nn.Linear(64, 120), std=std), make(), Adapted(nn.Linear(120, 100), std=std), make()]
    for layer in layers[::2]:
        layer.base_layer.bias.requires_grad_(has_bias)
    model = nn.Sequential(*layers, nn.Linear(100, 10))
    digits, labels = records()
    pick = np.random.default_rng(seed).choice(len(digits), batch, replace=False)
    inputs = digits[pick].flatten(1)
    return model, inputs, gradient_of(model, inputs, labels[pick])


def worst_error(layer, inputs):
    """Return the largest error of a certified input over that expected."""
    found, certified = layer.batch.inputs, layer.batch.certified
    away = np.sqrt(np.mean((found[certified][:, None] - inputs.double().numpy()) ** 2, axis=2)).min(axis=1)
    return (away / layer.batch.errors[certified]).max()


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("make", "batch"), [(nn.ReLU, 8), (nn.GELU, 4)])
def test_a_batch_of_at_most_the_rank_comes_back_whole(make, batch, has_bias):
    model, inputs, gradients = client(batch, has_bias=has_bias, make=make)
    audit = audit_model(model, gradients)
    assert audit.verdict is Verdict.RECOVERED
    assert audit["0"].n_certified == batch
    assert worst_error(audit["0"], inputs) < 3
    assert "2 adapters (LoRA)" in audit.notes[0]


def test_a_larger_batch_is_out_of_range_and_the_reason_counts():
    model, _, gradients = client(RANK + 4)
    audit = audit_model(model, gradients)
    assert audit["0"].verdict is Verdict.OUT_OF_RANGE
    assert "rank 12" in audit["0"].reason


def test_as_many_as_the_rank_are_told_by_the_bias():
    model, inputs, gradients = client(RANK, has_bias=True)
    layer = audit_model(model, gradients)["0"]
    assert layer.n_certified == RANK, layer.reason
    assert worst_error(layer, inputs) < 3


def test_before_the_first_step_each_input_shows_as_many_numbers_as_the_rank():
    model, _, gradients = client(4, std=0.0)
    layer = audit_model(model, gradients)["0"]
    assert layer.verdict is Verdict.OUT_OF_RANGE
    assert "only 12 numbers show" in layer.reason
    assert "only 12 numbers show" in inspect_model(model)[0].obstacle


def test_several_local_steps_change_both_factors():
    model, _, gradients = client(4)
    layer = audit_model(model, gradients, learning_rate=0.1)["0"]
    assert layer.verdict is Verdict.OUT_OF_RANGE
    assert "several local steps" in layer.reason


def test_names_may_be_those_of_peft_s_files():
    model, _, gradients = client(4)
    assert any(".default." in name for name in gradients)
    short = {name.replace(".default", ""): tensor for name, tensor in gradients.items()}
    assert audit_model(model, short)["0"].n_certified == 4


def test_inspection_counts_by_the_rank():
    model, _, _ = client(4)
    rows = {row.name: row for row in inspect_model(model)}
    assert rows["0"].largest_batch == RANK
    assert "adapters (LoRA) of rank 12" in rows["0"].behind
    assert not any("lora" in name for name in rows)


def test_what_the_client_did_not_send_is_said():
    model, _, gradients = client(4)
    sent = {name: tensor for name, tensor in gradients.items() if "0.lora_B" not in name}
    assert audit_model(model, sent)["0"].verdict is Verdict.OUT_OF_RANGE


class Words(nn.Module):
    """Tokens and positions, an adapted layer, a head."""

    def __init__(self, rank=24, std=0.2):
        super().__init__()
        self.words, self.places = nn.Embedding(200, 32), nn.Embedding(12, 32)
        self.hidden, self.head = Adapted(nn.Linear(32, 64), rank, std), nn.Linear(64, 3)
        self.words.requires_grad_(False)
        self.places.requires_grad_(False)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(torch.tanh(self.hidden(x)).mean(dim=1))


def test_tokens_show_up_to_the_rank():
    torch.manual_seed(0)
    model, ids = Words(), torch.randint(200, (1, 10))
    gradients = gradient_of(model, ids, torch.tensor([1]))
    text = recover_text(model, gradients, ids)
    assert [list(sentence.tokens) for sentence in text.sentences] == ids.tolist(), str(text)
    assert reach_of_text(model, ids).limit == 24 - (32 - reach_of_text(Words(32), ids).limit)
    assert "10 of 10 tokens" in audit_model(model, gradients, example=ids)["hidden"].reason


def test_a_fresh_adapter_shows_no_text():
    model, ids = Words(std=0.0), torch.randint(200, (1, 10))
    assert reach_of_text(model, ids).limit == 0


@pytest.mark.parametrize("sent", ["whole states", "adapters as PEFT saves them"])
def test_a_round_of_a_federation(sent):
    model, inputs, gradients = client(4)
    before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    after = {name: tensor - 0.1 * gradients[name] if name in gradients else tensor for name, tensor in before.items()}
    if sent != "whole states":
        before, after = ({name.replace(".default", ""): state[name] for name in gradients} for state in (before, after))
    audit = check_update(model, before, after, learning_rate=0.1, n_steps=1)
    assert audit.verdict is Verdict.RECOVERED
    assert audit["0"].n_certified == 4
    assert worst_error(audit["0"], inputs) < 3


def test_a_bias_of_zeros_counts_as_frozen():
    model, inputs, gradients = client(4)
    zeros = {f"{place}.base_layer.bias": torch.zeros_like(model[place].base_layer.bias) for place in (0, 2)}
    assert audit_model(model, gradients | zeros)["0"].n_certified == 4
