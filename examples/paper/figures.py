"""Figures from records: where recovery ends, how many draws SPEAR needs, how often it must fail, what peers see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.stats import binomtest

from paper.experiments import ImageBatch
from paper.methods import DRAWS_AT_ONCE, METHODS, OURS
from paper.picture_peers import unpacked
from paper.published import PUBLISHED
from paper.tables import TABLES
from sparsedl_fl.theory import expected_samples, failure_probability, failure_probability_bound

__all__ = ["FIGURES", "write_figure"]

Records = list[dict[str, Any]]

_PLAIN = {
    experiment.name: (experiment.batch_size, experiment.width)
    for table in TABLES.values()
    for experiment in table.rows.values()
    if experiment == ImageBatch(experiment.batch_size, experiment.width)
}
"""Batch size and width of the experiments in the usual setting, CIFAR-10 and one gradient, by their names."""


def write_figure(table_name: str, records: Iterable[dict[str, Any]], out: str | Path) -> Path | None:
    """Draw the figure of a table into ``<table>.png``; return its path, or None if the table has no figure.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    """
    if table_name not in FIGURES:
        return None
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'sparsedl[reproduce]'") from error
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FIGURES[table_name](figure, list(records))
    path = Path(out) / f"{table_name}.png"
    figure.savefig(path, dpi=130)
    return path


def _shares(records: Records) -> dict[tuple[str, int], dict[int, tuple[int, int]]]:
    """Return the number of exact batches and of all, by method and width, then by batch size."""
    shares: dict = defaultdict(lambda: defaultdict(lambda: (0, 0)))
    for record in records:
        if record["experiment"] in _PLAIN:
            b, m = _PLAIN[record["experiment"]]
            n_exact, n = shares[record["directions"], m][b]
            shares[record["directions"], m][b] = (n_exact + record["exact"], n + 1)
    return shares


def _curve(axis: Any, points: dict[float, tuple[int, int]], **style: Any) -> None:
    """Draw shares in percent with their 95 % intervals."""
    x = sorted(points)
    share = np.array([100 * points[value][0] / points[value][1] for value in x])
    intervals = [binomtest(*points[value]).proportion_ci(method="exact") for value in x]
    low, high = (100 * np.array([getattr(interval, end) for interval in intervals]) for end in ("low", "high"))
    axis.errorbar(x, share, (share - low, high - share), capsize=2, **style)


def _phase_transition(figure: Any, records: Records) -> None:
    """Draw the share of exact batches against the batch size, for every search and the paper's numbers."""
    shares = _shares(records)
    published = PUBLISHED["spearpp-table1"] | PUBLISHED["spearpp-table2"]
    widths = sorted({m for _, m in shares} & {200, 1000, 4000})
    axes = figure.subplots(1, max(1, len(widths)), sharey=True, squeeze=False)[0]
    for axis, width in zip(axes, widths, strict=False):
        for index, (name, method) in enumerate(METHODS.items()):
            style = {"color": f"C{index}", "marker": "o", "markersize": 4}
            if (name, width) in shares:
                _curve(axis, shares[name, width], label=method.label, **style)
            paper = {
                int(row.split("x")[0]): numbers["accuracy"]
                for (row, of), numbers in published.items()
                if of == name and row.endswith(f"x{width}")
            }
            if paper:
                axis.plot(list(paper), list(paper.values()), ":", mfc="none", **style, label=f"{name}, in the paper")
        axis.set(title=f"m = {width}", xlabel="batch size b", ylim=(-5, 105))
        axis.axvline(width / 2, color="0.8", lw=1)
    axes[0].set_ylabel("exact batches in %")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=7)


