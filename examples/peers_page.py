"""The page and the picture of ``compare_peers.py``, made of its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from measuring import measured_in_words, table

SETTING = ("components", "samples_per_component", "zeros")
OURS = "sparsedl"


def by_setting(rows: list[dict]) -> list[dict[str, dict]]:
    """Return the rows of each setting, by the name of the method."""
    settings = {}
    for row in rows:
        settings.setdefault(tuple(row[key] for key in SETTING), {})[row["method"]] = row
    return list(settings.values())


def name_of(row: dict) -> list[str]:
    return [str(row[key]) for key in SETTING]


def summary_table(rows: list[dict]) -> list[str]:
    lines = []
    for methods in by_setting(rows):
        mine, ica = methods[OURS], methods["FastICA"]
        of = f" of {mine['trials']}"
        lines.append(
            [
                *name_of(mine),
                f"{mine['provable']}{of}",
                f"{round(mine['exact'] * mine['trials'])}{of}",
                f"{mine['marked']}{of}",
                f"{mine['median_seconds']:.3f}",
                f"{ica['median_seconds']:.3f}",
                f"{mine['median_seconds'] / ica['median_seconds']:.1f}",
            ]
        )
    header = ["components", "samples each", "zeros", "provable", "exact", "all marked", "seconds"]
    return table([*header, "of FastICA", "ratio"], lines)


def findings(rows: list[dict]) -> list[str]:
    """Return what the rows say, in sentences that are made of them and of nothing else."""
    settings = by_setting(rows)
    mine = [methods[OURS] for methods in settings]
    peers = [row for row in rows if row["method"] != OURS]
    short = [row for row in mine if row["exact"] < 1]
    lines = [f"- sparsedl is exact in every trial of {len(mine) - len(short)} of {len(mine)} settings."]
    for row in short:
        n = row["trials"]
        lines.append(
            f"- It is not at ({', '.join(name_of(row))}) (components, samples each, zeros): exact in "
            f"{round(row['exact'] * n)} of {n}, {row['components_exact']:.0%} of the components, and provable in "
            f"{row['provable']} of {n}; seeds {', '.join(map(str, row['not_exact']))}."
        )
    determined, lost = (sum(row["provable"] for row in mine), sum(len(row["provable_not_exact"]) for row in mine))
    lines += [f"- Of the {determined} trials that are provable it is exact in {determined - lost}."]
    where = [f"{row['wrong']} at ({', '.join(name_of(row))})" for row in mine if row["wrong"]]
    lines += [f"- Components that it marks as recovered and that are wrong: {', '.join(where) or 'none'}."]
    ahead = [row for methods in settings for row in methods.values() if row["exact"] > methods[OURS]["exact"]]
    n_exact = sum(round(row["exact"] * row["trials"]) for row in peers)
    lines += [f"- The peers are exact in {n_exact} of {sum(row['trials'] for row in peers)} trials together."]
    names = sorted({f"{row['method']} at ({', '.join(name_of(row))})" for row in ahead})
    lines += [f"- A peer is exact more often: {', '.join(names)}." if names else "- No peer is exact more often."]
    n_close = sum(any(r["close"] == 1 for r in methods.values() if r["method"] != OURS) for methods in settings)
    lines += [f"- A peer is close in every trial of {n_close} of {len(settings)} settings."]
    ratios = [m[OURS]["median_seconds"] / m["FastICA"]["median_seconds"] for m in settings]
    lines += [
        f"- Time of sparsedl over that of FastICA: {np.median(ratios):.1f} in the median over the settings, from "
        f"{min(ratios):.1f} to {max(ratios):.1f}; below 1 in {sum(ratio < 1 for ratio in ratios)} of {len(ratios)}."
    ]
    missing = {"K-SVD"} - {row["method"] for row in rows}
    return lines + ["- K-SVD was left out: dictlearn was not installed."] * bool(missing)


def page(about: str, rows: list[dict], real: list[dict], what: dict) -> str:
    """Return the results page as Markdown, ``about`` first."""
    lines = ["# Beside the tools people use", "", about, ""]
    lines += [
        f"{measured_in_words(what)} One thread; the methods take turns, after each was called once; "
        f"seconds are medians. Seeds count from 0.",
    ]
    lines += ["", "## Ours beside FastICA", "", *summary_table(rows), "", "## What it says", "", *findings(rows)]
    header = ["components", "samples each", "zeros", "method", "trials"]
    header += ["exact", "close", "components exact", "median error"]
    lines += ["", "## All methods", ""]
    lines += table(
        [*header, "seconds"],
        [
            [
                *name_of(row),
                row["method"],
                str(row["trials"]),
                *(f"{row[key]:.0%}" for key in ("exact", "close", "components_exact")),
                f"{row['median_error']:.1e}",
                f"{row['median_seconds']:.3f}",
            ]
            for row in rows
        ],
    )
    lines += ["", "## Natural image patches, 8 x 8", "", "Codes of mean square one; smaller modulus is sparser.", ""]
    lines += table(
        ["method", "mean modulus", "share below 0.1", "seconds"],
        [[r["method"], f"{r['mean_modulus']:.4f}", f"{r['below_a_tenth']:.3f}", f"{r['seconds']:.1f}"] for r in real],
    )
    return "\n".join(lines) + "\n"


def picture(rows: list[dict], methods: list[str], path: Path) -> None:
    """Draw one phase-transition map a method: share of exact trials over samples and zeros, at 50 components."""
    from matplotlib.figure import Figure

    k = max(r["components"] for r in rows if r["components"] <= 50)
    mine = [r for r in rows if r["components"] == k]
    pers, zeros = (sorted({r[key] for r in mine}) for key in ("samples_per_component", "zeros"))
    names = [name for name in methods if any(r["method"] == name for r in mine)]
    figure = Figure(figsize=(2.2 * len(names), 2.8), layout="constrained")
    for axis, name in zip(np.atleast_1d(figure.subplots(1, len(names), sharey=True)), names, strict=True):
        grid = np.full((len(pers), len(zeros)), np.nan)
        for r in mine:
            if r["method"] == name:
                grid[pers.index(r["samples_per_component"]), zeros.index(r["zeros"])] = r["exact"]
        axis.imshow(grid, vmin=0, vmax=1, origin="lower", cmap="viridis", aspect="auto")
        axis.set(title=name, xlabel="zeros", xticks=range(len(zeros)), xticklabels=zeros)
        axis.set(yticks=range(len(pers)), yticklabels=pers)
    figure.suptitle(f"share of exact recoveries, {k} components; samples per component upwards")
    figure.savefig(path, dpi=120)
