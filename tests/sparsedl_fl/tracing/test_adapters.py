"""Adapters beside frozen layers: found by what a module computes, and merged."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl.tracing.adapters import AdaptedLinear, merge_adapters
from sparsedl_fl.tracing.naming import with_names_of


class OfModules(nn.Module):
    """As PEFT has them: two layers in dictionaries, by the name of the adapter."""

    def __init__(self, n, m, rank=3, bias=True):
        super().__init__()
        self.base_layer = nn.Linear(n, m, bias=bias).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(n, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, m, bias=False)})
        self.lora_dropout = nn.ModuleDict({"default": nn.Dropout(0.5)})

    def forward(self, x):
        return self.base_layer(x) + 4 * self.lora_B["default"](self.lora_A["default"](self.lora_dropout["default"](x)))


class OfProducts(nn.Module):
    """All matrices stored as (inputs, outputs)."""

    def __init__(self, n, m, rank=3):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, m), requires_grad=False)
        self.offset = nn.Parameter(torch.randn(m))
        self.down, self.up = nn.Parameter(torch.randn(n, rank)), nn.Parameter(torch.randn(rank, m))

    def forward(self, x):
        return x @ self.weight + self.offset - 0.5 * (x @ self.down @ self.up)


class OfOneClass(nn.Linear):
    def __init__(self, n, m, rank=3):
        super().__init__(n, m, bias=False)
        self.a, self.b = nn.Parameter(torch.randn(rank, n)), nn.Parameter(torch.randn(m, rank))
        self.weight.requires_grad_(False)

    def forward(self, x):
        dropped = functional.dropout(x, 0.5, self.training)
        return functional.linear(x, self.weight) + functional.linear(functional.linear(dropped, self.a), self.b)


class Gated(OfOneClass):
    def forward(self, x):
        return functional.linear(x, self.weight) * (1 + functional.linear(functional.linear(x, self.a), self.b))


@pytest.mark.parametrize("make", [OfModules, OfProducts, OfOneClass])
@pytest.mark.parametrize("sizes", [(8, 8), (8, 5), (5, 8)])
def test_a_merged_model_computes_the_same(make, sizes):
    model = nn.Sequential(make(*sizes), nn.ReLU(), nn.Linear(sizes[1], 2)).double()
    merged, adapters = merge_adapters(model)
    assert [adapter.name for adapter in adapters] == ["0"]
    assert isinstance(merged[0], AdaptedLinear)
    assert merged[0].rank == 3
    assert merged[0].has_second
    assert merged[2].weight is model[2].weight
    x = torch.randn(4, sizes[0], dtype=torch.float64)
    torch.testing.assert_close(merged.eval()(x), model.eval()(x), rtol=1e-10, atol=1e-10)
    assert model[0].training == model.training


def test_names_are_those_of_the_module():
    model = nn.Sequential(OfModules(8, 5))
    merged, (adapter,) = merge_adapters(model)
    assert list(dict(merged.named_parameters())) == ["0.weight", "0.bias"]
    assert (adapter.weight, adapter.bias) == ("0.base_layer.weight", "0.base_layer.bias")
    assert (adapter.first, adapter.second) == ("0.lora_A.default.weight", "0.lora_B.default.weight")
    assert adapter.scale == pytest.approx(4)


def test_names_may_be_as_peft_writes_them():
    own = ["m.fc.lora_B.default.weight", "m.head.modules_to_save.default.bias", "net.default.weight"]
    short = ["m.fc.lora_B.weight", "m.head.bias", "net.default.weight", "net.weight"]
    assert list(with_names_of(own, dict.fromkeys(short))) == [*own, "net.weight"]


def test_a_layer_that_is_trained_itself_stays_as_it_is():
    model = nn.Sequential(OfModules(8, 5))
    model[0].base_layer.weight.requires_grad_(True)
    assert merge_adapters(model) == (model, ())
    assert merge_adapters(model, ["0.lora_A.default.weight", "0.lora_B.default.weight"])[1]


@pytest.mark.parametrize(
    "module",
    [nn.Linear(8, 5), Gated(8, 5), nn.Sequential(nn.Linear(8, 5, bias=False), nn.Linear(5, 3)), nn.Conv2d(1, 2, 3)],
    ids=lambda module: type(module).__name__,
)
def test_what_is_none_is_none(module):
    assert merge_adapters(module) == (module, ())


def test_dropout_is_switched_on_again():
    model = OfModules(8, 5)
    merge_adapters(model)
    assert model.lora_dropout["default"].training
