"""What an inversion takes: beside one singular value decomposition, as batches and layers grow, and with workers.

    python examples/inverter_speed.py --out examples/results             # all of it
    python examples/inverter_speed.py --only growth                      # or a part: svd, growth, jobs

Each batch is inverted in a process of its own, on one thread. A part that is measured replaces itself in
``inverter_speed.json``; page and picture are written from all parts there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from measuring import measured_in_words, measured_with, one_thread, parser_of, resident, table

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.demo import natural_patches
from sparsedl_fl.simulation import client_gradient, fully_connected

PARTS = ("svd", "growth", "jobs")
SVD = [(65, 1000), (100, 4000)]
ALONE, NEXT = "one layer", "next layer"
GROWTH = {
    "b at m = 200": {ALONE: [(b, 200) for b in (5, 10, 20, 30)], NEXT: [(b, 200) for b in (5, 10, 20, 40, 60, 80)]},
    "b at m = 1000": {
        ALONE: [(b, 1000) for b in (12, 25, 50, 100, 200)],
        NEXT: [(b, 1000) for b in (12, 25, 50, 100, 200, 300)],
    },
    "b at m = 4000": {
        ALONE: [(b, 4000) for b in (25, 50, 100, 200)],
        NEXT: [(b, 4000) for b in (25, 50, 100, 200, 400)],
    },
    "m at b = m / 10": {
        ALONE: [(m // 10, m) for m in (100, 200, 400, 1000, 2000)],
        NEXT: [(m // 10, m) for m in (100, 200, 400, 1000, 2000, 4000)],
    },
}
JOBS = (300, 1000, NEXT)
SMALL = {
    "svd": [(10, 200)],
    "growth": {"b at m = 200": {ALONE: [(5, 200), (10, 200)], NEXT: [(5, 200), (10, 200)]}},
    "jobs": (20, 200, NEXT),
}
N_PIECES = 3000


def problem(b: int, m: int, sees: str, seed: int) -> tuple[LayerGradient, np.ndarray]:
    """Return a first layer's gradient for pieces of photographs, 3 x 32 x 32, behind three ReLU layers, and these."""
    pieces, mean, deviation = natural_patches(N_PIECES, random_state=0)
    chosen = np.random.default_rng(seed).choice(N_PIECES, b, replace=False)
    batch = torch.tensor(((pieces[chosen] - mean) / deviation).reshape(b, -1), dtype=torch.float32)
    model = fully_connected(batch.shape[1], width=m, random_state=seed)
    given = LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(b) % 10))
    one = LayerGradient(given.weight, given.bias, given.weight_grad, given.bias_grad)
    seen = given.next_layer
    two = LayerGradient(*one_layer(given), next_weight_grad=seen.weight_grad, next_weight=seen.weight)
    return (one if sees == ALONE else two), batch.numpy()


def one_layer(given: LayerGradient) -> tuple[np.ndarray, ...]:
    """Return weights and gradient of the layer itself."""
    return given.weight, given.bias, given.weight_grad, given.bias_grad


def inverted(b: int, m: int, sees: str, seed: int, n_jobs: int | None) -> dict:
    """Invert one batch, and measure it: seconds, the processor's seconds, memory beyond what there was before."""
    given, batch = problem(b, m, sees, seed)
    warm, _ = problem(4, 50, sees, 0)
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        GradientInverter(random_state=0).fit(warm)
        Path("/proc/self/clear_refs").write_text("5")  # what was held at most is counted from here
        before = resident("VmRSS")
        start, busy = time.perf_counter(), time.process_time()
        inverter = GradientInverter(random_state=seed, n_jobs=n_jobs).fit(given)
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        memory = max(0, resident("VmHWM") - before)
        start = time.process_time()
        if (b, m) in SVD + SMALL["svd"]:
            np.linalg.svd(given.weight_grad.astype(float), full_matrices=False)
        of_svd = time.process_time() - start
    off = np.sqrt(((inverter.inputs_[:, None] - batch[None, :, :]) ** 2).mean(axis=2).min(axis=0)) if b <= 400 else None
    return {
        "b": b, "m": m, "sees": sees, "seed": seed, "seconds": seconds, "cpu_seconds": busy, "svd_seconds": of_svd,
        "certified": int(inverter.recovered_.sum()), "exact": None if off is None else int((off < 1e-3).sum()),
        "starts": inverter.n_starts_, "memory": memory, "gradient": given.weight_grad.nbytes,
    }  # fmt: skip


