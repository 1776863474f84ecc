"""Transformers to audit: every token is an input of the linear layers."""

import numpy as np
import pytest
import torch

from paper.models.transformers import text_transformer, vision_transformer
from paper.tokens import TokenBatch, texts
from sparsedl_fl.audit import audit_model
from sparsedl_fl.metrics import are_wrong, match_batches
from sparsedl_fl.simulation import client_gradient


def test_shapes_and_seeds():
    torch.manual_seed(0)
    before = torch.rand(1)
    torch.manual_seed(0)
    one, same, other = (vision_transformer(depth=1, random_state=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), before)
    images = torch.randn(2, 3, 32, 32)
    assert one(images).shape == (2, 10)
    assert torch.equal(one(images), same(images))
    assert not torch.equal(one(images), other(images))
    text = torch.randint(128, (3, 20))
    model = text_transformer(depth=1, random_state=0)
    assert model(text).shape == (3, 128, 20)
    changed = text.clone()
    changed[:, 10:] = 0
    torch.testing.assert_close(model(text)[:, :, :10], model(changed)[:, :, :10])


@pytest.mark.filterwarnings("ignore")
def test_the_tokens_of_a_text_come_back_from_a_block():
    problem, _ = TokenBatch(64, 768, network="text").problem(0, None)
    assert problem.layer_gradient.rows_per_sample == 64
    true = problem.truth.double().numpy()
    inputs, labels = texts(1, 0)
    gradients = client_gradient(problem.model, inputs, labels)
    audit = audit_model(problem.model, gradients, layers=["blocks.0.fc1"], example=inputs)
    layer = audit["blocks.0.fc1"]
    assert layer.what == "tokens"
    assert layer.n_inputs == 64
    sure = layer.batch.certified
    assert sure.sum() > 55
    assert not are_wrong(true, layer.batch.inputs[sure], layer.batch.errors[sure]).any()
    errors = np.sqrt(match_batches(true, layer.batch.inputs).squared_errors)
    assert np.median(errors) < 1e-4
