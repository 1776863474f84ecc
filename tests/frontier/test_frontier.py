"""The yardstick itself: it runs, and its comparison tells loss from noise."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontier.__main__ import main
from tests.frontier.comparing import compared, load
from tests.frontier.kinds import KINDS
from tests.frontier.running import tasks


def record(seed=0, n_kinds=8, n_seeds=10, **changed):
    """Return lines of some kinds whose exact share wavers from run to run, as it does at the edge of the reach."""
    rng = np.random.default_rng(seed)
    lines = []
    for kind in range(n_kinds):
        for number in range(n_seeds):
            share = float(rng.choice([1.0, 1.0, 0.9, 0.5]))
            line = {"kind": f"kind {kind}", "seed": number, "exact": share, "certified": share, "wrong": 0}
            seconds = float(np.exp(0.05 * rng.standard_normal()))
            lines.append(line | {"starts": 64, "seconds": seconds, "peak_mb": 100, "status": ""})
    for name, change in changed.items():
        for line in lines:
            line[name] = change(line)
    return lines


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_loss(seed):
    page, is_held = compared(record(seed), record(seed + 100))
    assert is_held, page
    assert "LOST" not in page


def test_a_tenth_of_all_samples_less_is_lost():
    rng = np.random.default_rng(0)
    less = record(0, exact=lambda line: line["exact"] - 0.1 * (rng.random() < 0.5))
    page, is_held = compared(record(0), less)
    assert not is_held
    assert "exact: mean" in page
    assert "LOST" in page


def test_one_kind_of_three_seeds_that_is_gone_is_lost():
    before = record(0, n_kinds=1, n_seeds=3, exact=lambda line: 1.0)
    page, is_held = compared(before, record(0, n_kinds=1, n_seeds=3, exact=lambda line: 0.0))
    assert not is_held
    assert "kind 0: -1.000" in page


def test_one_wrong_certificate_is_never_noise():
    after = record(0)
    after[17]["wrong"] = 1
    page, is_held = compared(record(0), after)
    assert not is_held
    assert "NEWLY WRONG: kind 1, seed 7" in page


def test_half_as_long_again_is_slower_and_is_said():
    page, is_held = compared(record(0), record(0, seconds=lambda line: 1.5 * line["seconds"]))
    assert not is_held
    assert "SLOWER" in page


def test_changed_verdicts_are_listed():
    before, after = record(0, n_kinds=1, n_seeds=1), record(0, n_kinds=1, n_seeds=1)
    before[0] |= {"verdict": "RECOVERED", "counts": {"n_certified": 8}}
    after[0] |= {"verdict": "PARTLY", "counts": {"n_certified": 7}}
    assert "RECOVERED [8] -> PARTLY [7]" in compared(before, after)[0]


def test_records_without_a_problem_in_common_are_refused():
    with pytest.raises(ValueError, match="no problem in common"):
        compared(record(0, n_kinds=1), [])


def test_there_are_forty_kinds_with_ten_seeds_or_three():
    assert len(KINDS) >= 40
    n_seeds = {name: sum(kind == name for kind, *_ in tasks([name])) for name in KINDS}
    assert all(n in (3, 10) for name, n in n_seeds.items() if name not in ("bank of updates", "audit --example"))
    assert n_seeds["bank of updates"] > 200


def test_a_run_writes_what_a_comparison_reads(tmp_path, capsys):
    path = tmp_path / "record.json"
    assert main(["run", "--out", str(path), "--only", "dictionary 20", "--least", "--jobs", "1"]) == 0
    about, (line,) = load(path)
    assert line["exact"] == 1.0
    assert line["certified"] == 1.0
    assert line["wrong"] == 0
    assert line["seconds"] > 0
    assert "torch" in about
    assert main(["compare", str(path), str(path)]) == 0
    assert main(["show", str(path)]) == 0
    assert "dictionary 20, 5 a component" in capsys.readouterr().out


def test_an_unknown_kind_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["run", "--out", str(tmp_path / "record.json"), "--only", "no such kind"])
    assert "no kind holds" in capsys.readouterr().err