def in_own_process(*setting: object) -> dict:
    """Run `inverted` in a new process, and return what it measured."""
    call = [sys.executable, __file__, "--one", json.dumps(setting)]
    done = subprocess.run(call, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    found = json.loads(done.stdout.splitlines()[-1])
    print(
        f"({found['b']}, {found['m']}), {found['sees']}, seed {found['seed']}: {found['seconds']:.2f} s, "
        f"{found['certified']} certified",
        flush=True,
    )
    return found


def measured(part: str, options: Namespace) -> dict:
    """Measure one part, with the load of the machine before it."""
    load, seeds = os.getloadavg()[0], range(1 if options.small else options.trials)
    if part == "svd":
        settings = SMALL[part] if options.small else SVD
        runs = [in_own_process(b, m, ALONE, seed, None) for b, m in settings for seed in seeds]
    elif part == "growth":
        sweeps = SMALL[part] if options.small else GROWTH
        settings = sorted({(b, m, sees) for sweep in sweeps.values() for sees in sweep for b, m in sweep[sees]})
        runs = [in_own_process(*setting, seed, None) for setting in settings for seed in seeds[:3]]
    else:
        b, m, sees = SMALL[part] if options.small else JOBS
        runs = [{"jobs": jobs, **in_own_process(b, m, sees, seed, jobs)} for seed in seeds[:3] for jobs in (1, 2)]
    return {"measured_with": measured_with(), "load": load, "runs": runs}


def median(runs: list[dict], key: str) -> float:
    """Return the median of what runs measured."""
    return float(np.median([run[key] for run in runs]))


def of(runs: list[dict], **wanted: object) -> list[dict]:
    """Return the runs of one setting."""
    return [run for run in runs if all(run[key] == value for key, value in wanted.items())]


def exponent(sizes: list[int], values: list[float]) -> float:
    """Return the slope of a line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-9)), 1)[0])


def page(parts: dict) -> str:
    """Return the page, in Markdown."""
    lines = ["# What an inversion takes", "", (__doc__ or "").split("\n\n", 1)[0], ""]
    for name, part in parts.items():
        runs, beside = part["runs"], f"; beside: {part['beside']}" if "beside" in part else ""
        lines += [
            f"## {TITLES[name]}",
            "",
            measured_in_words(part["measured_with"]),
            f"Load before: {part['load']:.1f}{beside}.",
            "",
        ]
        lines += [*{"svd": svd_rows, "growth": growth_rows, "jobs": job_rows}[name](runs), ""]
    return "\n".join(lines)


TITLES = {
    "svd": "Beside one full decomposition of the gradient, one layer alone",
    "growth": "As batches and layers grow",
    "jobs": "With workers",
}


def svd_rows(runs: list[dict]) -> list[str]:
    """Return the table of inversions beside decompositions."""
    rows = []
    for b, m in sorted({(run["b"], run["m"]) for run in runs}):
        here = of(runs, b=b, m=m)
        ratio = np.median([run["cpu_seconds"] / run["svd_seconds"] for run in here])
        rows.append([
            f"({b}, {m})", str(len(here)), f"{median(here, 'cpu_seconds'):.2f}", f"{median(here, 'svd_seconds'):.2f}",
            f"{ratio:.2f}", f"{sum(run['certified'] == b for run in here)} of {len(here)}",
        ])  # fmt: skip
    return table(["batch, width", "seeds", "s, processor", "s, decomposition", "ratio", "whole and certified"], rows)


def growth_rows(runs: list[dict]) -> list[str]:
    """Return the tables of what grows, and the exponents."""
    rows = []
    for b, m, sees in sorted(
        {(run["b"], run["m"], run["sees"]) for run in runs}, key=lambda key: (key[2], key[1], key[0])
    ):
        here = of(runs, b=b, m=m, sees=sees)
        rows.append([
            sees, f"({b}, {m})", f"{median(here, 'cpu_seconds'):.2f}", f"{median(here, 'starts'):.0f}",
            f"{median(here, 'memory') / 2**20:.0f}", f"{median(here, 'memory') / here[0]['gradient']:.1f}",
            f"{sum(run['certified'] for run in here)} of {b * len(here)}",
        ])  # fmt: skip
    lines = table(["sees", "batch, width", "s, processor", "starts", "MiB", "gradients", "certified"], rows)
    lines += ["", "Exponents of a line through the logarithms (medians of seeds):", ""]
    found = [
        [title, sees, f"{exponent(sizes, seconds):.1f}", f"{exponent(sizes, memory):.1f}"]
        for title, sees, sizes, seconds, memory in curves(runs)
    ]
    return lines + table(["against", "sees", "seconds", "memory"], found)


def curves(runs: list[dict]) -> list[tuple[str, str, list[int], list[float], list[float]]]:
    """Return title, what is seen, sizes, seconds and memory of each curve that was measured."""
    found = []
    for title, sweep in GROWTH.items():
        for sees, settings in sweep.items():
            there = [(b, m) for b, m in settings if of(runs, b=b, m=m, sees=sees)]
            if len(there) < 2:
                continue
            each = [of(runs, b=b, m=m, sees=sees) for b, m in there]
            sizes = [b if title.startswith("b") else m for b, m in there]
            found.append(
                (title, sees, sizes, [median(r, "cpu_seconds") for r in each], [median(r, "memory") for r in each])
            )
    return found


def job_rows(runs: list[dict]) -> list[str]:
    """Return the table of workers."""
    rows = []
    for jobs in sorted({run["jobs"] for run in runs}):
        here = of(runs, jobs=jobs)
        rows.append([str(jobs), f"{median(here, 'seconds'):.1f}", f"{median(here, 'cpu_seconds'):.1f}", str(len(here))])
    one, two = of(runs, jobs=1), of(runs, jobs=2)
    gains = [a["seconds"] / b["seconds"] for a, b in zip(one, two, strict=True)]
    same = all(a["starts"] == b["starts"] and a["certified"] == b["certified"] for a, b in zip(one, two, strict=True))
    setting = f"({runs[0]['b']}, {runs[0]['m']}), {runs[0]['sees']}"
    last = f"{setting}: {np.median(gains):.2f} times faster with two workers; starts and certificates "
    return [
        *table(["workers", "s", "s, processor", "seeds"], rows),
        "",
        last + ("are the same." if same else "differ."),
    ]


def picture(runs: list[dict], path: Path) -> None:
    """Draw seconds and memory against sizes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10, 7), sharex="col")
    for title, sees, sizes, seconds, memory in curves(runs):
        column, style = (0 if title.startswith("b") else 1), ("o-" if sees == NEXT else "s--")
        for row, values, scale in ((0, seconds, 1.0), (1, memory, 2.0**20)):
            label = f"{title}, {sees}: exponent {exponent(sizes, values):.1f}"
            axes[row, column].loglog(sizes, np.array(values) / scale, style, label=label, markersize=4)
            axes[row, column].legend(fontsize=6)
    for column, name in enumerate(("batch", "width, with a batch of a tenth")):
        axes[1, column].set_xlabel(name)
    axes[0, 0].set_ylabel("seconds of one thread")
    axes[1, 0].set_ylabel("memory, MiB")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure what is asked for, and write the page."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure (default: all)")
    parser.add_argument("--one", help="one setting as JSON: what each process is called with")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(inverted(*json.loads(options.one))))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "inverter_speed.json"
    parts = json.loads(path.read_text()) if path.exists() else {}
    for part in options.only:
        parts[part] = measured(part, options)
        path.write_text(json.dumps(parts, indent=1))
    parts = {part: parts[part] for part in PARTS if part in parts}
    (options.out / "inverter_speed.md").write_text(page(parts))
    if "growth" in parts:
        picture(parts["growth"]["runs"], options.out / "inverter_speed.png")


if __name__ == "__main__":
    main()
