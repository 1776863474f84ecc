"""Time to the full batch on patches of photographs, number of starts, and the share of them that end in a true column.

Run with ``make benchmark``. SPEAR++ is l1 with Riemannian Adam, with our deflation and, as in the paper, without: there
starts are drawn at random on the sphere, knowing nothing of what was found.
"""

import time
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from sparsedl import SparseDictionaryRecovery
from sparsedl.surrogates import L1
from sparsedl_fl import GradientInverter
from sparsedl_fl.directions import ActivationDirections, DictionaryDirections
from sparsedl_fl.metrics import psnr

SEEDS = range(5)
SIZES = [(20, 200), (30, 200), (40, 1000), (65, 1000), (100, 1000)]
SEARCHES = {
    "activation search, one layer": ActivationDirections(use_next_layer=False),
    "activation search, with the next layer's gradient": ActivationDirections(),
    "LogSum, deflated": DictionaryDirections(),
    "l1, deflated": DictionaryDirections(SparseDictionaryRecovery(surrogate=L1())),
    "l1, plain starts (SPEAR++)": DictionaryDirections(SparseDictionaryRecovery(surrogate=L1(), deflation=None)),
}


@dataclass
class Run:
    quality: float
    certified: bool
    seconds: float
    starts: int
    successes: int


def run(cifar, batch_size, width, seed, search):
    pixels, layer_gradient = cifar.problem(batch_size, width, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        start = time.perf_counter()
        inverter = GradientInverter(search, random_state=seed).fit(layer_gradient)
        seconds = time.perf_counter() - start
    quality = psnr(pixels, cifar.pixels(inverter.inputs_)).mean()
    return Run(quality, bool(inverter.recovered_.all()), seconds, inverter.n_starts_, inverter.n_successes_)


@pytest.mark.benchmark
@pytest.mark.parametrize(("batch_size", "width"), SIZES)
def test_time_to_full_batch(cifar, batch_size, width):
    print(f"\n\n(b, m) = ({batch_size}, {width}), seeds {list(SEEDS)}\n")
    print("| search | exact | certified | mean PSNR | median seconds | median starts | starts in a column |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, search in SEARCHES.items():
        runs = [run(cifar, batch_size, width, seed, search) for seed in SEEDS]
        exact = sum(r.quality > 90 for r in runs)
        share = sum(r.successes for r in runs) / sum(r.starts for r in runs)
        print(
            f"| {name} | {exact} of {len(runs)} | {sum(r.certified for r in runs)} "
            f"| {np.mean([r.quality for r in runs]):.1f} | {np.median([r.seconds for r in runs]):.1f} "
            f"| {int(np.median([r.starts for r in runs]))} | {share:.0%} |",
            flush=True,
        )
        assert all(r.quality > 90 for r in runs if r.certified)
