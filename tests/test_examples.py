"""Every example runs top to bottom, in a reduced size."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib
import nbclient
import nbformat
import pytest

from sparsedl_fl.reproduce import TABLES, read_records, write_summary

EXAMPLES = Path(__file__).parents[1] / "examples"
GALLERY = sorted(EXAMPLES.glob("plot_*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


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


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


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


@pytest.mark.slow
def test_peers_are_compared(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import compare_peers

    compare_peers.main(["--small", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "compare_peers.json").read_text())["synthetic"]
    assert {row["method"] for row in rows} == set(compare_peers.METHODS)
    assert next(row["exact"] for row in rows if row["method"] == "sparsedl") == 1
    assert "| sparsedl |" in (tmp_path / "compare_peers.md").read_text()
    assert (tmp_path / "compare_peers.png").exists()
    sys.modules.pop("compare_peers")


@pytest.mark.slow
def test_few_samples_are_mapped(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import few_samples

    few_samples.main(["--small", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "few_samples.json").read_text())
    assert written["table"][0]["whole"] == written["table"][0]["determined"] == 1
    assert all(row["oracle"] >= row["sparsedl"] > row["FastICA"] for row in written["maps"])
    assert "| 8 | 8 | 0.6 | 1 of 1 | 1 | 100% |" in (tmp_path / "few_samples.md").read_text()
    assert (tmp_path / "few_samples.png").exists()
    sys.modules.pop("few_samples")


@pytest.mark.slow
def test_noise_is_compared(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import noise

    noise.main(["--small", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "noise.json").read_text())
    assert {row["method"] for row in rows} == set(noise.METHODS)
    for of in noise.grouped(rows).values():
        assert of["sparsedl, given"]["error"] < of["FastICA"]["error"]
    assert "at most" in (tmp_path / "noise.md").read_text()
    assert (tmp_path / "noise.png").exists()
    sys.modules.pop("noise")


def test_committed_noise_page_says_what_the_committed_record_says(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import noise

    rows = json.loads((EXAMPLES / "results" / "noise.json").read_text())
    assert noise.page(rows) == (EXAMPLES / "results" / "noise.md").read_text()
    sys.modules.pop("noise")


def test_committed_tables_say_what_the_committed_records_say(tmp_path):
    results = EXAMPLES / "paper" / "results"
    records = read_records(results)
    known = {experiment.name for table in TABLES.values() for experiment in table.rows.values()}
    assert {record["experiment"] for record in records} <= known
    written = sorted(path.stem for path in results.glob("*.md"))
    assert "spearpp-table1" in written
    for name in written:
        text = write_summary(name, records, tmp_path).read_text()
        assert text == (results / f"{name}.md").read_text(), f"write {name}.md again: sparsedl-fl reproduce {name}"


def test_links_of_the_papers_page_lead_somewhere():
    page = EXAMPLES / "paper" / "README.md"
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
