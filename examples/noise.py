"""Components under noise, ours beside FastICA and Picard, on the same data and the same thread.

    python examples/noise.py --out examples/results

The figure of a trial is the median sine of the angle between estimated and true components. Noise is Gaussian, and its
SNR is the mean square of the clean observations over that of the noise, in dB. Ours is
`sparsedl.noisy.estimate_under_noise`, with the noise level given, and without: then it takes it from the singular
values beyond the components, or where the dictionary is square, from the codes. Peers are scikit-learn's FastICA
(whiten="unit-variance") and Picard (python-picard, ortho=True), each with the true number of components. Laplace codes
have no zeros at all, and nothing is promised there.
"""

from __future__ import annotations

import json
import time

import numpy as np
import torch
from measuring import one_thread, parser_of
from sklearn.decomposition import FastICA

from sparsedl.datasets import make_sparse_dictionary
from sparsedl.metrics import match_components
from sparsedl.noisy import estimate_under_noise

SETTINGS = [(20, 40, 0.7), (50, 20, 0.7), (50, 100, 0.7), (20, 100, 0.5), (20, 100, "Laplace")]
SMALL = [(8, 40, 0.7)]
LEVELS = (10, 15, 20, 30)
METHODS = ("sparsedl, given", "sparsedl", "FastICA", "Picard")
FIRST_SEED = 20_000  # nothing was tuned on these


def observations(k, per, zeros, features, snr, seed):
    """Return noisy observations, the components and the noise level."""
    smooth = zeros == "Laplace"
    X, codes, components = make_sparse_dictionary(
        per * k, k, n_features=features * k, sparsity=0.0 if smooth else zeros, random_state=seed
    )
    rng = np.random.default_rng(seed)
    if smooth:
        X = rng.laplace(size=codes.shape) @ components
    noise = np.sqrt(np.mean(X**2)) * 10 ** (-snr / 20)
    return X + noise * rng.standard_normal(X.shape), components, noise


def ours(X, k, noise, seed):
    found = estimate_under_noise(X, k, noise, generator=torch.Generator().manual_seed(seed))
    return found.components, found.errors


def fast_ica(X, k, seed):
    return FastICA(n_components=k, whiten="unit-variance", max_iter=1000, random_state=seed).fit(X).mixing_.T


def picard(X, k, seed):
    from picard import picard as run

    K, W, _ = run(X.T, n_components=k, ortho=True, centering=False, max_iter=1000, random_state=seed)
    return np.linalg.pinv(W @ K).T


def trial(method, X, components, noise, seed):
    """Return the median error, the seconds, and how many components are off by more than three times their error."""
    k, expected, start = len(components), None, time.perf_counter()
    if method.startswith("sparsedl"):
        estimated, expected = ours(X, k, noise if "given" in method else None, seed)
    else:
        estimated = {"FastICA": fast_ica, "Picard": picard}[method](X, k, seed)
    seconds = time.perf_counter() - start
    match = match_components(estimated, components)
    found = {"error": float(np.median(match.errors)), "seconds": seconds}
    if expected is not None:
        matched = expected[match.permutation]
        told = matched < 1
        ratios = match.errors[told] / matched[told]
        found |= {"told": int(told.sum()), "off": int(np.sum(ratios > 3)), "ratios": ratios.tolist()}
    return found


def compare(settings, n_trials):
    rows = []
    for k, per, zeros in settings:
        for features in (1, 2):
            for snr in LEVELS:
                runs = {method: [] for method in METHODS}
                for seed in range(FIRST_SEED, FIRST_SEED + n_trials):
                    data = observations(k, per, zeros, features, snr, seed)
                    for method in METHODS:
                        runs[method].append(trial(method, *data, seed))
                for method, found in runs.items():
                    row = {"components": k, "samples_per_component": per, "zeros": zeros, "n_features": features * k}
                    row |= {"snr": snr, "method": method, "trials": n_trials}
                    row |= {key: float(np.median([run[key] for run in found])) for key in ("error", "seconds")}
                    if "told" in found[0]:
                        ratios = np.concatenate([run["ratios"] for run in found])
                        row |= {key: sum(run[key] for run in found) for key in ("told", "off")}
                        row["ratio"] = float(np.median(ratios)) if len(ratios) else None
                    rows.append(row)
                    print(json.dumps(row), flush=True)
    return rows


