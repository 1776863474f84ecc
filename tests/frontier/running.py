"""Run the yardstick: each problem in a process of its own, one thread, several processes at a time."""

from __future__ import annotations

import json
import multiprocessing
import platform
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from threadpoolctl import threadpool_limits

from tests.frontier.ablation import PARTS
from tests.frontier.kinds import KINDS
from tests.frontier.problems import photographs

__all__ = ["Task", "run", "tasks", "tasks_without"]


class Task(NamedTuple):
    """A problem, and the part of the search or of the proof that is switched off for it."""

    kind: str
    seed: int
    without: str = ""


def tasks(only: Sequence[str] = (), least: bool = False) -> list[Task]:
    """Return problems by kind and seed: of kinds whose name holds one of some words; one of each with ``least``."""
    found = []
    for name, (_, n) in KINDS.items():
        if not only or any(word in name for word in only):
            found += [Task(name, seed) for seed in range(1 if least else n)]
    return found


def tasks_without(parts: Sequence[str], most: int, besides: Sequence[str] = ()) -> list[Task]:
    """Return the problems that parts serve, without these; at most so many seeds of a kind, and no kind of some."""
    found = []
    for part in parts:
        served = [task for task in tasks(PARTS[part].serves) if not any(word in task.kind for word in besides)]
        found += [task._replace(without=part) for task in served if task.seed < most]
    return found


def run(wanted: Sequence[Task], path: Path, n_jobs: int) -> list[dict[str, Any]]:
    """Run problems and write the record: what was run on and where, and a line for each problem in a fixed order."""
    torch.set_num_threads(1)
    for is_raw in (False, True):
        photographs(is_raw)  # once for all processes
    about, start = _about(), time.perf_counter()
    with threadpool_limits(1):
        lines = sorted(_lines(wanted, n_jobs), key=lambda line: wanted.index(_task(line)))
    about["seconds"] = round(time.perf_counter() - start)
    parts = ",\n  ".join(json.dumps(line) for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"about": {json.dumps(about)},\n "problems": [\n  {parts}\n ]}}\n', encoding="utf-8")
    return lines


def _lines(wanted: Sequence[Task], n_jobs: int) -> Iterator[dict[str, Any]]:
    # A process forked for each problem has all modules already, and a peak of its own.
    with multiprocessing.get_context("fork").Pool(n_jobs, maxtasksperchild=1) as pool:
        for number, line in enumerate(pool.imap_unordered(_line, wanted, chunksize=1), 1):
            without = f"without {line['without']}, " if "without" in line else ""
            print(
                f"{number}/{len(wanted)} {without}{line['kind']} {line['seed']}: exact {line['exact']:.2f}, "
                f"certified {line['certified']:.2f}, wrong {line['wrong']}, {line['seconds']:.1f} s",
                flush=True,
            )
            yield line


def _task(line: dict[str, Any]) -> Task:
    return Task(line["kind"], line["seed"], line.get("without", ""))


def _line(task: Task) -> dict[str, Any]:
    about: dict[str, Any] = {"kind": task.kind, "seed": task.seed}
    if task.without:
        PARTS[task.without].off()
        about["without"] = task.without
    before, start = _memory("VmRSS"), time.process_time()
    line = {**about, **KINDS[task.kind][0].run(task.seed)}
    line.setdefault("seconds", round(time.process_time() - start, 2))
    return line | {"peak_mb": round((_memory("VmHWM") - before) / 1024)}


def _memory(name: str) -> int:
    """Return a line of this process's status in KiB; zero where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def _about() -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
