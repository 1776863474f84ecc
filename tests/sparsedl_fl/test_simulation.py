import sys

import numpy as np
import pytest
import torch

from sparsedl_fl.simulation import client_gradient, dp_sgd_gradient, fedavg_update, fully_connected, opacus_gradient

BATCH = torch.rand(5, 12, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(5)


@pytest.fixture
def model():
    return fully_connected(12, width=9, random_state=0)


def test_network_has_the_papers_shape_and_leaves_the_global_seed_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    network = fully_connected(12, width=9, random_state=1)
    assert torch.rand(1) == expected
    assert [type(module).__name__ for module in network] == ["Linear", "ReLU"] * 3 + ["Linear"]
    assert torch.equal(network[0].weight, fully_connected(12, width=9, random_state=1)[0].weight)
    assert not torch.equal(network[0].weight, fully_connected(12, width=9, random_state=2)[0].weight)


def test_gradient_is_that_of_autograd(model):
    gradient = client_gradient(model, BATCH, LABELS)
    torch.nn.functional.cross_entropy(model(BATCH), LABELS).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradient[name], parameter.grad)


def test_fedavg_leaves_the_model_alone_and_takes_every_step(model):
    before, after = fedavg_update(model, BATCH, LABELS, learning_rate=0.1, n_epochs=2, batch_size=2, random_state=0)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert not torch.equal(tensor, after[name])
    again = fedavg_update(model, BATCH, LABELS, learning_rate=0.1, n_epochs=2, batch_size=2, random_state=0)[1]
    assert all(torch.equal(after[name], again[name]) for name in after)


def test_dp_sgd_without_noise_and_with_wide_clipping_is_the_gradient(model):
    plain = client_gradient(model, BATCH, LABELS)
    private = dp_sgd_gradient(model, BATCH, LABELS, clipping=1e9, noise_std=0.0)
    for name in plain:
        torch.testing.assert_close(private[name], plain[name], rtol=1e-4, atol=1e-6)


def test_dp_sgd_clips_each_sample(model):
    clipped = dp_sgd_gradient(model, BATCH[:1], LABELS[:1], clipping=1e-2, noise_std=0.0)
    norm = torch.cat([gradient.flatten() for gradient in clipped.values()]).norm()
    assert norm.item() == pytest.approx(1e-2, rel=1e-4)


def test_dp_sgd_does_not_depend_on_how_many_samples_fit_in_memory(model, monkeypatch):
    whole = dp_sgd_gradient(model, BATCH, LABELS, clipping=0.2, noise_std=0.0)
    monkeypatch.setattr("sparsedl_fl.simulation.clients.MOST_ENTRIES", 700)  # two samples
    for name, tensor in dp_sgd_gradient(model, BATCH, LABELS, clipping=0.2, noise_std=0.0).items():
        torch.testing.assert_close(tensor, whole[name])


def test_dp_sgd_noise_has_the_stated_deviation(model):
    options = {"clipping": 1.0, "random_state": 0}
    clean = dp_sgd_gradient(model, BATCH, LABELS, noise_std=0.0, **options)
    noisy = dp_sgd_gradient(model, BATCH, LABELS, noise_std=0.5, **options)
    difference = torch.cat([(noisy[name] - clean[name]).flatten() for name in clean]).numpy()
    assert np.std(difference) == pytest.approx(0.5, rel=0.1)


def test_bad_input_is_named(model):
    with pytest.raises(ValueError, match="inputs is empty"):
        client_gradient(model, BATCH[:0], LABELS[:0])
    with pytest.raises(ValueError, match="inputs and labels differ in length: 5 and 4"):
        fedavg_update(model, BATCH, LABELS[:4])
    with pytest.raises(ValueError, match="clipping must be positive"):
        dp_sgd_gradient(model, BATCH, LABELS, clipping=0.0, noise_std=0.1)


class TestOpacus:
    @pytest.mark.parametrize("clipping", [1e-2, 1e9])
    def test_agrees_with_ours(self, model, clipping):
        ours = dp_sgd_gradient(model, BATCH, LABELS, clipping=clipping, noise_std=0.0)
        theirs = opacus_gradient(model, BATCH, LABELS, clipping=clipping, noise_multiplier=0.0)
        assert list(ours) == list(theirs)
        for name in ours:
            torch.testing.assert_close(theirs[name], ours[name], rtol=1e-4, atol=1e-6)

    def test_noise_has_the_stated_deviation(self, model):
        options = {"clipping": 2.0, "random_state": 0}
        clean = opacus_gradient(model, BATCH, LABELS, noise_multiplier=0.0, **options)
        noisy = opacus_gradient(model, BATCH, LABELS, noise_multiplier=0.7, **options)
        difference = torch.cat([(noisy[name] - clean[name]).flatten() for name in clean]).numpy()
        assert np.std(difference) == pytest.approx(0.7 * 2.0 / len(BATCH), rel=0.1)


def test_a_missing_opacus_is_named(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.grad_sample", None)
    with pytest.raises(ImportError, match=r"opacus_gradient needs Opacus: pip install 'sparsedl\[dp\]'"):
        opacus_gradient(model, BATCH, LABELS, clipping=1.0, noise_multiplier=1.0)