def grouped(rows):
    """Return one dictionary of methods for each setting."""
    groups = {}
    for row in rows:
        key = tuple(row[name] for name in ("components", "samples_per_component", "zeros", "n_features", "snr"))
        groups.setdefault(key, {})[row["method"]] = row
    return groups


def page(rows):
    """Return the results page as Markdown."""
    groups = grouped(rows)
    lines = ["# Components under noise", "", (__doc__ or "").split("\n\n", 2)[2].strip(), ""]
    lines += ["| components | samples each | zeros | features | SNR | " + " | ".join(METHODS) + " | seconds |"]
    lines += ["| --- " * (6 + len(METHODS)) + "|"]
    for key, of in groups.items():
        errors = " | ".join(f"{of[method]['error']:.4f}" for method in METHODS)
        seconds = " / ".join(f"{of[method]['seconds']:.2f}" for method in ("sparsedl", "FastICA", "Picard"))
        lines.append("| " + " | ".join(str(value) for value in key) + f" | {errors} | {seconds} |")
    lines += ["", "Seconds: ours without the noise level, FastICA, Picard.", "", "## What it says", ""]
    sparse = {key: of for key, of in groups.items() if key[2] != "Laplace"}
    for name in METHODS[:2]:
        for snr in LEVELS:
            worst = max(
                of[name]["error"] / min(of["FastICA"]["error"], of["Picard"]["error"])
                for key, of in sparse.items()
                if key[-1] == snr
            )
            lines.append(f"- {name}, {snr} dB: at most {worst:.2f} of the better peer's error, over all sparse codes.")
    mine = [row for row in rows if "told" in row]
    told, off = (sum(row[key] for row in mine) for key in ("told", "off"))
    total = sum(row["components"] * row["trials"] for row in mine)
    lines.append(f"- Of {total} components {told} have an expected error; {off} of them are off by three times it.")
    lines.append(f"- Trials a row: {max(row['trials'] for row in rows)}; seeds from {FIRST_SEED}; medians over trials.")
    return "\n".join(lines) + "\n"


def picture(rows, path):
    """Draw the error over the noise, one panel a setting."""
    from matplotlib.figure import Figure

    settings = list(dict.fromkeys((r["components"], r["samples_per_component"], r["zeros"]) for r in rows))
    figure = Figure(figsize=(2.7 * len(settings), 5.2), layout="constrained")
    axes = np.reshape(figure.subplots(2, len(settings), sharex=True, sharey=True), (2, -1))
    for column, setting in enumerate(settings):
        for line, features in enumerate((1, 2)):
            axis = axes[line, column]
            for method, mark in zip(METHODS, ("o-", "s--", "^-", "v:"), strict=True):
                of = [
                    r
                    for r in rows
                    if r["method"] == method
                    and (r["components"], r["samples_per_component"], r["zeros"]) == setting
                    and r["n_features"] == features * setting[0]
                ]
                axis.semilogy([r["snr"] for r in of], [r["error"] for r in of], mark, label=method)
            zeros = setting[2] if setting[2] == "Laplace" else f"{setting[2]:.0%} zeros"
            axis.set_title(
                f"{setting[0]} components, {setting[1]} rows each,\n{zeros}, {features}x features", fontsize=8
            )
    for axis in axes[1]:
        axis.set_xlabel("SNR in dB")
    for axis in axes[:, 0]:
        axis.set_ylabel("median sine")
    axes[0, 0].legend(fontsize=7)
    figure.savefig(path, dpi=120)


def main(arguments=None):
    options = parser_of(__doc__).parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with one_thread():
        rows = compare(SMALL if options.small else SETTINGS, 2 if options.small else options.trials)
    (options.out / "noise.json").write_text(json.dumps(rows, indent=1))
    (options.out / "noise.md").write_text(page(rows))
    picture(rows, options.out / "noise.png")


if __name__ == "__main__":
    main()
