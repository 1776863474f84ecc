"""What a model is said to leak: dropout, frozen layers, adapters, attention, embeddings, convolutions."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl.activations import Hardtanh, ReLU, ReLU6
from sparsedl_fl.audit import audit_model
from sparsedl_fl.models import inspect_model
from sparsedl_fl.simulation import client_gradient, fully_connected
from sparsedl_fl.tracing.described_inputs import fitting_example, ids_of_length, numbers_of_shape
from sparsedl_fl.tracing.tracing import trace_model


@pytest.fixture(autouse=True)
def _seed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def rows_of(model, example=None):
    return {row.name: row for row in inspect_model(model, example)}


class Dropped(nn.Module):
    """Dropout as a function of its own, and once more on a path beside a layer."""

    def __init__(self, is_beside=False):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(20, 40), nn.Linear(40, 40), nn.Linear(40, 5)
        self.is_beside = is_beside

    def forward(self, x):
        x = torch.relu(self.first(x))
        dropped = functional.dropout(x, 0.25, self.training)
        x = self.second(dropped) + (x if self.is_beside else 0)
        return self.head(functional.dropout(torch.relu(x), p=0.5, training=self.training))


class Adapted(nn.Module):
    def __init__(self, n_inputs, n_outputs, rank=4, is_new=True, scale=1.0):
        super().__init__()
        self.base = nn.Linear(n_inputs, n_outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(n_inputs, rank, bias=False), nn.Linear(rank, n_outputs, bias=False)
        self.scale, self.dropout = scale, nn.Dropout(0.1)
        if is_new:
            nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(self.dropout(x)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        return self.out(functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x)))


class Columns(nn.Module):
    """A table of two columns of categories, each with an embedding of its own."""

    def __init__(self):
        super().__init__()
        self.colour, self.place = nn.Embedding(30, 8), nn.Embedding(7, 8)
        self.hidden, self.head = nn.Linear(16, 40), nn.Linear(40, 2)

    def forward(self, ids):
        x = torch.cat([self.colour(ids[:, 0]), self.place(ids[:, 1])], dim=1)
        return self.head(torch.relu(self.hidden(x)))


class TestDropout:
    def test_modules(self):
        first = (nn.Linear(20, 40), nn.ReLU(), nn.Dropout(0.3))
        model = nn.Sequential(*first, nn.Linear(40, 40), nn.Dropout(0.2), nn.ReLU(), nn.Linear(40, 5))
        rows = rows_of(model)
        assert [(row.dropout, row.behind) for row in rows.values()] == [
            (0.3, "relu, dropout of 0.3"),
            (0.2, "relu, dropout of 0.2"),
            (0.0, "nothing: it is the last layer"),
        ]
        assert not any(row.dropout for row in rows_of(model.eval()).values())

    @pytest.mark.parametrize(("is_beside", "shares"), [(False, [0.25, 0.5, 0]), (True, [0, 0.5, 0])])
    def test_functions(self, is_beside, shares):
        assert [row.dropout for row in rows_of(Dropped(is_beside)).values()] == shares

    def test_nothing_that_drops_nothing(self):
        model = nn.Sequential(nn.Linear(20, 40), nn.Dropout(0.0), nn.ReLU(), nn.Linear(40, 5))
        assert rows_of(model)["0"].behind == "relu"


class TestFrozen:
    def test_a_frozen_layer_is_never_sent_and_no_span(self):
        model = fully_connected(64, width=200, random_state=0)
        assert (rows_of(model)["0"].attack, rows_of(model)["0"].largest_batch) == ("span", 64)
        model[2].requires_grad_(False)
        rows = rows_of(model)
        assert (rows["0"].attack, rows["0"].largest_batch) == ("zeros", 50)
        assert (rows["2"].obstacle, rows["2"].attack, rows["2"].largest_batch) == ("never sent: it is frozen", "", 0)

    def test_a_frozen_bias_leaves_the_scale_to_the_next_layer(self):
        model = fully_connected(64, width=200, random_state=0)
        model[0].bias.requires_grad_(False)
        assert (rows_of(model)["0"].attack, rows_of(model)["0"].largest_batch) == ("span", 64)
        model[2].weight.requires_grad_(False)
        assert "no gradient of '0.bias'" in rows_of(model)["0"].obstacle

    def test_without_a_bias_a_relu_hides_the_scale_and_a_gelu_does_not(self):
        for activation, attack in ((nn.ReLU(), ""), (nn.GELU(), "span")):
            model = nn.Sequential(nn.Linear(64, 200, bias=False), activation, nn.Linear(200, 100), nn.ReLU())
            rows = rows_of(nn.Sequential(*model, nn.Linear(100, 10)))
            assert rows["0"].attack == attack
            assert ("it has no bias" in rows["0"].obstacle) == (not attack)
        silent = fully_connected(64, width=200, random_state=0)
        nn.init.zeros_(silent[0].bias.requires_grad_(False))
        assert "no gradient of '0.bias'" in rows_of(silent)["0"].obstacle

    def test_other_modules_may_be_frozen_as_well(self):
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 30 * 30, 10))
        model[0].requires_grad_(False)
        assert rows_of(model)["0"].obstacle == "never sent: it is frozen"

    def test_an_update_decides_what_was_sent(self):
        model = fully_connected(64, width=200, random_state=0)
        gradients = client_gradient(model, torch.randn(4, 64), torch.arange(4))
        for layer in (model[0], model[2]):
            layer.requires_grad_(False)  # the client trained them all the same
        assert audit_model(model, gradients)["0"].n_certified == 4
        audit = audit_model(model, {name: g for name, g in gradients.items() if not name.startswith("2.")})
        assert audit["0"].row.attack == "zeros"
        assert audit["2"].reason == "never sent: it is frozen"


class TestAdapters:
    @pytest.mark.parametrize(("is_new", "scale"), [(True, 1.0), (False, 1.0), (False, 0.5)])
    def test_are_said(self, is_new, scale):
        parts = [Adapted(20, 40, 4, is_new, scale), nn.ReLU(), Adapted(40, 30, 4, is_new, scale), nn.ReLU()]
        rows = rows_of(nn.Sequential(*parts, nn.Linear(30, 5)))
        assert list(rows) == ["0", "2", "4"]
        for name in ("0", "2"):
            assert rows[name].kind == "AdaptedLinear"
            assert rows[name].behind == "relu; by its adapters (LoRA) of rank 4"
            assert (rows[name].attack, rows[name].largest_batch) == (("", 0) if is_new else ("span", 4))
            assert ("second factor is zero" in rows[name].obstacle) == is_new

    def test_a_product_that_is_none_is_no_adapter(self):
        model = nn.Sequential(nn.Linear(20, 4), nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 5))
        assert "a product of low rank, rank 4" in rows_of(model)["0"].behind


class TestActivations:
    @pytest.mark.parametrize("bend", [lambda z: 1.0 * z, lambda z: z + torch.zeros_like(z), lambda z: z.clone()])
    def test_small_numbers_that_are_handed_on_are_no_activation(self, bend):
        class Plain(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.head = nn.Linear(8, 6), nn.Linear(6, 3)

            def forward(self, x):
                return self.head(torch.relu(bend(self.first(x)) + 0))

        use = trace_model(Plain(), 0.01 * torch.randn(4, 8)).layers[0]
        assert use.activation == ReLU()

    @pytest.mark.parametrize(
        ("module", "activation"), [(nn.ReLU(), ReLU()), (nn.Hardtanh(), Hardtanh()), (nn.ReLU6(), ReLU6())]
    )
    def test_an_activation_that_bends_nothing_on_the_example_is_known_by_its_name(self, module, activation):
        model = nn.Sequential(nn.Linear(8, 6), module, nn.Linear(6, 3))
        with torch.no_grad():
            model[0].bias.fill_(0.5)
        assert trace_model(model, 0.01 * torch.randn(4, 8)).layers[0].activation == activation


class TestAttention:
    @pytest.mark.parametrize("example", [None, torch.randn(5, 16), torch.randn(2, 5, 16)])
    def test_a_projection_is_no_classifiers_head(self, example):
        rows = rows_of(Attention(), example)
        assert {row.attack for row in rows.values()} <= {"", "rest"}
        assert not any(use.is_last for use in trace_model(Attention(), example).layers)

    def test_a_head_for_each_token_is_none_either(self):
        model = nn.Sequential(nn.Linear(16, 30), nn.ReLU(), nn.Linear(30, 9))
        assert rows_of(model, torch.randn(2, 7, 16))["2"].attack != "head"
        assert rows_of(model, torch.randn(2, 16))["2"].attack == "head"

    def test_the_linear_layers_of_a_transformer_are_seen_to_run(self):
        before = torch.backends.mha.get_fastpath_enabled()
        model = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).eval()
        rows = rows_of(model, torch.randn(2, 5, 16))
        assert (rows["linear1"].attack, rows["linear1"].feeds) == ("span", "tokens")
        assert not any("did not run" in row.obstacle for row in rows.values())
        assert torch.backends.mha.get_fastpath_enabled() == before


class TestTables:
    def test_embeddings_of_the_input_leak_token_ids(self):
        rows = rows_of(Columns(), torch.tensor([[3, 1], [29, 6]]))
        assert [(rows[name].kind, rows[name].attack, rows[name].feeds) for name in ("colour", "place")] == [
            ("Embedding", "rows", "token ids")
        ] * 2
        assert "rows of its gradient" in rows["colour"].obstacle
        model = Columns()
        model.colour.requires_grad_(False)
        assert rows_of(model, torch.tensor([[3, 1], [29, 6]]))["colour"].obstacle == "never sent: it is frozen"

    def test_convolutions_have_one_row(self):
        parts = [part for n in range(6) for part in (nn.Conv2d(3 if n == 0 else 4, 4, 3, padding=1), nn.ReLU())]
        model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 10))
        (row,) = [row for row in inspect_model(model) if row.kind == "Conv2d"]
        assert row.name == "0, 2, 4, 6 and 2 more"
        assert len(row.parameters) == 12
        assert rows_of(nn.Sequential(*parts[:4], *model[-3:]))["0, 2"].shape == (4, 3, 3, 3)


class TestExamples:
    def test_the_reading_that_gives_a_row_for_each_sample(self):
        flat, image = nn.Linear(6, 3), nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
        for model, shape, read in (
            (flat, (6,), (2, 6)),
            (flat, (1, 6), (2, 6)),
            (flat, (4, 6), (2, 4, 6)),  # four tokens
            (image, (3, 4), (2, 3, 4)),
            (image, (5, 3, 4), (2, 3, 4)),
        ):
            assert fitting_example(model, numbers_of_shape(model, shape), "x").shape == read
        double = nn.Linear(6, 3).double()
        assert fitting_example(double, numbers_of_shape(double, (6,)), "x").dtype == torch.float64
        with pytest.raises(ValueError, match=r"does not run on --input-shape 7: on shape \(2, 7\), RuntimeError"):
            fitting_example(flat, numbers_of_shape(flat, (7,)), "--input-shape 7")

    def test_ids_fit_the_smallest_table_that_takes_them(self):
        model = nn.Sequential(nn.Embedding(40, 3), nn.Flatten(), nn.Linear(15, 2))
        example = fitting_example(model, ids_of_length(model, 5), "x")
        assert example.shape == (2, 5)
        assert example.max() < 40
        tables = Columns()
        assert fitting_example(tables, ids_of_length(tables, 2), "x").max() < 7
