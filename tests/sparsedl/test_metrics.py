import numpy as np
import pytest

from sparsedl.metrics import match_components


def test_undoes_permutation_sign_and_scale():
    rng = np.random.default_rng(0)
    true = rng.standard_normal((5, 8))
    order, scales = rng.permutation(5), np.array([1.0, -2.0, 0.5, -1.0, 3.0])
    match = match_components(scales[:, None] * true[order], true)
    np.testing.assert_array_equal(order[match.permutation], np.arange(5))
    np.testing.assert_allclose(match.scales, 1 / scales[match.permutation])
    assert match.errors.max() < 1e-15


def test_error_is_the_sine_of_the_angle():
    for angle in (1e-9, 0.1, np.pi / 2):
        errors = match_components([[np.cos(angle), np.sin(angle)]], [[1.0, 0.0]]).errors
        assert errors[0] == pytest.approx(np.sin(angle), rel=1e-6)


@pytest.mark.parametrize(
    ("estimated", "true", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), "same number of columns"),
        (np.ones((1, 3)), np.ones((2, 3)), "at least as many rows"),
        (np.zeros((2, 3)), np.ones((2, 3)), "all zeros"),
    ],
)
def test_bad_input_is_named(estimated, true, message):
    with pytest.raises(ValueError, match=message):
        match_components(estimated, true)
