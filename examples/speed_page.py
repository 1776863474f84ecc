"""The page of ``estimator_speed.py``, made of its rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from measuring import CLOSE, EXACT, measured_in_words, table


def page(written: dict) -> str:
    """Return the page as Markdown, of the parts that are measured."""
    lines = ["# What exactness costs", ""]
    lines += [
        "`SparseDictionaryRecovery(random_state=seed)`, nothing else set, on `make_sparse_dictionary`. A component is "
        f"exact within a sine of {EXACT:.0e} of its true one. Written by `examples/estimator_speed.py`.",
        "",
    ]
    for part, section in (("speed", speed), ("large", large), ("jobs", jobs)):
        if part in written:
            lines += section(written[part]["rows"])
            lines += ["", measured_in_words(written[part]["measured_with"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def of(rows: Iterable[dict], key: str) -> np.ndarray:
    return np.array([row[key] for row in rows])


def speed(rows: list[dict]) -> list[str]:
    n_seeds = sorted({len(row["runs"]) for row in rows})
    lines = ["## Beside FastICA", ""]
    lines += [
        f"One thread, {' or '.join(map(str, n_seeds))} seeds from 0; both fit the same problem in turn, in one run, "
        "after a call of each on another problem of the size. FastICA has `n_components`, `whiten='unit-variance'` and "
        "the seed set, nothing else. Seconds are medians (and the range), ratios are of medians; the second is that of "
        "the processor's time, which others on the machine hardly change.",
        "",
    ]
    body = []
    for row in rows:
        runs, n = row["runs"], len(row["runs"])
        mine, ica = np.median(of(runs, "seconds")), np.median(of(runs, "ica_seconds"))
        busy = np.median(of(runs, "cpu_seconds")) / np.median(of(runs, "ica_cpu_seconds"))
        body.append(
            [
                f"({row['components']}, {row['samples_per_component']}, {row['zeros']})",
                f"{mine:.3f} ({of(runs, 'seconds').min():.3f} to {of(runs, 'seconds').max():.3f})",
                f"{ica:.3f} ({of(runs, 'ica_seconds').min():.3f} to {of(runs, 'ica_seconds').max():.3f})",
                f"{mine / ica:.1f}",
                f"{busy:.1f}",
                f"{np.sum(of(runs, 'worst_sine') < EXACT)} of {n}",
                f"{np.sum(of(runs, 'marked'))} of {n}",
                f"{np.sum(of(runs, 'wrong'))}",
                f"{np.sum(of(runs, 'ica_worst_sine') < EXACT)}, {np.sum(of(runs, 'ica_worst_sine') < CLOSE)}, "
                f"{np.sum(of(runs, 'ica_converged'))} of {n}",
            ]
        )
    header = ["(components, samples each, zeros)", "sparsedl, s", "FastICA, s", "ratio", "ratio, CPU", "exact"]
    lines += table([*header, "all marked", "marked wrong", "FastICA exact, within 0.1, converged"], body)
    return lines + [""] + failures(rows)


def failures(rows: list[dict]) -> list[str]:
    """Return a sentence for each problem that is not exact, or that there is none."""
    lines = [
        f"- ({row['components']}, {row['samples_per_component']}, {row['zeros']}), seed {run['seed']}: "
        f"{run['n_marked']} of {row['components']} marked; {run['status']}."
        for row in rows
        for run in row["runs"]
        if run["worst_sine"] >= EXACT
    ]
    return ["Not exact:", "", *lines] if lines else ["Every problem is exact."]


def large(rows: list[dict]) -> list[str]:
    n_seeds = len({row["seed"] for row in rows})
    lines = ["## Large data", ""]
    lines += [
        f"Each fit in a process of its own, one thread, {n_seeds} seed{'s' * (n_seeds > 1)} from 0, zeros 0.7. Seconds "
        "are medians. Memory is the most that the process holds during the fit less what it held before, with the data "
        "in it, in units of the data; the largest of the seeds. Single precision rounds the observations, and the "
        "dictionary is as exact as they are.",
        "",
    ]
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault((row["samples"], row["components"], row["dtype"], row["method"]), []).append(row)
    body, failed = [], []
    for (samples, components, dtype, method), every in sorted(groups.items(), key=lambda item: item[0][:2]):
        done = [row for row in every if "failed" not in row]
        failed += [f"- {method}, {samples:,} x {components}, {dtype}: {r['failed']}" for r in every if "failed" in r]
        if not done:
            continue
        memory = max(of(done, "bytes_beyond") / of(done, "data_bytes"))
        marked = "-"
        if method == "sparsedl":
            marked = f"{of(done, 'n_marked').min()} of {components}, {of(done, 'wrong').sum()} wrong"
        body.append(
            [f"{samples:,} x {components}", dtype, f"{done[0]['data_bytes'] / 1e6:.0f}", method]
            + [f"{np.median(of(done, 'seconds')):.2f}", f"{memory:.2f}", f"{of(done, 'worst_sine').max():.0e}", marked]
        )
    header = ["data", "type", "MB", "method", "seconds", "memory beyond", "worst sine", "marked, the fewest"]
    return lines + table(header, body) + (["", "Failed:", "", *failed] if failed else [])


def jobs(rows: list[dict]) -> list[str]:
    first = rows[0]
    lines = ["## Workers", ""]
    lines += [
        f"({first['components']}, {first['samples_per_component']}, {first['zeros']}), one thread a worker. Workers "
        "start before the time is taken. Equal is `np.array_equal` of `components_` with those of one.",
        "",
    ]
    body = []
    for workers in dict.fromkeys(of(rows, "workers").tolist()):
        every = [row for row in rows if row["workers"] == workers]
        n = len(every)
        body.append(
            [workers, f"{np.median(of(every, 'seconds')):.2f}", f"{of(every, 'equal').sum()} of {n}"]
            + [f"{of(every, 'exact').sum()} of {n}", f"{np.median(of(every, 'n_starts')):.0f}"]
        )
    lines += table(["workers", "seconds, median", "equal", "exact", "starts, median"], body)
    without = "two, dask" not in of(rows, "workers")
    return lines + ["", "dask was left out: distributed is not installed."] * without
