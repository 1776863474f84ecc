"""What exactness costs: ours beside FastICA, large data, and workers.

    python examples/estimator_speed.py --out examples/results            # all of it
    python examples/estimator_speed.py --only speed                      # or a part: speed, large, jobs

A part that is measured replaces itself in ``estimator_speed.json``, and the page is written from all parts there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from joblib import parallel_config
from measuring import EXACT, measured_with, n_wrong, one_thread, resident, worst_sine
from sklearn.decomposition import FastICA
from speed_page import page

from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary

PARTS = ("speed", "large", "jobs")
SPEED = [(20, 10, 0.5), (50, 10, 0.5), (100, 10, 0.7), (100, 10, 0.5), (200, 20, 0.7)]
LARGE = [(100_000, 50), (1_000_000, 50), (50_000, 200)]
LARGE_ZEROS = 0.7
JOBS = (150, 10, 0.5)
SMALL_SPEED, SMALL_LARGE, SMALL_JOBS = [(6, 20, 0.6), (8, 20, 0.7)], [(2_000, 8)], (10, 10, 0.6)
CHUNK = 1_000
"""Observations that are drawn at once: what drawing takes must not hide what fitting takes."""


def timed(run: Callable[[], object]) -> tuple[object, float, float]:
    """Return what a function returns, and its seconds: on the clock, and of the processor."""
    start, busy = time.perf_counter(), time.process_time()
    found = run()
    return found, time.perf_counter() - start, time.process_time() - busy


def ours(X: np.ndarray, seed: int, **options: object) -> SparseDictionaryRecovery:
    return SparseDictionaryRecovery(random_state=seed, **options).fit(X)


def fast_ica(X: np.ndarray, seed: int) -> FastICA:
    return FastICA(n_components=X.shape[1], whiten="unit-variance", random_state=seed).fit(X)


def speed_of(setting: tuple[int, int, float], n_seeds: int) -> dict:
    """Measure both in turn on the same problems, after a call of each on another one."""
    k, per, zeros = setting
    runs = []
    for seed in [n_seeds, *range(n_seeds)]:  # the first is to warm up, and is not counted
        X, _, true = make_sparse_dictionary(per * k, k, sparsity=zeros, random_state=seed)
        sdr, seconds, busy = timed(lambda X=X, seed=seed: ours(X, seed))
        ica, ica_seconds, ica_busy = timed(lambda X=X, seed=seed: fast_ica(X, seed))
        runs.append(
            {
                "seed": seed,
                "seconds": seconds,
                "cpu_seconds": busy,
                "worst_sine": worst_sine(sdr.components_, true),
                "marked": bool(sdr.recovered_.all()),
                "n_marked": int(sdr.recovered_.sum()),
                "wrong": n_wrong(sdr, true),
                "status": sdr.status_,
                "ica_seconds": ica_seconds,
                "ica_cpu_seconds": ica_busy,
                "ica_worst_sine": worst_sine(ica.mixing_.T, true),
                "ica_converged": ica.n_iter_ < ica.max_iter,
            }
        )
    return {"components": k, "samples_per_component": per, "zeros": zeros, "runs": runs[1:]}


def large_data(n_samples: int, k: int, dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return observations of a random dictionary, drawn in chunks, and the dictionary."""
    _, _, true = make_sparse_dictionary(1, k, sparsity=LARGE_ZEROS, random_state=seed)
    rng = np.random.default_rng(seed)
    X = np.empty((n_samples, k), dtype=dtype)
    for start in range(0, n_samples, CHUNK):
        size = (min(CHUNK, n_samples - start), k)
        X[start : start + CHUNK] = (rng.standard_normal(size) * (rng.uniform(size=size) >= LARGE_ZEROS)) @ true
    return X, true


def large_here(case: dict) -> dict:
    """Fit large data once in this process, and return the time and the memory that it takes beyond the data."""
    with one_thread():
        fit = {"sparsedl": ours, "FastICA": fast_ica}[case["method"]]
        fit(make_sparse_dictionary(20 * 10, 10, sparsity=LARGE_ZEROS, random_state=0)[0].astype(case["dtype"]), 0)
        X, true = large_data(case["samples"], case["components"], case["dtype"], case["seed"])
        before = resident("VmRSS")
        found, seconds, busy = timed(lambda: fit(X, case["seed"]))
        beyond = resident("VmHWM") - before
    components = found.components_ if case["method"] == "sparsedl" else found.mixing_.T
    row = case | {"seconds": seconds, "cpu_seconds": busy, "data_bytes": X.nbytes, "bytes_beyond": beyond}
    row["worst_sine"] = worst_sine(components, true)
    if case["method"] == "sparsedl":
        row |= {"n_marked": int(found.recovered_.sum()), "wrong": n_wrong(found, true), "status": found.status_}
    return row


