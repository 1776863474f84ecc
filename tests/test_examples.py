"""Every example runs top to bottom, in a reduced size."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib
import nbformat
import numpy as np
import pytest

from paper.runner import read_records
from paper.summary import write_summary
from paper.tables import TABLES
from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary

EXAMPLES = Path(__file__).parents[1] / "examples"
GALLERY = sorted(EXAMPLES.glob("plot_*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("notebooks/*.ipynb"))


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_gallery_script_runs(path, tmp_path, monkeypatch, census):
    if path.stem == "plot_tabular":
        monkeypatch.setenv("ADULT_CSV", str(census))
    matplotlib.use("Agg")
    monkeypatch.setenv("SPARSEDL_SMALL", "1")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert list(tmp_path.glob("*.png"))


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_gallery_script_is_short(path):
    assert len(path.read_text().splitlines()) <= 80


def test_there_are_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["audit", "pictures", "tour"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_the_outputs_of_one_run(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert len(printed.splitlines()) > 10
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert all(len(line) <= 120 for cell in cells for line in cell.source.splitlines())
    said = printed + "".join(cell.source for cell in notebook.cells)
    assert not re.search(r"\bsafe(ly)?\b", said, re.IGNORECASE)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_somewhere(path):
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    targets = re.findall(r"\]\(((?!http)[^)#]+)\)", "\n".join(cells))
    assert targets
    for target in targets:
        assert (path.parent / target).exists(), target


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, monkeypatch):
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    runpy.run_path(str(EXAMPLES / "notebooks" / "run.py"))["run"](path)


@pytest.mark.slow
def test_findings_are_swept(tmp_path, monkeypatch, census):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import findings

    findings.main(["adult", "--small", "--data", str(census.parent), "--out", str(tmp_path)])
    written = (tmp_path / "adult.md").read_text()
    assert "Certified and wrong: 0" in written
    assert "| number format | float16 |" in written
    assert (tmp_path / "adult.png").exists()
    sys.modules.pop("findings")


def run_federation(name, reports):
    """Run an example in a process of its own, and return what it prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name / "run.py"), "--reports", str(reports)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_real_flower_federation_is_audited(tmp_path):
    """A SuperLink and two SuperNodes on the loopback address, three rounds on real digits."""
    run_federation("flower_leak_audit", tmp_path / "reports")
    table = (tmp_path / "reports" / "rounds.md").read_text()
    assert table.count("RECOVERED, 8 of 8 inputs of the model") == 6
    assert len(list((tmp_path / "reports").rglob("*.html"))) == 6


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_an_nvflare_job_is_audited_in_its_simulator(tmp_path):
    """NVFLARE's own simulator, two sites, three rounds on real digits."""
    printed = run_federation("nvflare_leak_audit", tmp_path / "reports")
    assert printed.count("RECOVERED: 8 of 8 inputs of the model") == 6
    assert len(list((tmp_path / "reports").rglob("*.html"))) == 6


