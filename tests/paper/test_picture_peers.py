"""What a peer's batch is scored by, and what is said where no peer is installed; peers themselves are not run."""

import builtins

import numpy as np
import pytest
import torch

from paper.methods import Budget
from paper.models.vision import chain
from paper.picture_peers import PeerBatch, packed, unpacked
from paper.run import main


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A folder with a mnist.npz of forty noisy squares."""
    folder, rng = tmp_path_factory.mktemp("digits"), np.random.default_rng(0)
    np.savez(folder / "mnist.npz", x=rng.integers(0, 256, (40, 28, 28), dtype=np.uint8), y=np.arange(40) % 10)
    return str(folder)


def test_pictures_survive_being_packed():
    pictures = np.array([[0.0, 0.5, 1.0], [1.5, -1.0, 0.25]])
    np.testing.assert_allclose(unpacked(packed(pictures), 2), np.clip(pictures, 0, 1), atol=0.5 / 255)


def test_quality_is_that_of_the_best_match_and_zero_where_nothing_was_found():
    true = np.array([[0.0, 1.0], [1.0, 0.0]])
    quality = PeerBatch(2, 10).quality(true, np.array([[0.9, 0.0]]))
    np.testing.assert_allclose(quality, [0.0, 10 * np.log10(2 / 0.01)])
    np.testing.assert_array_equal(PeerBatch(2, 10).quality(true, np.empty((0, 2))), 0.0)


def test_a_chain_has_the_features_of_its_last_convolution():
    for side in (28, 32):
        assert chain(1, side)(torch.zeros(2, 1, side, side)).shape == (2, 10)


def test_a_peer_is_scored_as_we_are(digits, monkeypatch):
    import paper.picture_peers as module

    monkeypatch.setattr(module, "peer_version", lambda: "breaching 0")
    given = {}

    def honest(update, n_steps, seed):
        given.update(n_steps=n_steps, seed=seed, labels=update.labels, shape=update.shape)
        return update.model[0].weight.new_zeros(2, *update.shape)

    def refuses(update, n_steps, seed):
        raise RuntimeError("no pooling")

    monkeypatch.setattr(module, "PEERS", {"breaching": honest, "r-gap": refuses})
    record = PeerBatch(2, 30).run("breaching", 5, digits, Budget(steps=7))
    assert (given["n_steps"], given["seed"], given["shape"]) == (7, 5, (1, 28, 28))
    assert record["peer"] == "breaching 0"
    assert len(record["psnr"]) == 2
    assert 0 < record["worst"] == min(record["psnr"]) < 15
    assert (record["exact"], record["right"]) == (False, 0.0)
    assert len(unpacked(record["true"], 2)) == len(unpacked(record["found"], 2)) == 2
    refused = PeerBatch(2, 30).run("r-gap", 5, digits, Budget())
    assert refused["psnr"] == []
    assert "worst" not in refused
    assert refused["status"] == "failed: RuntimeError: no pooling"


def test_without_the_package_it_says_what_to_install(digits, tmp_path, monkeypatch, capsys):
    found = builtins.__import__

    def missing(name, *rest):
        if name == "breaching":
            raise ImportError("No module named 'breaching'")
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    options = ["--rows", "mnist-1", "--directions", "breaching", "--batches", "1", "--data", digits]
    assert main(["picture-peers", *options, "--out", str(tmp_path)]) == 2
    assert "pip install breaching" in capsys.readouterr().err


def test_a_peer_is_refused_where_there_are_no_pictures(source, tmp_path, capsys):
    options = ["--rows", "20x200", "--directions", "breaching", "--batches", "1", "--data", source]
    assert main(["frontier", *options, "--out", str(tmp_path)]) == 2
    assert "picture-peers" in capsys.readouterr().err
