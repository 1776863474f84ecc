"""Every example runs top to bottom, in a reduced size."""

import json
import os
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
GALLERY = sorted(EXAMPLES.glob("plot_*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_gallery_script_runs(path, tmp_path, monkeypatch, shared_data):
    if path.stem == "plot_tabular":
        pytest.importorskip("pandas")
        monkeypatch.setenv("ADULT_CSV", str(shared_data("adult_test.csv.gz")))
    pytest.importorskip("matplotlib").use("Agg")
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
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_peers_are_compared(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("picard")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import compare_peers

    compare_peers.main(["--small", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "compare_peers.json").read_text())["synthetic"]
    assert {row["method"] for row in rows} == set(compare_peers.METHODS)
    assert next(row["exact"] for row in rows if row["method"] == "sparsedl") == 1
    assert "| sparsedl |" in (tmp_path / "compare_peers.md").read_text()
    assert (tmp_path / "compare_peers.png").exists()
    sys.modules.pop("compare_peers")


def test_frontier_resumes(tmp_path, monkeypatch, shared_data, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES / "paper"))
    import frontier
    import summarize

    arguments = [
        "--data",
        str(shared_data("cifar10.npz")),
        "--sizes",
        "5x60",
        "--views",
        "next",
        "--out",
        str(tmp_path),
    ]
    frontier.main([*arguments, "--batches", "1"])
    frontier.main([*arguments, "--batches", "2"])
    rows = [json.loads(line) for line in (tmp_path / "frontier_next.jsonl").read_text().splitlines()]
    assert [row["seed"] for row in rows] == [1000, 1001]
    assert all(row["exact"] and row["certified"] == 5 for row in rows)
    summarize.main([tmp_path / "frontier_next.jsonl"])
    assert "| 5 | 60 | next layer too | 2 of 2 | 16% to 100% | 2 |" in capsys.readouterr().out
    for name in ("frontier", "summarize"):
        sys.modules.pop(name)