@pytest.fixture
def scripts(monkeypatch):
    """Where the scripts of the examples, and what they share, are imported from for one test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == EXAMPLES:
            sys.modules.pop(name)


@pytest.mark.slow
@pytest.mark.usefixtures("scripts")
def test_peers_are_compared(tmp_path):
    import compare_peers

    compare_peers.main(["--small", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "compare_peers.json").read_text())["synthetic"]
    assert {row["method"] for row in rows} == set(compare_peers.METHODS)
    mine = next(row for row in rows if row["method"] == "sparsedl")
    assert mine["exact"] == 1
    assert (mine["trials"], mine["marked"], mine["wrong"], mine["provable"]) == (2, 2, 0, 2)
    page = (tmp_path / "compare_peers.md").read_text()
    assert "| sparsedl |" in page
    assert "sparsedl is exact in every trial of 1 of 1 settings" in page
    assert ("K-SVD was left out" in page) == ("K-SVD" not in compare_peers.METHODS)
    assert (tmp_path / "compare_peers.png").exists()
    compare_peers.main(["--small", "--go-on", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "compare_peers.json").read_text())["synthetic"] == rows


@pytest.mark.usefixtures("scripts")
def test_what_peers_are_said_to_do_is_made_of_the_rows():
    from peers_page import findings

    def row(method, exact, seconds, **more):
        setting = {"components": 20, "samples_per_component": 4, "zeros": 0.5, "trials": 10, "close": exact}
        return setting | {"method": method, "exact": exact, "median_seconds": seconds} | more

    lost = {"not_exact": [3, 7], "provable_not_exact": [7]}
    mine = row("sparsedl", 0.8, 3.0, components_exact=0.97, provable=9, wrong=2, **lost)
    said = "\n".join(findings([mine, row("FastICA", 0.9, 2.0), row("K-SVD", 0.0, 1.0)]))
    assert "exact in every trial of 0 of 1 settings" in said
    assert "not at (20, 4, 0.5)" in said
    assert "exact in 8 of 10, 97% of the components, and provable in 9 of 10; seeds 3, 7." in said
    assert "Of the 9 trials that are provable it is exact in 8." in said
    assert "wrong: 2 at (20, 4, 0.5)." in said
    assert "peers are exact in 9 of 20 trials together" in said
    assert "A peer is exact more often: FastICA at (20, 4, 0.5)." in said
    assert "1.5 in the median" in said
    assert "left out" not in said


@pytest.mark.usefixtures("scripts")
def test_the_judge_of_the_comparisons_is_right():
    from measuring import n_wrong, provable, worst_sine

    X, _, true = make_sparse_dictionary(200, 10, sparsity=0.6, random_state=0)
    sdr = SparseDictionaryRecovery(random_state=0).fit(X)
    assert provable(X, true)
    assert not provable(X[:12], true)  # hardly a zero beyond those that any direction has
    assert not provable(X[:9], true)  # of a rank below
    assert worst_sine(sdr.components_, true) < 1e-8
    assert worst_sine(sdr.components_[1:], true) == 1
    assert n_wrong(sdr, true) == 0
    sdr.directions_[:, 3] += 1e-3 * sdr.directions_[:, 5]
    assert n_wrong(sdr, true) == 1
    sdr.recovered_ = np.arange(10) != 3
    assert n_wrong(sdr, true) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("scripts")
def test_speed_is_measured(tmp_path):
    import estimator_speed

    estimator_speed.main(["--small", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "estimator_speed.json").read_text())
    assert list(written) == ["speed", "large", "jobs"]
    runs = [run for row in written["speed"]["rows"] for run in row["runs"]]
    assert [run["seed"] for run in runs] == [0, 1, 0, 1]
    assert all(run["worst_sine"] < 1e-8 and run["marked"] and not run["wrong"] for run in runs)
    large = written["large"]["rows"]
    assert {(row["method"], row["dtype"]) for row in large} == {
        (method, dtype) for method in ("sparsedl", "FastICA") for dtype in ("float64", "float32")
    }
    assert not any("failed" in row for row in large)
    assert {row["workers"] for row in written["jobs"]["rows"]} == {"one", "two, threads", "two, dask"}
    assert all(row["equal"] and row["exact"] for row in written["jobs"]["rows"])
    page = (tmp_path / "estimator_speed.md").read_text()
    assert "| (8, 20, 0.7) |" in page
    assert "Every problem is exact." in page
    assert "| two, dask |" in page


@pytest.mark.usefixtures("scripts")
def test_a_part_of_the_speeds_replaces_itself_alone(tmp_path):
    import estimator_speed

    kept = {"measured_with": {"processor": "another one", "cores": 8, "packages": {"numpy": "1"}}, "rows": []}
    (tmp_path / "estimator_speed.json").write_text(json.dumps({"large": kept, "speed": kept}))
    estimator_speed.main(["--small", "--only", "speed", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "estimator_speed.json").read_text())
    assert written["large"] == kept
    assert len(written["speed"]["rows"]) == 2
    assert "another one, 8 cores" in (tmp_path / "estimator_speed.md").read_text()


@pytest.mark.usefixtures("scripts")
def test_what_fails_or_is_not_exact_is_said():
    from speed_page import large, speed

    case = {"method": "sparsedl", "samples": 10, "components": 2, "dtype": "float64", "seed": 0}
    assert "- sparsedl, 10 x 2, float64: exit status -9: killed" in large([case | {"failed": "exit status -9: killed"}])
    run = dict.fromkeys(("seconds", "cpu_seconds", "ica_seconds", "ica_cpu_seconds"), 1.0)
    run |= {"seed": 4, "worst_sine": 0.3, "marked": False, "n_marked": 1, "wrong": 0, "status": "the budget is spent"}
    run |= {"ica_worst_sine": 0.2, "ica_converged": True}
    lines = speed([{"components": 2, "samples_per_component": 5, "zeros": 0.5, "runs": [run]}])
    assert "- (2, 5, 0.5), seed 4: 1 of 2 marked; the budget is spent." in lines


@pytest.mark.slow
@pytest.mark.usefixtures("scripts")
def test_few_samples_are_mapped(tmp_path):
    import few_samples

    few_samples.main(["--small", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "few_samples.json").read_text())
    assert written["table"][0]["whole"] == written["table"][0]["determined"] == 1
    assert all(row["oracle"] >= row["sparsedl"] > row["FastICA"] for row in written["maps"])
    assert "| 8 | 8 | 0.6 | 1 of 1 | 1 | 100% |" in (tmp_path / "few_samples.md").read_text()
    assert (tmp_path / "few_samples.png").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("scripts")
def test_noise_is_compared(tmp_path):
    import noise

    noise.main(["--small", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "noise.json").read_text())
    assert {row["method"] for row in rows} == set(noise.METHODS)
    for of in noise.grouped(rows).values():
        assert of["sparsedl, given"]["error"] < of["FastICA"]["error"]
    assert "at most" in (tmp_path / "noise.md").read_text()
    assert (tmp_path / "noise.png").exists()


@pytest.mark.usefixtures("scripts")
def test_committed_pages_say_what_the_committed_records_say():
    import compare_peers
    import few_samples
    import noise

    peers = json.loads((EXAMPLES / "results" / "compare_peers.json").read_text())
    said = compare_peers.page_of(peers["synthetic"], peers["patches"], peers["measured_with"])
    assert said == (EXAMPLES / "results" / "compare_peers.md").read_text()
    few = json.loads((EXAMPLES / "results" / "few_samples.json").read_text())
    assert few_samples.page(few["maps"], few["table"]) == (EXAMPLES / "results" / "few_samples.md").read_text()
    rows = json.loads((EXAMPLES / "results" / "noise.json").read_text())
    assert noise.page(rows) == (EXAMPLES / "results" / "noise.md").read_text()


def test_committed_tables_say_what_the_committed_records_say(tmp_path):
    results = EXAMPLES / "paper" / "results"
    records = read_records(results)
    known = {experiment.name for table in TABLES.values() for experiment in table.rows.values()}
    assert {record["experiment"] for record in records} <= known
    written = sorted(path.stem for path in results.glob("*.md"))
    assert "spearpp-table1" in written
    for name in written:
        text = write_summary(name, records, tmp_path).read_text()
        assert text == (results / f"{name}.md").read_text(), f"write {name}.md again: examples/paper/run.py {name}"


def test_links_of_the_papers_page_lead_somewhere():
    page = EXAMPLES / "paper" / "README.md"
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
