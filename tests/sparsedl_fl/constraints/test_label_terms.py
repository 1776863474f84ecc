"""Which labels a batch has, by the mean of its gradients: against counts that are known."""

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl.constraints.label_terms import ANYWHERE, LabelTerms, likely_labels
from sparsedl_fl.layers.network_tail import RestOfNetwork

M = 30


def rest_of(n_labels, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return RestOfNetwork(nn.Sequential(nn.Tanh(), nn.Linear(M, n_labels)))


def counts_of(likelihoods):
    """Return the shares that the likelihoods were made of: a part is anywhere."""
    return (likelihoods - ANYWHERE / len(likelihoods)) / (1 - ANYWHERE)


def place(seed=0):
    return torch.randn((1, M), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mean_of(rest, z, labels):
    """Return the mean of the gradients at the layer, by autograd through network and loss."""
    z = z.expand(len(labels), M).clone().requires_grad_()
    loss = nn.functional.cross_entropy(rest.outputs(z), labels)
    return torch.autograd.grad(loss, z)[0].sum(dim=0)


@pytest.mark.parametrize("seed", range(5))
def test_of_a_few_among_many_the_shares_are_those_of_the_batch(seed):
    """At one place all gradients of a label are the same, and of thirty labels at most six are there."""
    rest, labels = rest_of(25, seed), torch.from_numpy(np.random.default_rng(seed).integers(25, size=6))
    found = likely_labels(rest, None, place(seed), mean_of(rest, place(seed), labels), len(labels))
    np.testing.assert_allclose(counts_of(found), np.bincount(labels, minlength=25) / 6, rtol=0, atol=1e-6)
    assert found.sum() == pytest.approx(1)


@pytest.mark.parametrize("seed", range(5))
def test_shares_explain_the_mean_gradient(seed):
    """Of few labels any mixture that adds up to no gradient may be in it: counts are none, but the mean is theirs."""
    rest, labels = rest_of(5, seed), torch.from_numpy(np.random.default_rng(seed).integers(5, size=20))
    mean = mean_of(rest, place(seed), labels)
    shares = counts_of(likely_labels(rest, None, place(seed), mean, len(labels)))
    assert (shares >= -1e-12).all()
    assert shares.sum() == pytest.approx(1)
    by_label = torch.stack([rest.gradients_for(place(seed), label)[0] for label in range(5)])
    assert nn.functional.cosine_similarity(shares @ by_label, mean, dim=0) == pytest.approx(1)


def test_labels_that_are_there_are_likelier_at_places_of_their_own():
    """Inputs lie anywhere, and the places are but typical: of 40 batches hardly a label that is there is missed."""
    rest, missed, n_there = rest_of(20), 0, 0
    generator = torch.Generator().manual_seed(0)
    typical = torch.randn((64, M), generator=generator, dtype=torch.float64)
    for _ in range(40):
        z = torch.randn((4, M), generator=generator, dtype=torch.float64).requires_grad_()
        labels = torch.randint(20, (4,), generator=generator)
        loss = nn.functional.cross_entropy(rest.outputs(z), labels)
        mean = torch.autograd.grad(loss, z)[0].sum(dim=0)
        found = likely_labels(rest, None, typical, mean, 4)
        there = labels.unique()
        n_there += len(there)
        missed += int((found[there] < 2 / 20 * ANYWHERE).sum())
        assert found[there].sum() > 0.4
    assert missed < 0.1 * n_there


def test_terms_of_a_head_say_the_same_as_every_label_by_itself():
    rest, labels = RestOfNetwork.of_head(), torch.tensor([3, 3, 7, 11])
    z, n = place(), M
    terms = rest.label_terms(n)
    given = LabelTerms(terms, terms, terms)
    mean = mean_of(rest, z, labels)
    with_terms, without = (likely_labels(rest, known, z, mean, 4) for known in (given, None))
    torch.testing.assert_close(with_terms, without, rtol=0, atol=1e-9)
    np.testing.assert_allclose(counts_of(with_terms)[[3, 7, 11]], [0.5, 0.25, 0.25], rtol=0, atol=1e-6)


def test_no_gradient_says_nothing():
    found = likely_labels(rest_of(8), None, place(), torch.zeros(M, dtype=torch.float64), 3)
    torch.testing.assert_close(found, torch.full((8,), 1 / 8, dtype=torch.float64))
