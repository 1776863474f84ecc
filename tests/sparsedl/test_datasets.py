import numpy as np
import pytest

from sparsedl.datasets import make_sparse_dictionary


def test_shapes_sparsity_and_conditioning():
    X, codes, components = make_sparse_dictionary(5000, 6, n_features=9, sparsity=0.8, random_state=0)
    assert X.shape == (5000, 9)
    np.testing.assert_allclose(codes @ components, X)
    np.testing.assert_allclose(np.linalg.norm(components, axis=1), 1)
    assert np.mean(codes == 0) == pytest.approx(0.8, abs=0.02)
    assert np.linalg.cond(components) < 30


def test_seed():
    for one, two in zip(*(make_sparse_dictionary(20, 3, random_state=7) for _ in range(2)), strict=True):
        np.testing.assert_array_equal(one, two)


def test_noise():
    arguments = {"n_samples": 4000, "n_components": 5, "random_state": 0}
    clean, noisy = make_sparse_dictionary(**arguments)[0], make_sparse_dictionary(noise_level=0.3, **arguments)[0]
    assert np.std(noisy - clean) == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_samples": 0, "n_components": 3}, "n_samples must be positive"),
        ({"n_samples": 9, "n_components": 4, "n_features": 3}, "n_components=4 must be between 1 and n_features=3"),
        ({"n_samples": 9, "n_components": 3, "sparsity": 1.0}, "sparsity must be in"),
        ({"n_samples": 9, "n_components": 3, "condition_number": 0.5}, "condition_number must be at least 1"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_sparse_dictionary(**arguments)
