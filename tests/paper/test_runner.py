import csv
import json

import pytest
from threadpoolctl import threadpool_limits

from paper import runner as runner_module
from paper.experiments import ImageBatch
from paper.figures import FIGURES, write_figure
from paper.methods import Budget
from paper.run import main
from paper.runner import read_records, reproduce
from paper.summary import summarize, write_summary
from sparsedl_fl import GradientInverter


def test_a_record_says_what_was_run(tiny, source, tmp_path):
    records = reproduce("tiny", out=tmp_path, data=source, methods=["activation"])
    assert [(record["row"], record["seed"]) for record in records] == [
        ("3x40", 1000),
        ("3x40", 1001),
        ("4x50", 1000),
        ("4x50", 1001),
    ]
    for record in records:
        assert record["exact"]
        assert record["certified"] == record["batch_size"] == len(record["psnr"])
        assert record["limit"] == "300 seconds"
        assert record["threads"] >= 1
        assert {"starts", "seconds", "matching", "residual", "device", "status"} <= set(record)
        assert {"python", "numpy", "torch", "sparsedl"} <= set(record["versions"])
    assert [json.loads(line)["seed"] for line in (tmp_path / "tiny.jsonl").read_text().splitlines()]


def test_a_batch_that_is_refused_is_a_failure_with_its_reason(tiny, source, tmp_path, monkeypatch):
    def fit(self, given):
        raise ValueError("the batch is too large")

    monkeypatch.setattr(GradientInverter, "fit", fit)
    records = reproduce("tiny", out=tmp_path, data=source, methods=["activation"], n_batches=1)
    assert not any(record["exact"] for record in records)
    assert {record["status"] for record in records} == {"refused: the batch is too large"}
    assert write_summary("tiny", records, tmp_path).read_text().count("| 0 % |") == 2


def test_it_stays_within_the_threads_that_the_caller_allows(tiny, source, tmp_path):
    with threadpool_limits(limits=1):
        records = reproduce("tiny", out=tmp_path, data=source, methods=["activation"], rows=["3*"], n_batches=1)
    assert [record["threads"] for record in records] == [1]


def test_nothing_runs_twice_and_more_batches_go_on(tiny, source, tmp_path, monkeypatch):
    reproduce("tiny", out=tmp_path, data=source, methods=["activation"], rows=["3*"])
    ran = []
    run = ImageBatch.run
    monkeypatch.setattr(ImageBatch, "run", lambda self, *rest: ran.append((self.width, rest[1])) or run(self, *rest))
    records = reproduce("tiny", out=tmp_path, data=source, methods=["activation"], n_batches=3)
    assert ran == [(40, 1002), (50, 1000), (50, 1001), (50, 1002)]
    assert len(records) == 6
    other_budget = reproduce("tiny", out=tmp_path, data=source, methods=["activation"], rows=["3*"], n_batches=1,
                             budget=Budget(seconds=7))  # fmt: skip
    assert {record["limit"] for record in other_budget} == {"300 seconds", "7 seconds"}


