"""Results do not depend on the state of the process, and nobody finds it changed."""

import threading
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.process import one_thread, undisturbed


def threads():
    return [library["num_threads"] for library in threadpool_info()]


def fit():
    X, _, _ = make_sparse_dictionary(60, 8, sparsity=0.6, random_state=1)
    sdr = SparseDictionaryRecovery(random_state=0).fit(X)
    return np.concatenate([sdr.codes_.ravel(), sdr.components_.ravel(), sdr.transform(X).ravel(), [sdr.score(X)]])


@contextmanager
def setting(change, value, before):
    change(value)
    try:
        yield
    finally:
        change(before)


STATES = {
    "default dtype float64": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "default dtype float16": lambda: setting(torch.set_default_dtype, torch.float16, torch.float32),
    "default device": lambda: setting(torch.set_default_device, "meta", None),
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
    "errors of NumPy": lambda: np.errstate(all="raise"),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "four threads": lambda: threadpool_limits(4),
}


@pytest.fixture(scope="module")
def expected():
    return fit()


@pytest.mark.parametrize("state", STATES)
def test_results_are_the_same_in_any_state(state, expected):
    with STATES[state]():
        before = threads(), np.geterr(), torch.is_grad_enabled(), torch.empty(0).device
        found = fit()
        assert (threads(), np.geterr(), torch.is_grad_enabled(), torch.empty(0).device) == before
    np.testing.assert_array_equal(found, expected)


def test_eight_threads_of_python_agree_and_leave_the_threads_alone(expected):
    before, found = threads(), {}
    workers = [threading.Thread(target=lambda number=number: found.update({number: fit()})) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 8
    for result in found.values():
        np.testing.assert_array_equal(result, expected)
    assert threads() == before


def test_overlapping_limits_hold_until_the_last_one_leaves():
    inside, leave, seen = threading.Event(), threading.Event(), {}

    def other():
        seen["before"] = torch.get_num_threads()
        with one_thread():
            inside.set()
            leave.wait(30)
            torch.ones(3).sum()  # where torch first computes in a thread, it sets the threads of that one
            seen["inside"] = threads()
        seen["after"] = torch.get_num_threads()

    torch.get_num_threads()  # for the same reason as below
    with threadpool_limits(3):
        before = threads()
        worker = threading.Thread(target=other)
        with one_thread():
            worker.start()
            inside.wait(30)
        # The other one is still inside: BLAS, which the process has once, keeps its limit.
        blas = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
        assert set(blas) == {1}
        leave.set()
        worker.join()
        assert threads() == before
    assert set(seen["inside"]) == {1}
    assert seen["after"] == seen["before"]


def test_nested_limits_and_errors_restore_what_was_there():
    with threadpool_limits(2):
        before = threads()
        with one_thread(), undisturbed():
            assert set(threads()) == {1}
        with pytest.raises(RuntimeError, match="ours"), one_thread():
            raise RuntimeError("ours")
        assert threads() == before


def test_undisturbed_is_silent():
    with warnings.catch_warnings(), torch.inference_mode(), torch.device("meta"):
        warnings.simplefilter("error")
        with undisturbed():
            assert torch.zeros(1).device.type == "cpu"
            assert not torch.is_inference_mode_enabled()
            assert not torch.is_grad_enabled()