def _frontier(figure: Any, records: Records) -> None:
    """Draw the share of exact batches and the seconds against b / m, for our search in both settings."""
    shares = _shares(records)
    seconds = defaultdict(list)
    for record in records:
        if record["experiment"] in _PLAIN and record["exact"]:
            seconds[(record["directions"], *_PLAIN[record["experiment"]])].append(record["seconds"])
    left, right = figure.subplots(1, 2)
    widths = sorted({m for name, m in shares if name in OURS})
    for color, width in enumerate(widths):
        for name, line, marker in zip(OURS, ("-", "--"), ("o", "s"), strict=True):
            style = {"color": f"C{color}", "ls": line, "marker": marker, "markersize": 4}
            label = f"m = {width}, {METHODS[name].label.removeprefix('ours, ')}"
            points = {b / width: value for b, value in shares.get((name, width), {}).items()}
            if points:
                _curve(left, points, label=label, **style)
            timed = {b / m: median(values) for (of, b, m), values in seconds.items() if (of, m) == (name, width)}
            right.plot(sorted(timed), [timed[value] for value in sorted(timed)], **style)
    left.set(xlabel="batch size over width, b / m", ylabel="exact batches in %", ylim=(-5, 105))
    right.set(xlabel="batch size over width, b / m", ylabel="median seconds of the exact ones", yscale="log")
    for axis in (left, right):
        axis.axvline(0.5, color="0.8", lw=1)
    figure.legend(loc="outside lower center", ncols=3, fontsize=7)


def _samples(figure: Any, records: Records) -> None:
    """Draw the draws of kernel sampling against Lemma 5.2."""
    draws = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record["directions"] == "kernel" and record["experiment"] in _PLAIN:
            b, m = _PLAIN[record["experiment"]]
            draws[m][b].append(record["starts"] if record["exact"] else np.inf)
    axis = figure.subplots()
    for width, by_size in sorted(draws.items()):
        x = sorted(by_size)
        low, middle, high = (
            [float(np.quantile(by_size[b], share, method="nearest")) for b in x] for share in (0.1, 0.5, 0.9)
        )
        (line,) = axis.plot(x, middle, "o-", label=f"m = {width}, median and 10 to 90 %")
        axis.fill_between(x, low, high, alpha=0.2, color=line.get_color())
    sizes = np.arange(2, 1 + max((b for by_size in draws.values() for b in by_size), default=16))
    axis.plot(sizes, [expected_samples(int(b)) for b in sizes], "k--", label="Lemma 5.2")
    axis.set(xlabel="batch size b", ylabel=f"submatrices drawn, {DRAWS_AT_ONCE} at a time", yscale="log")
    axis.legend(fontsize=8)


def _failures(figure: Any, records: Records) -> None:
    """Draw how often exhaustive sampling must fail, against Lemma 5.3, and the lemma's bound for wider layers."""
    rows = {row.name: row for row in TABLES["spear-fig8"].rows.values()}
    counts: dict = defaultdict(lambda: defaultdict(lambda: (0, 0)))
    for record in records:
        if record["experiment"] in rows:
            row = rows[record["experiment"]]
            failed, n = counts[row.batch_size][row.width]
            counts[row.batch_size][row.width] = (
                failed + round(record["failures"] * row.n_trials),
                n + row.n_trials,
            )
    left, right = figure.subplots(1, 2)
    widths = np.arange(10, 41)
    for color, (b, points) in enumerate(sorted(counts.items())):
        _curve(left, points, color=f"C{color}", fmt="o", markersize=4, label=f"b = {b}")
        for function, line in ((failure_probability, "-"), (failure_probability_bound, "--")):
            left.plot(widths, [100 * function(b, int(m), 1e-12) for m in widths], line, color=f"C{color}", lw=1)
    left.set(xlabel="width m", ylabel="networks not recoverable in %")
    left.set_title("dots: measured; solid: approximation; dashed: bound", fontsize=8)
    left.legend(fontsize=8)
    sizes = np.arange(2, 101)
    for width in (100, 200, 400, 1000):
        right.plot(sizes, [max(failure_probability_bound(int(b), width), 1e-12) for b in sizes], label=f"m = {width}")
    right.set(xlabel="batch size b", ylabel="bound on the failure probability", yscale="log")
    right.legend(fontsize=8)


