"""Few samples: what could be proven, what the default search proves, and what FastICA gets close to.

    python examples/few_samples.py --out examples/results

The oracle starts at the truth: of the true directions it estimates each from its own zeros and asks the zero test
whether they prove it: about what a search can reach. Ours is the default ``SparseDictionaryRecovery``: a column
counts where it is recovered (proven) and within a sine of 1e-8 of its true one. Of FastICA a column counts where it is
within 0.1: it is never exact. Seconds are those of the processor, on one thread.
"""

from __future__ import annotations

import json
import time

import numpy as np
from measuring import CLOSE, EXACT, one_thread, parser_of, proven
from sklearn.decomposition import FastICA

from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.metrics import match_components
from sparsedl.preconditioning import whiten

SAMPLES, ZEROS = (3, 4, 5, 6, 8, 10), (0.5, 0.6, 0.7, 0.8, 0.9)
GRID = [(k, per, zeros) for k in (20, 50, 100) for per in SAMPLES for zeros in ZEROS]
TABLE = [
    (20, 4, 0.5), (20, 4, 0.9), (20, 5, 0.5), (50, 5, 0.5), (50, 6, 0.5), (100, 6, 0.5), (150, 10, 0.5),
    (50, 4, 0.5), (100, 5, 0.5), (200, 8, 0.5),
]  # fmt: skip
SMALL_GRID, SMALL_TABLE = [(8, 6, 0.5), (8, 6, 0.7), (8, 10, 0.5), (8, 10, 0.7)], [(8, 8, 0.6)]


def oracle(X, codes, components, seed):
    """Return which true columns their own zeros prove."""
    whitening = whiten(X)
    return proven(whitening, np.linalg.lstsq(whitening.whitened, codes, rcond=None)[0].T, refitted=True)


def ours(X, codes, components, seed):
    """Return which true columns are proven, and exact."""
    sdr = SparseDictionaryRecovery(random_state=seed).fit(X)
    return _matches(sdr.codes_[:, sdr.recovered_], codes, EXACT)


def fast_ica(X, codes, components, seed):
    """Return to which true columns FastICA is close."""
    return _matches(FastICA(whiten="unit-variance", max_iter=1000, random_state=seed).fit_transform(X), codes, CLOSE)


def _matches(found, codes, error):
    """Return which true codes have one of those found within a sine; codes, as a direction is known up to those."""
    if found.shape[1] == 0:
        return np.zeros(codes.shape[1], dtype=bool)
    padding = np.random.default_rng(0).standard_normal((max(0, codes.shape[1] - found.shape[1]), len(codes)))
    return match_components(np.vstack([found.T, padding]), codes.T).errors < error


METHODS = {"oracle": oracle, "sparsedl": ours, "FastICA": fast_ica}


def trial(k, per, zeros, seed):
    """Return for each method which columns it has, and the seconds it took."""
    X, codes, components = make_sparse_dictionary(int(per * k), k, sparsity=zeros, random_state=seed)
    if not codes.any(axis=0).all():  # a column that never occurs is no column
        return None
    outcomes = {}
    for name, method in METHODS.items():
        start = time.process_time()
        try:
            columns = method(X, codes, components, seed)
        except (np.linalg.LinAlgError, ValueError):
            columns = np.zeros(k, dtype=bool)
        outcomes[name] = (columns, time.process_time() - start)
    return outcomes


def measure(settings, n_trials):
    """Return a row for each setting: mean share of columns by method, whole dictionaries, and seconds."""
    rows = []
    for k, per, zeros in settings:
        runs = [run for run in (trial(k, per, zeros, seed) for seed in range(n_trials)) if run is not None]
        row = {"components": k, "samples_per_component": per, "zeros": zeros, "trials": len(runs)}
        for name in METHODS:
            row[name] = float(np.mean([run[name][0].mean() for run in runs])) if runs else 0.0
        determined = [run["sparsedl"] for run in runs if run["oracle"][0].all()]
        row["determined"], row["whole"] = len(determined), sum(bool(columns.all()) for columns, _ in determined)
        seconds = [run["sparsedl"][1] for run in runs] or [0.0]
        row["median_seconds"], row["most_seconds"] = float(np.median(seconds)), float(np.max(seconds))
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def page(maps, table):
    """Return the results page as Markdown."""
    lines = ["# Few samples", "", (__doc__ or "").split("\n\n", 2)[2].strip(), "", "![maps](few_samples.png)", ""]
    lines += ["## Whole dictionaries", "", "Of the seeds that the oracle finds determined, those wholly proven.", ""]
    lines += ["| components | samples each | zeros | determined | whole | columns | seconds: median | most |"]
    lines += ["| --- " * 8 + "|"]
    lines += [
        f"| {r['components']} | {r['samples_per_component']} | {r['zeros']} | {r['determined']} of {r['trials']} "
        f"| {r['whole']} | {r['sparsedl']:.0%} | {r['median_seconds']:.1f} | {r['most_seconds']:.1f} |"
        for r in table
    ]
    lines += ["", "## Share of columns", ""]
    lines += ["| components | samples each | zeros | trials | " + " | ".join(METHODS) + " | seconds: median |"]
    lines += ["| --- " * (5 + len(METHODS)) + "|"]
    lines += [
        f"| {r['components']} | {r['samples_per_component']} | {r['zeros']} | {r['trials']} | "
        + " | ".join(f"{r[name]:.0%}" for name in METHODS)
        + f" | {r['median_seconds']:.1f} |"
        for r in maps
    ]
    return "\n".join(lines) + "\n"


def picture(rows, path):
    """Draw three maps for each number of components: share of columns over samples and zeros."""
    from matplotlib.figure import Figure

    sizes = sorted({r["components"] for r in rows})
    figure = Figure(figsize=(2.7 * len(METHODS), 2.4 * len(sizes) + 0.4), layout="constrained")
    axes = figure.subplots(len(sizes), len(METHODS), sharex=True, sharey=True, squeeze=False)
    pers, zeros = (sorted({r[key] for r in rows}) for key in ("samples_per_component", "zeros"))
    for size, line in zip(sizes, axes, strict=True):
        for name, axis in zip(METHODS, line, strict=True):
            grid = np.full((len(pers), len(zeros)), np.nan)
            for r in rows:
                if r["components"] == size:
                    grid[pers.index(r["samples_per_component"]), zeros.index(r["zeros"])] = r[name]
            axis.imshow(grid, vmin=0, vmax=1, origin="lower", cmap="viridis", aspect="auto")
            axis.set(title=f"{name}, {size} components")
            axis.set(xticks=range(len(zeros)), xticklabels=zeros, yticks=range(len(pers)), yticklabels=pers)
    figure.supxlabel("zeros")
    figure.supylabel("samples per component")
    figure.savefig(path, dpi=120)


def main(arguments=None):
    parser = parser_of(__doc__)
    parser.add_argument("--map-trials", type=int, default=2, help="seeds of each point of the maps")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with one_thread():
        table = measure(SMALL_TABLE if options.small else TABLE, 1 if options.small else options.trials)
        maps = measure(SMALL_GRID if options.small else GRID, 1 if options.small else options.map_trials)
    (options.out / "few_samples.json").write_text(json.dumps({"table": table, "maps": maps}, indent=1))
    (options.out / "few_samples.md").write_text(page(maps, table))
    picture(maps, options.out / "few_samples.png")


if __name__ == "__main__":
    main()
