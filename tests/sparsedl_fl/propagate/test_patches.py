"""From the gradient of the first attention to the pixels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from paper.models.transformers import vision_transformer
from sparsedl_fl.propagate.patches import PatchEmbedding, recover_patches
from sparsedl_fl.simulation import client_gradient

QKV = "blocks.0.qkv.weight"


def embedding_of(model):
    return PatchEmbedding.of(model.patches, model.positions, model.blocks[0].norm1)


def client(n_pictures=1, seed=0, has_norm_bias=False):
    """Pictures of 16 x 16, a transformer with 17 tokens, and what it sends of its first attention."""
    model = vision_transformer(side=16, width=120, depth=2, random_state=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        if has_norm_bias:
            model.blocks[0].norm1.weight.add_(0.2 * torch.randn(120, generator=generator))
            model.blocks[0].norm1.bias.add_(0.2 * torch.randn(120, generator=generator))
    pictures = torch.randn((n_pictures, 3, 16, 16), generator=generator)
    gradients = client_gradient(model, pictures, torch.arange(n_pictures))
    return pictures.double().numpy(), model, gradients[QKV]


@pytest.mark.parametrize("has_norm_bias", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_picture_comes_back_with_its_errors(seed, has_norm_bias):
    pictures, model, gradient = client(seed=seed, has_norm_bias=has_norm_bias)
    found = recover_patches(gradient, embedding_of(model))
    off = found.picture() - pictures[0]
    assert np.sqrt(np.mean(off**2)) < 0.05
    blocks = off.reshape(3, 4, 4, 4, 4).transpose(1, 3, 0, 2, 4).reshape(16, 48)
    ratios = np.sqrt(np.mean(blocks**2, axis=1)) / found.errors
    assert 0.2 < np.median(ratios) < 3
    assert ratios.max() < 10


def test_other_positions_leave_far_more_of_the_equations():
    _, model, gradient = client()
    embedding = embedding_of(model)
    other = replace(embedding, offsets=0.02 * np.random.default_rng(0).standard_normal(embedding.offsets.shape))
    right, wrong = (np.median(recover_patches(gradient, given).residuals) for given in (embedding, other))
    assert wrong > 10 * right


def test_two_pictures_are_refused():
    _, model, gradient = client(n_pictures=2)
    with pytest.raises(ValueError, match="more than the 17 tokens of one picture"):
        recover_patches(gradient, embedding_of(model))


def test_short_tokens_and_bad_arguments_are_refused():
    _, model, gradient = client()
    embedding = embedding_of(model)
    with pytest.raises(ValueError, match="weight_grad must be of shape"):
        recover_patches(gradient[:, :100], embedding)
    with pytest.raises(ValueError, match="weight_grad must be of shape"):
        recover_patches(torch.zeros_like(gradient), embedding)
    with pytest.raises(ValueError, match="weight_grad must be of shape"):
        recover_patches(gradient * torch.nan, embedding)
    with pytest.raises(TypeError, match="floating"):
        recover_patches(gradient.int(), embedding)
    short = embedding_of(vision_transformer(side=16, width=80, n_heads=4, depth=1, random_state=0))
    with pytest.raises(ValueError, match="tokens of length 80"):
        recover_patches(torch.ones(240, 80), short)
    with pytest.raises(ValueError, match="stride as long as its kernel"):
        PatchEmbedding.of(nn.Conv2d(3, 120, 4, 2), model.positions, model.blocks[0].norm1)
    with pytest.raises(ValueError, match="tokens of one length"):
        replace(embedding, norm_bias=np.zeros(7))
