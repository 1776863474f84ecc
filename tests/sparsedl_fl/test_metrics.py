import numpy as np
import pytest
import torch

from sparsedl_fl.metrics import MAX_PSNR, match_batches, psnr


def test_matching_undoes_the_order():
    rng = np.random.default_rng(0)
    true, order = rng.uniform(size=(6, 3, 4)), rng.permutation(6)
    match = match_batches(true, true[order])
    np.testing.assert_array_equal(order[match.order], np.arange(6))
    np.testing.assert_array_equal(match.squared_errors, 0)


def test_too_few_recovered():
    true = np.eye(3)
    match = match_batches(true, true[[2]])
    assert match.order.tolist() == [-1, -1, 0]
    assert psnr(true, true[[2]]).tolist() == [-np.inf, -np.inf, MAX_PSNR]


def test_psnr_is_on_the_scale_of_the_data():
    true = np.random.default_rng(0).uniform(size=(2, 500))
    np.testing.assert_allclose(psnr(true, true + 0.1), 20)
    np.testing.assert_allclose(psnr(255 * true, 255 * true + 25.5, data_range=255), 20)


def test_tensors_are_welcome_and_exact_is_capped():
    true = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert (psnr(true, true.flip(0)) == MAX_PSNR).all()


@pytest.mark.parametrize(
    ("true", "recovered", "message"),
    [
        (np.zeros((0, 3)), np.ones((2, 3)), "true must be a non-empty batch"),
        (np.ones(3), np.ones((2, 3)), "true must be a non-empty batch"),
        (np.ones((2, 3)), np.full((2, 3), np.nan), "recovered must be a non-empty batch of finite inputs"),
        (np.ones((2, 3)), np.ones((2, 4)), "true inputs have 3 values and recovered ones 4"),
    ],
)
def test_bad_input_is_named(true, recovered, message):
    with pytest.raises(ValueError, match=message):
        psnr(true, recovered)