def test_an_interruption_loses_no_finished_batch(tiny, source, tmp_path, monkeypatch):
    run = ImageBatch.run

    def interrupted(self, method, seed, *rest):
        if seed == 1001:
            raise KeyboardInterrupt
        return run(self, method, seed, *rest)

    monkeypatch.setattr(ImageBatch, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reproduce("tiny", out=tmp_path, data=source, methods=["activation"])
    assert [record["seed"] for record in read_records(tmp_path)] == [1000]
    # A line that was cut short is run again, and spoils neither what is before nor what comes after.
    with (tmp_path / "tiny.jsonl").open("a") as file:
        file.write('{"experiment": "ImageBatch(ba')
    monkeypatch.setattr(ImageBatch, "run", run)
    assert len(reproduce("tiny", out=tmp_path, data=source, methods=["activation"])) == 4
    assert len(read_records(tmp_path)) == 4


@pytest.mark.slow
def test_jobs_give_the_same(tiny, source, tmp_path):
    alone, together = (
        reproduce("tiny", out=tmp_path / str(n_jobs), data=source, methods=["activation"], rows=["3x40"], n_jobs=n_jobs)
        for n_jobs in (1, 2)
    )
    assert [record["seed"] for record in together] == [1000, 1001]
    for one, two in zip(alone, together, strict=True):
        assert one["starts"] == two["starts"]
        assert two["psnr"] == pytest.approx(one["psnr"], abs=1.0)


def test_what_is_wrong(tiny, tmp_path):
    for wrong, message in (
        ({"rows": ["9x9"]}, "no row fits '9x9'; there are 3x40, 4x50"),
        ({"methods": ["magic"]}, "there are no directions 'magic'"),
        ({"n_batches": 0}, "n_batches must be positive"),
    ):
        with pytest.raises(ValueError, match=message):
            reproduce("tiny", out=tmp_path, **wrong)
    with pytest.raises(ValueError, match="there is no table 'nothing'; there are spearpp-table1"):
        reproduce("nothing", out=tmp_path)


def record(row, method, seed, exact, **more):
    sizes = {"20x200": (20, 200), "30x200": (30, 200)}[row]
    return {
        "experiment": ImageBatch(*sizes).name,
        "row": row,
        "directions": method,
        "seed": seed,
        "limit": "",
        "batch_size": sizes[0],
        "width": sizes[1],
        "exact": exact,
        "psnr": [150.0, 160.0] if exact else [10.0, 20.0],
        "certified": sizes[0] * exact,
        "starts": 100 * seed,
        "seconds": float(seed),
        **more,
    }


def test_a_summary_has_interval_metric_and_the_papers_number(tmp_path):
    records = [record("20x200", "l1-radam", seed, exact=seed != 3) for seed in (1, 2, 3, 4)]
    records += [record("30x200", "activation", 1, exact=True)]
    l1, ours = summarize("spearpp-table1", records)
    assert (l1["batches"], l1["exact"], l1["accuracy"], l1["certified"]) == (4, 3, 75.0, 3)
    assert l1["interval"] == "19 to 99"
    assert l1["psnr"] == (3 * 155 + 15) / 4
    assert (l1["starts"], l1["seconds"]) == (250, 2.5)
    assert l1["paper"] == "121 / 95 %"
    assert ours["paper"] == "best: 41.7 / 25 %"
    assert summarize("spearpp-table1", records, ["kernel"]) == [l1, ours]
    kernel = record("20x200", "kernel", 1, exact=True)
    _, second, _ = summarize("spearpp-table1", [*records, kernel], ["kernel"])
    assert second["search"] == "SPEAR, kernel sampling"
    text = write_summary("spearpp-table1", records, tmp_path).read_text()
    assert "| 20x200 | SPEAR++, l1, Riemannian Adam |" in text
    with (tmp_path / "spearpp-table1.csv").open() as file:
        assert [line["accuracy"] for line in csv.DictReader(file)] == ["75.0", "100.0"]


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn_from_whatever_there_is(name, tmp_path):
    records = [
        record("20x200", "kernel", 1, exact=True),
        record("20x200", "activation", 1, exact=True),
        record("30x200", "l1-radam", 1, exact=False),
        {"experiment": "FailureTrials(batch_size=4, width=20)", "directions": "exhaustive", "failures": 0.1},
        {
            "experiment": "ImageBatch(batch_size=10, width=200, dataset='mnist', n_hidden=5)",
            "directions": "activation",
            "exact": True,
        },
        {
            "experiment": "TabularPeerBatch(batch_size=8, width=100)",
            "directions": "tableak",
            "limit": "30 members",
            "features": [0.9],
            "seconds": 1.0,
        },
    ]
    assert write_figure(name, records, tmp_path).read_bytes().startswith(b"\x89PNG")
    assert write_figure("spear-table2", records, tmp_path) is None


def test_command_line(tiny, source, tmp_path, capsys, monkeypatch):
    assert main([]) == 0
    assert "spearpp-table1   SPEAR++ Table 1" in capsys.readouterr().out
    command = ["tiny", "--rows", "3x40", "--batches", "1", "--data", source, "--out", str(tmp_path)]
    assert main(command) == 0
    assert "| 3x40 | ours, from one layer | 300 seconds | 1 | 100 % |" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.jsonl", "tiny.md", "tiny.csv"}
    assert main(["tiny", "--rows", "8", "--out", str(tmp_path)]) == 2
    assert "no row fits" in capsys.readouterr().err

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner_module, "_run", interrupt)
    assert main([*command[:-2], "--first-seed", "7", "--out", str(tmp_path)]) == 130
    assert "the same command goes on from there" in capsys.readouterr().out
