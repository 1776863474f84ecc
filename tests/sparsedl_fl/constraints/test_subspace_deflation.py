"""From the gradients of known inputs at a layer to the vectors of the span that are theirs alone."""

import pytest
import torch
from torch import nn

from sparsedl_fl.activations import GELU, LeakyReLU
from sparsedl_fl.constraints import ActivationSubspace
from sparsedl_fl.constraints.subspace_deflation import SubspaceDeflation

B, M, K = 6, 40, 30


@pytest.fixture(params=[(nn.GELU(), GELU()), (nn.LeakyReLU(0.1), LeakyReLU(0.1))], ids=["gelu", "leaky"])
def layer(request):
    """Return the layer behind, its span, and gradient, activations and slopes of each input, by autograd."""
    module, activation = request.param
    generator = torch.Generator().manual_seed(0)
    z, weight, columns = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((B, M), (K, M), (B, K))
    )
    z.requires_grad_()
    activations = module(z)
    (gradients,) = torch.autograd.grad((activations @ weight.T * columns).sum(), z)
    (slopes,) = torch.autograd.grad(module(z).sum(), z)
    gradient = columns.T @ activations.detach()
    # Rounding as a client's: without any, nothing says how wide the span is.
    gradient += 1e-9 * torch.randn((K, M), generator=generator, dtype=torch.float64)
    subspace = ActivationSubspace.of(gradient.numpy(), B, activation)
    deflation = SubspaceDeflation(weight.numpy(), gradient.numpy())
    return deflation, subspace, gradients.detach(), activations.detach(), slopes, columns


def test_duals_are_those_of_the_activations(layer):
    """Each is orthogonal to the activations of all others and in the span: a column of the pseudo-inverse."""
    way, subspace, gradients, activations, slopes, columns = layer
    duals, is_right = way.duals(subspace, gradients, activations, slopes)
    assert is_right.all()
    expected = nn.functional.normalize(torch.linalg.pinv(activations).T, dim=1)
    torch.testing.assert_close(duals, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.linalg.vector_norm(duals, dim=1), torch.ones(B, dtype=torch.float64))
    # And what the next gradient makes of one is the gradient of that input at the next layer.
    sent = nn.functional.normalize(way.gradients(duals), dim=1)
    torch.testing.assert_close(sent, nn.functional.normalize(columns, dim=1), rtol=0, atol=1e-6)


def test_the_size_of_a_gradient_is_no_matter_and_its_sign_goes_along(layer):
    way, subspace, gradients, activations, slopes, _ = layer
    duals, _ = way.duals(subspace, gradients, activations, slopes)
    factors = torch.tensor([1.0, -1.0, 1e-3, 50.0, -7.0, 2.0], dtype=torch.float64)[:, None]
    scaled, is_right = way.duals(subspace, factors * gradients, activations, slopes)
    assert is_right.all()
    torch.testing.assert_close(scaled, factors.sign() * duals, rtol=0, atol=1e-9)


def test_some_inputs_have_the_duals_that_they_have_among_all(layer):
    way, subspace, gradients, activations, slopes, _ = layer
    duals, _ = way.duals(subspace, gradients, activations, slopes)
    some, is_right = way.duals(subspace, gradients[1:4], activations[1:4], slopes[1:4])
    assert is_right.all()
    torch.testing.assert_close(some, duals[1:4], rtol=0, atol=1e-9)


@pytest.mark.parametrize("wrong", ["gradient", "slopes", "of another input", "activations"])
def test_what_is_wrong_is_told(layer, wrong):
    """A gradient that no vector of the span sends back is wrong, and so is one to which other activations belong."""
    way, subspace, gradients, activations, slopes, _ = layer
    gradients, activations, slopes = gradients.clone(), activations.clone(), slopes.clone()
    noise = torch.randn(M, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if wrong == "gradient":
        gradients[2] += 0.3 * gradients[2].std() * noise
    if wrong == "slopes":
        slopes[2] = slopes[3]
    if wrong == "of another input":
        gradients[2] = gradients[3]
    if wrong == "activations":  # with those of the third in part, the dual of the third is not orthogonal to the fourth
        activations[3] += 0.3 * activations[2]
    _, is_right = way.duals(subspace, gradients, activations, slopes)
    assert is_right.tolist() == [index != 2 for index in range(B)]
