"""The boundary between NumPy and torch."""

import numpy as np
import pytest
import torch

from sparsedl.arrays import as_numpy, as_tensor, check_device, chunks, draw_generator, draw_seed, rows_of


def test_there_and_back():
    array = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(as_numpy(as_tensor(array)), array)
    np.testing.assert_array_equal(as_numpy(rows_of(array)), array.T)
    assert as_tensor(array.T).is_contiguous()
    assert as_numpy("anything") == "anything"


@pytest.mark.parametrize("offset", range(0, 64, 8))
def test_a_product_with_a_vector_does_not_depend_on_where_an_array_begins(offset):
    values, vector = np.random.default_rng(0).standard_normal((200, 98)), torch.linspace(-1, 1, 98, dtype=float)
    memory = np.zeros(values.nbytes + 128, dtype=np.uint8)
    first = -memory.ctypes.data % 64 + offset
    moved = memory[first : first + values.nbytes].view(float).reshape(values.shape)
    moved[...] = values
    assert as_tensor(moved).data_ptr() % 64 == 0
    assert torch.equal(as_tensor(moved) @ vector, torch.tensor(values) @ vector)


@pytest.mark.parametrize("n_items", [0, 1, 5, 7])
@pytest.mark.parametrize("limit", [1, 20, 1000])
def test_chunks_are_whole_and_small(n_items, limit):
    parts = list(chunks(n_items, 10, limit))
    assert [i for part in parts for i in range(n_items)[part]] == list(range(n_items))
    assert all(10 * (part.stop - part.start) <= max(limit, 10) for part in parts)


def test_the_same_state_draws_the_same():
    assert draw_seed(3) == draw_seed(3) != draw_seed(4)
    state = np.random.RandomState(0)
    assert draw_seed(state) != draw_seed(state)
    one, two = (torch.rand(3, generator=draw_generator(7)) for _ in range(2))
    torch.testing.assert_close(one, two)


@pytest.mark.parametrize("device", ["nothing", 3.5, "mps"])
def test_devices_that_are_not_there_are_refused(device):
    with pytest.raises(ValueError, match="object: device"):
        check_device(object(), device)
