"""A picture and its tokens, fitted to the gradients of several layers at once."""

import numpy as np
import pytest
import torch

from paper.models.transformers import text_transformer, vision_transformer
from sparsedl_fl.propagate.patches import PatchEmbedding, recover_patches
from sparsedl_fl.propagate.token_fitting import fit_to_row_spaces
from sparsedl_fl.simulation import client_gradient

LAYERS = ["blocks.0.qkv", "blocks.0.fc1"]
QKV = "blocks.0.qkv.weight"


def client(seed=0):
    """A picture of 16 x 16, a transformer with 17 tokens, what it sends, and the picture from its first attention."""
    model = vision_transformer(side=16, width=96, depth=2, random_state=seed)
    picture = torch.randn((1, 3, 16, 16), generator=torch.Generator().manual_seed(seed))
    gradients = client_gradient(model, picture, torch.zeros(1, dtype=torch.long))
    embedding = PatchEmbedding.of(model.patches, model.positions, model.blocks[0].norm1)
    start = recover_patches(gradients["blocks.0.qkv.weight"], embedding).picture()[None]
    return picture.double().numpy(), model, gradients, start


@pytest.mark.parametrize("seed", range(3))
def test_a_picture_becomes_more_exact_and_says_how_exact(seed):
    picture, model, gradients, start = client(seed)
    found = fit_to_row_spaces(model, gradients, start, LAYERS)
    before, after = (np.sqrt(np.mean((values - picture) ** 2)) for values in (start, found.values))
    assert after < before / 2
    assert found.over_noise < 2
    assert 0.3 < after / np.sqrt(np.mean(found.errors**2)) < 3
    ratios = np.abs(found.values - picture) / found.errors
    assert np.mean(ratios < 3) > 0.97


def test_tokens_are_those_of_the_picture():
    picture, model, gradients, start = client()
    found = fit_to_row_spaces(model, gradients, start, LAYERS)
    true = {}
    hook = model.blocks[0].fc1.register_forward_pre_hook(lambda _, given: true.update(fed=given[0][0].detach()))
    model(torch.from_numpy(picture).float())
    hook.remove()
    fed, expected = found.fed["blocks.0.fc1"], true["fed"].double().numpy()
    assert fed.shape == (17, 96)
    errors = np.linalg.norm(fed - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert errors.max() < 2e-3


def test_gradients_of_another_picture_leave_far_more_than_noise():
    picture, model, gradients, start = client()
    other = client_gradient(model, torch.flip(torch.from_numpy(picture).float(), [3]), torch.zeros(1, dtype=torch.long))
    found = fit_to_row_spaces(model, gradients | {"blocks.0.fc1.weight": other["blocks.0.fc1.weight"]}, start, LAYERS)
    assert found.over_noise > 10


def test_bad_input_is_named():
    _, model, gradients, start = client()
    with pytest.raises(ValueError, match="sample must be finite and a batch of one"):
        fit_to_row_spaces(model, gradients, np.concatenate([start, start]), LAYERS)
    with pytest.raises(ValueError, match="the model does not take a sample of shape"):
        fit_to_row_spaces(model, gradients, start[:, :, :7, :7], LAYERS)
    with pytest.raises(ValueError, match="layers must name linear layers of the model, got 'patches'"):
        fit_to_row_spaces(model, gradients, start, ["patches"])
    with pytest.raises(ValueError, match="no weight gradient of layer 'blocks.0.fc1'"):
        fit_to_row_spaces(model, {QKV: gradients[QKV]}, start, LAYERS)
    narrow = vision_transformer(side=16, width=12, depth=1, random_state=0)
    gradients = client_gradient(narrow, torch.randn(1, 3, 16, 16), torch.zeros(1, dtype=torch.long))
    with pytest.raises(ValueError, match="is fed 17 tokens, too many for its gradient to show"):
        fit_to_row_spaces(narrow, gradients, start, LAYERS[:1])


def test_whole_numbers_are_refused():
    model = text_transformer(n_tokens=8, width=48, depth=1, random_state=0)
    text = torch.randint(0, 128, (1, 8))
    with pytest.raises(TypeError, match="sample"):
        fit_to_row_spaces(model, {}, text, ["blocks.0.fc1"])
