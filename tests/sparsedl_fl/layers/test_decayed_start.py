"""Weight decay, found by the rank."""

import numpy as np
import pytest
import torch

from sparsedl_fl.layers.decayed_start import decay_by_rank


@pytest.mark.parametrize("rank", [1, 30, 60, 85])
@pytest.mark.parametrize("shape", [(100, 300), (100, 100), (300, 100)])
@pytest.mark.parametrize("kept", [1.0, 0.999, 0.6])
def test_it_is_found_below_the_width(rank, shape, kept):
    rng = np.random.default_rng(0)
    initial = rng.uniform(-1, 1, shape) / 10
    change = 0.01 * rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1])) / np.sqrt(rank)
    initial = initial.astype(np.float32)
    final = (kept * initial.astype(np.float64) + change).astype(np.float32)
    found = decay_by_rank({"weight": tuple(torch.from_numpy(part).double() for part in (initial, final))})
    assert found == pytest.approx(kept, abs=2e-7)


def test_a_change_of_full_rank_is_refused():
    rng = np.random.default_rng(0)
    initial, change = rng.standard_normal((2, 60, 80))
    pair = torch.from_numpy(initial), torch.from_numpy(0.99 * initial + 0.1 * change)
    with pytest.raises(ValueError, match="weight_decay cannot be found by the rank"):
        decay_by_rank({"weight": pair})
