"""Token ids that the gradient of an embedding shows."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl.audit import Verdict, audit_model, out_of_range
from sparsedl_fl.audit.token_ids import token_ids
from sparsedl_fl.tracing.embeddings import token_tables

VOCABULARY, LENGTH = 500, 12


class Text(nn.Module):
    """Token, position and type embeddings, a mean over time, and a head, which may share the table."""

    def __init__(self, is_tied=False, padding=None, n_types=2):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 64, padding_idx=padding)
        self.positions, self.types = nn.Embedding(40, 64), nn.Embedding(n_types, 64)
        self.hidden, self.head = nn.Linear(64, 64), nn.Linear(64, VOCABULARY if is_tied else 4)
        if is_tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        places = torch.arange(ids.shape[1]).expand_as(ids)
        x = self.tokens(ids) + self.positions(places) + self.types(torch.zeros_like(ids))
        return self.head(torch.tanh(self.hidden(x)).mean(dim=1))


def sent(model, ids, labels, **options):
    total = functional.cross_entropy(model(ids), labels, **options)
    return dict(zip(dict(model.named_parameters()), torch.autograd.grad(total, list(model.parameters())), strict=True))


@pytest.fixture
def ids():
    return torch.randint(1, VOCABULARY, (6, LENGTH), generator=torch.Generator().manual_seed(0))


def made(**options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Text(**options)


def test_they_are_read_off_exactly_whatever_the_example_holds(ids):
    model = made()
    for example in (torch.zeros(1, LENGTH, dtype=torch.long), ids[:1], None):
        audit = audit_model(model, sent(model, ids, torch.arange(6) % 4), example=example, max_seconds=0)
        assert audit.tokens == sorted(set(ids.flatten().tolist()))
        assert audit.verdict is Verdict.PARTLY
        assert "token ids" in audit.reason


def test_only_the_table_that_the_ids_pick_counts(ids):
    assert token_tables(made(n_types=400), torch.zeros(1, LENGTH, dtype=torch.long)) == ("tokens.weight",)
    assert token_tables(made(), torch.zeros(1, LENGTH)) == ()


def test_padding_that_is_declared_has_no_gradient(ids):
    ids[:, 6:] = 0
    model = made(padding=0)
    audit = audit_model(model, sent(model, ids, torch.arange(6) % 4), example=ids[:1], max_seconds=0)
    assert audit.tokens == sorted(set(ids[:, :6].flatten().tolist()))


def test_a_table_that_the_head_shares(ids):
    model = made(is_tied=True)
    gradients = sent(model, ids, torch.randint(VOCABULARY, (6,), generator=torch.Generator().manual_seed(1)))
    assert (gradients["tokens.weight"].abs().sum(dim=1) > 0).all()
    audit = audit_model(model, gradients, example=ids[:1], max_seconds=0)
    assert audit.tokens == sorted(set(ids.flatten().tolist()))


def test_weight_decay_and_noise_that_touch_every_row(ids):
    model, true = made(), sorted(set(ids.flatten().tolist()))
    gradient, weight = sent(model, ids, torch.arange(6) % 4)["tokens.weight"], model.tokens.weight.detach()
    assert list(token_ids(weight, gradient + 1e-3 * weight).ids) == true
    noise = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(2))
    smallest = gradient[true].norm(dim=1).min() / 8
    assert list(token_ids(weight, gradient + 0.1 * smallest * noise).ids) == true
    drowned = token_ids(weight, gradient + 100 * gradient.norm() * noise)
    assert drowned.ids == ()
    assert "no row" in drowned.reason


def test_adam_leaves_rows_alone_that_no_token_touches(ids):
    model = made()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    functional.cross_entropy(model(ids), torch.arange(6) % 4).backward()
    optimizer.step()
    update = {name: before[name] - tensor for name, tensor in model.state_dict().items()}
    model.load_state_dict(before)
    audit = out_of_range(model, "optimizer='adam' is out of range", ids[:1], gradients=update)
    assert audit.verdict is Verdict.PARTLY
    assert audit.tokens == sorted(set(ids.flatten().tolist()))


class OfTable(nn.Module):
    """Numbers beside two categories, which columns of numbers pick; an offset is looked up by no column."""

    def __init__(self):
        super().__init__()
        self.job, self.town, self.offset = nn.Embedding(12, 4), nn.Embedding(5, 3), nn.Embedding(4, 15)
        self.layers = nn.Sequential(nn.Linear(15, 60), nn.ReLU(), nn.Linear(60, 3))

    def forward(self, x):
        parts = [self.job(x[:, 0].long()), self.town(x[:, 4].long()), x[:, 1:4], x[:, 5:]]
        return self.layers(torch.cat(parts, 1) + self.offset(torch.zeros(len(x), dtype=torch.long)))


def test_categories_among_columns_of_numbers():
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = OfTable()
    x = torch.randn(6, 10, generator=generator)
    x[:, 0], x[:, 4] = torch.randint(12, (6,), generator=generator), torch.randint(5, (6,), generator=generator)
    assert token_tables(model, x[:1]) == ("job.weight", "town.weight")
    functional.cross_entropy(model(x), torch.arange(6) % 3).backward()
    audit = audit_model(model, {name: tensor.grad for name, tensor in model.named_parameters()}, example=x[:1])
    assert audit["job"].tokens == tuple(sorted(set(x[:, 0].int().tolist())))
    assert audit["town"].tokens == tuple(sorted(set(x[:, 4].int().tolist())))
    assert audit["offset"].tokens == ()
    assert any("categories of a table" in sentence for sentence in audit.to_dict()["plain"])
