"""The state of the process: results do not depend on it, and nobody finds it changed.

The numbers of threads of BLAS are those of the whole process, and that of OpenMP belongs to each thread of Python. So
limits that overlap in several threads of Python have to be counted: whoever restores on his own restores what another
one had set. NumPy's handling of errors and torch's modes belong to a thread of Python each, and are simply set.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import numpy as np
import threadpoolctl
import torch

__all__ = ["full_precision", "neutral_modes", "one_thread", "undisturbed", "without_warnings_of_jit"]


@contextmanager
def without_warnings_of_jit() -> Iterator[None]:
    """Leave out that torch.jit is deprecated: geoopt compiles with it, and torch its own forward mode.

    Since torch 2.15 everybody is shown that.
    """
    with warnings.catch_warnings():
        for kind in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", "`torch.jit", kind)
        yield


@cache
def _libraries(api: str) -> threadpoolctl.ThreadpoolController:
    # Those that we compute with are loaded by now; looking for them takes 2 ms, and setting them 0.02 ms. A limit is
    # put on those selected alone: its end restores all that its controller knows.
    return threadpoolctl.ThreadpoolController().select(user_api=api)


class _SharedLimit:
    """Holds BLAS to one thread from when the first one enters until the last one leaves."""

    def __init__(self) -> None:
        self._lock, self._n_inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if self._n_inside == 0:
                self._limit = _libraries("blas").limit(limits=1)
            self._n_inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_inside -= 1
            if self._n_inside == 0:
                # Since threadpoolctl 3.8 OpenBLAS obeys the thread of Python that set it first, maybe another one.
                controller = getattr(threadpoolctl, "OpenBLASController", None)
                clear = getattr(controller, "clear_controlling_thread", None)
                if clear is not None:
                    clear(force=True)
                with self._limit:  # whose end restores, and leaves the right to whoever comes next
                    pass


_BLAS, _HERE = _SharedLimit(), threading.local()


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold linear algebra to one thread: matrices are small, and threads that spin cost more than they bring.

    Blocks may nest, and overlap in several threads of Python; behind the last one all is as it was. What a caller set
    by ``torch.set_num_threads`` stays, and MKL within torch follows that.

    Examples
    --------
    >>> with one_thread():
    ...     pass
    """
    if getattr(_HERE, "is_limited", False):
        yield
        return
    torch.get_num_threads()  # Torch sets OpenMP when a thread of Python first uses it: before the limit, not behind it.
    _HERE.is_limited = True
    try:
        with _libraries("openmp").limit(limits=1), _BLAS:
            yield
    finally:
        _HERE.is_limited = False


@contextmanager
def undisturbed() -> Iterator[None]:
    """Compute as in a new process, whatever the caller has set: one thread, and the modes of `neutral_modes`."""
    with one_thread(), neutral_modes():
        yield


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute single precision in single precision, on a GPU too, where torch rounds convolutions to ten bits."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def neutral_modes(*, gradients: bool = False) -> Iterator[None]:
    """Compute without autocast, on the CPU, with errors of NumPy as they are at first; a block or a decorator.

    What it cannot undo are torch's default dtype and deterministic algorithms, which are those of the whole process;
    tensors are made with a dtype.

    Parameters
    ----------
    gradients : bool, default=False
        Whether torch keeps what it needs for them.
    """
    with ExitStack() as state:
        state.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        state.enter_context(torch.inference_mode(False))
        state.enter_context(torch.set_grad_enabled(gradients))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                state.enter_context(torch.autocast(device, enabled=False))
        if torch.empty(0).device.type != "cpu":  # torch.get_default_device fails in torch 2.5 once one was unset
            state.enter_context(torch.device("cpu"))
        yield