def large(shapes: list[tuple[int, int]], n_seeds: int) -> list[dict]:
    """Measure each fit in a process of its own, whose memory is its own."""
    rows = []
    for seed in range(n_seeds):
        for n_samples, k in shapes:
            for method in ("sparsedl", "FastICA"):
                for dtype in ("float64", "float32"):
                    case = {"method": method, "samples": n_samples, "components": k, "dtype": dtype, "seed": seed}
                    rows.append(in_a_process(case))
                    print(json.dumps(rows[-1]), flush=True)
    return rows


def in_a_process(case: dict) -> dict:
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, str(Path(__file__).resolve()), "--case", json.dumps(case)]
    done = subprocess.run(command, env=os.environ | one, capture_output=True, text=True, check=False)
    if done.returncode:
        return case | {"failed": f"exit status {done.returncode}: {done.stderr[-300:]}"}
    return json.loads(done.stdout.splitlines()[-1])


def jobs(setting: tuple[int, int, float], n_seeds: int) -> list[dict]:
    """Fit with one worker and two threads, and with two of dask, and compare what they return bit by bit."""
    rows = worked(setting, n_seeds, "one", 1, nullcontext)
    rows += worked(setting, n_seeds, "two, threads", 2, nullcontext, rows)
    if not find_spec("distributed"):
        return rows
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster, Client(cluster):
        rows += worked(setting, n_seeds, "two, dask", 2, lambda: parallel_config("dask", n_jobs=2), rows)
    return rows


def worked(
    setting: tuple[int, int, float],
    n_seeds: int,
    workers: str,
    n_jobs: int,
    backend: Callable[[], object],
    serial: list[dict] | None = None,
) -> list[dict]:
    """Return the fits with some workers; with ``serial``, whether they equal the first rows there."""
    k, per, zeros = setting
    rows = []
    with backend():
        # Workers start, and import, before the time is taken; a third of the size is enough to need them.
        ours(make_sparse_dictionary(per * (k // 3), k // 3, sparsity=zeros, random_state=n_seeds)[0], 0, n_jobs=n_jobs)
        for seed in range(n_seeds):
            X, _, true = make_sparse_dictionary(per * k, k, sparsity=zeros, random_state=seed)
            sdr, seconds, _ = timed(lambda X=X, seed=seed: ours(X, seed, n_jobs=n_jobs))
            row = {"workers": workers, "seed": seed, "seconds": seconds, "n_marked": int(sdr.recovered_.sum())}
            row |= {"components": k, "samples_per_component": per, "zeros": zeros, "n_starts": int(sdr.n_starts_)}
            row["exact"] = worst_sine(sdr.components_, true) < EXACT
            row["found"] = sdr.components_
            row["equal"] = serial is None or bool(np.array_equal(sdr.components_, serial[seed]["found"]))
            rows.append(row)
            print(json.dumps({key: value for key, value in row.items() if key != "found"}), flush=True)
    return rows


def measure(part: str, small: bool, n_seeds: int) -> list[dict]:
    if part == "large":
        return large(SMALL_LARGE if small else LARGE, 1 if small else min(n_seeds, 3))
    with one_thread():
        if part == "jobs":
            rows = jobs(SMALL_JOBS if small else JOBS, min(n_seeds, 3))
            return [{key: value for key, value in row.items() if key != "found"} for row in rows]
        rows = []
        for setting in SMALL_SPEED if small else SPEED:
            rows.append(speed_of(setting, n_seeds))
            print(json.dumps(rows[-1]), flush=True)
        return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path("examples/results"))
    parser.add_argument("--seeds", type=int, default=10, help="problems of each setting; large and jobs take 3 at most")
    parser.add_argument("--small", action="store_true", help="tiny sizes and two seeds, for a quick look")
    parser.add_argument("--only", choices=PARTS, help="measure this part and keep the others")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)  # a fit of large data, in a child
    options = parser.parse_args(arguments)
    if options.case:
        print(json.dumps(large_here(options.case)))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "estimator_speed.json"
    written = json.loads(path.read_text()) if path.exists() else {}
    for part in [options.only] if options.only else PARTS:
        rows = measure(part, options.small, 2 if options.small else options.seeds)
        written[part] = {"measured_with": measured_with(), "rows": rows}
        path.write_text(json.dumps(written, indent=1))
        (options.out / "estimator_speed.md").write_text(page(written))


if __name__ == "__main__":
    main()
