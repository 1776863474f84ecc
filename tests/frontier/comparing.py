"""Compare two records of the yardstick, problem by problem: what changed beyond noise, and what is plainly wrong."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

__all__ = ["compared", "load", "table"]

CHANCE = 0.01
"""A change counts where chance makes one as large as seldom as this: over all kinds together, and in one by itself. (Of
single kinds some ten waver at all, so that one comparison in ten cries wolf.)"""

PLAIN = 0.3
"""Share of a kind's samples whose loss counts whatever the test says, which has no verdict on three seeds."""

SLOWER = 1.1
"""Ratio of seconds up to which two runs of the same code differ on a busy machine (medians of kinds, four runs)."""

Line = dict[str, Any]


def load(path: Path) -> tuple[dict[str, Any], list[Line]]:
    """Return what a record says of itself, and its problems."""
    record = json.loads(path.read_text(encoding="utf-8"))
    return record["about"], record["problems"]


def compared(before: Sequence[Line], after: Sequence[Line]) -> tuple[str, bool]:
    """Return a page on what changed, and whether nothing was lost beyond noise and nothing is newly wrong."""
    old = {(line["kind"], line["seed"]): line for line in before}
    pairs = [(old[key], line) for line in after if (key := (line["kind"], line["seed"])) in old]
    if not pairs:
        raise ValueError("the two records have no problem in common")
    lines = [f"{len(pairs)} problems in both, {len(before)} before, {len(after)} after", ""]
    newly = [(a, b) for a, b in pairs if b["wrong"] > a["wrong"]]
    lines += [f"NEWLY WRONG: {b['kind']}, seed {b['seed']}: {b['wrong']} ({b['status']})" for _, b in newly]
    kinds = _by_kind(pairs)
    lost = bool(newly)
    for name in ("exact", "certified"):
        is_less, text = _shares(name, pairs, kinds)
        lost |= is_less
        lines += text
    is_slower, text = _seconds(kinds)
    lines += [*text, *_memory(kinds), *_verdicts(pairs)]
    return "\n".join(lines), not (lost or is_slower)


def _by_kind(pairs: Iterable[tuple[Line, ...]]) -> dict[str, list[tuple[Line, ...]]]:
    kinds = defaultdict(list)
    for pair in pairs:
        kinds[pair[-1]["kind"]].append(pair)
    return dict(kinds)


def _shares(name: str, pairs: Sequence[tuple[Line, Line]], kinds: dict[str, list]) -> tuple[bool, list[str]]:
    """Compare a share over all problems, and kind by kind."""
    of = {kind: np.array([b[name] - a[name] for a, b in members]) for kind, members in kinds.items()}
    whole = np.concatenate(list(of.values()))
    chance = _chance(whole)
    is_lost = bool(chance < CHANCE and whole.mean() < 0)
    lines = [
        f"{name}: mean {np.mean([a[name] for a, _ in pairs]):.4f} -> {np.mean([b[name] for _, b in pairs]):.4f}, "
        f"less in {np.sum(whole < 0)}, more in {np.sum(whole > 0)} (chance {chance:.2g})" + (" LOST" if is_lost else "")
    ]
    for kind, change in of.items():
        if abs(change.sum()) < 1e-9:
            continue
        chance = _chance(change)
        is_less = change.mean() < -PLAIN or (chance < CHANCE and change.mean() < 0)
        lines.append(f"  {kind}: {change.mean():+.3f} (chance {chance:.2g})" + (" LOST" if is_less else ""))
        is_lost |= bool(is_less)
    return is_lost, lines


def _chance(change: np.ndarray) -> float:
    """Return the chance of so large a paired change, by Wilcoxon's signed ranks."""
    change = change[np.abs(change) > 1e-9]
    return float(wilcoxon(change).pvalue) if len(change) else 1.0


def _seconds(kinds: dict[str, list]) -> tuple[bool, list[str]]:
    """Compare CPU seconds: sums and medians of the kinds' ratios."""
    ratios = {kind: _sum("seconds", members, 1) / _sum("seconds", members, 0) for kind, members in kinds.items()}
    logs = np.log(list(ratios.values()))
    chance, median = _chance(logs), float(np.exp(np.median(logs)))
    is_slower = chance < CHANCE and median > SLOWER
    totals = [sum(_sum("seconds", members, side) for members in kinds.values()) for side in (0, 1)]
    lines = [
        f"seconds: {totals[0]:.0f} -> {totals[1]:.0f}; median ratio of a kind {median:.2f} (chance {chance:.2g})"
        + (" SLOWER" if is_slower else "")
    ]
    far = {kind: ratio for kind, ratio in ratios.items() if not 1 / 1.5 < ratio < 1.5}
    return is_slower, lines + [f"  {kind}: {ratio:.2f} times" for kind, ratio in far.items()]


def _memory(kinds: dict[str, list]) -> list[str]:
    peaks = {
        kind: [max(pair[side]["peak_mb"] for pair in members) for side in (0, 1)] for kind, members in kinds.items()
    }
    far = {kind: both for kind, both in peaks.items() if both[1] > 1.3 * both[0] + 20}
    return [f"  {kind}: peak {both[0]} -> {both[1]} MB" for kind, both in far.items()]


def _verdicts(pairs: Sequence[tuple[Line, Line]]) -> list[str]:
    changed = [(a, b) for a, b in pairs if (a.get("verdict"), a.get("counts")) != (b.get("verdict"), b.get("counts"))]
    lines = [f"verdicts or counts of audits that differ: {len(changed)}"]
    return lines + [
        f"  {b['status']} {a['verdict']} {list(a['counts'].values())} -> {b['verdict']} {list(b['counts'].values())}"
        for a, b in changed
    ]


def _sum(name: str, members: Sequence[tuple[Line, Line]], side: int) -> float:
    return sum(pair[side][name] for pair in members) + 0.01


def table(lines: Sequence[Line]) -> str:
    """Return a record as a table in Markdown, a row for each kind."""
    rows = [
        "| kind | problems | exact | whole | certified | wrong | seconds | starts | peak, MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, members in _by_kind((line,) for line in lines).items():
        own = [line for (line,) in members]
        exact = np.array([line["exact"] for line in own])
        rows.append(
            f"| {kind} | {len(own)} | {exact.mean():.3f} | {np.sum(exact == 1)} | "
            f"{np.mean([line['certified'] for line in own]):.3f} | {sum(line['wrong'] for line in own)} | "
            f"{np.median([line['seconds'] for line in own]):.2f} | {np.median([line['starts'] for line in own]):.0f} | "
            f"{max(line['peak_mb'] for line in own)} |"
        )
    return "\n".join(rows)