def _training(figure: Any, records: Records) -> None:
    """Draw the share of exact batches and the starts against the steps of training."""
    rows = {row.name: row.n_steps for row in TABLES["spear-fig7"].rows.values()}
    axis = figure.subplots()
    for name in OURS:
        points: dict = defaultdict(lambda: (0, 0))
        for record in records:
            if record["experiment"] in rows and record["directions"] == name:
                n_exact, n = points[rows[record["experiment"]]]
                points[rows[record["experiment"]]] = (n_exact + record["exact"], n + 1)
        if points:
            _curve(axis, points, marker="o", label=METHODS[name].label)
    axis.set(xlabel="steps of training", ylabel="exact batches in %", xscale="symlog", ylim=(-5, 105))
    axis.legend(fontsize=8)


PEER_LINES = {
    ("", ""): "true",
    ("activation", "mcmahan"): "ours",
    ("breaching", "mcmahan"): "breaching",
    ("r-gap", "chain"): "R-GAP, behind\nits own network",
    ("activation", "chain"): "ours, behind\nR-GAP's network",
}
"""Attack and network of the lines of pictures; the first are the true ones."""


def _peer_pictures(figure: Any, records: Records) -> None:
    """Draw one digit and eight of the first seed: the true ones, and the best each attack finds, with its mean PSNR."""
    named = {row.name: (row.network, row.batch_size) for row in TABLES["picture-peers"].rows.values()}
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    kept = [record for record in records if record["experiment"] in named and "found" in record]
    for record in sorted(kept, key=lambda of: (of["seed"], -np.mean(of["psnr"]))):
        found.setdefault((record["directions"], *named[record["experiment"]]), record)
    axes = figure.subplots(len(PEER_LINES), 2, width_ratios=[1, 8])
    for line, (attack, label) in zip(axes, PEER_LINES.items(), strict=True):
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
        for axis, n in zip(line, (1, 8), strict=True):
            axis.set(xticks=[], yticks=[], frame_on=False)
            is_true = not any(attack)
            record = found.get(("activation", "mcmahan", n) if is_true else (*attack, n))
            if record is None:
                continue
            pictures = unpacked(record["true" if is_true else "found"], n).reshape(n, 28, 28)
            axis.imshow(np.hstack(np.pad(pictures, ((0, 0), (0, 0), (1, 1)), constant_values=1)), cmap="gray")
            if not is_true:
                axis.set_xlabel(f"{np.mean(record['psnr']):.1f} dB", fontsize=7, labelpad=1)


def _census_peers(figure: Any, records: Records) -> None:
    """Draw the share of features that are right and the seconds against the batch size, for TabLeak, a guess and us."""
    sizes = {row.name: row.batch_size for row in TABLES["tabular-peers"].rows.values()}
    groups: dict = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record["experiment"] in sizes:
            groups[record["directions"], record["limit"]][sizes[record["experiment"]]].append(record)
    left, right = figure.subplots(1, 2)
    for color, ((attack, limit), by_size) in enumerate(sorted(groups.items())):
        b = sorted(by_size)
        style = {"color": f"C{color}", "marker": "o", "markersize": 4}
        label = METHODS[attack].label + (f", {limit}" if attack == "tableak" else "")
        shares = [100 * np.mean([np.mean(record["features"]) for record in by_size[n]]) for n in b]
        left.plot(b, shares, label=label, **style)
        if attack != "guess":
            right.plot(b, [median(record["seconds"] for record in by_size[n]) for n in b], **style)
    left.set(xlabel="batch size", ylabel="features right in %", xscale="log", ylim=(0, 105))
    right.set(xlabel="batch size", ylabel="median seconds of one core", xscale="log", yscale="log")
    for axis in (left, right):
        axis.set_xticks(sorted(sizes.values()), [str(n) for n in sorted(sizes.values())])
        axis.minorticks_off()
    if groups:
        left.legend(fontsize=7, loc="lower left")


FIGURES: dict[str, Callable[[Any, Records], None]] = {
    "spearpp-table1": _phase_transition,
    "spearpp-table2": _phase_transition,
    "frontier": _frontier,
    "spear-fig4": _samples,
    "spear-fig7": _training,
    "spear-fig8": _failures,
    "picture-peers": _peer_pictures,
    "tabular-peers": _census_peers,
}
"""What draws the figure of a table, from all records there are."""
