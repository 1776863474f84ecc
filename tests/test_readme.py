"""The README's snippets run, in order and in one session, and it keeps to its form."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
HANDBOOK = (ROOT / "docs" / "audit.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_snippets_run(capsys):
    torch.manual_seed(0)
    namespace = {}
    for snippet in SNIPPETS:
        exec(compile(snippet, "README.md", "exec"), namespace)
    printed = capsys.readouterr().out
    assert printed.startswith("RECOVERED 16 of 16 inputs of the model and 16 labels")
    assert "16 of 16 inputs certified" in printed
    assert float(printed.splitlines()[-1]) < 1e-12


def test_handbook_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace = {}
    for snippet in re.findall(r"```python\n(.*?)```", HANDBOOK, flags=re.DOTALL)[2:]:  # after the user's own files
        exec(compile(snippet, "audit.md", "exec"), namespace)
    printed = capsys.readouterr().out
    assert printed.startswith("RECOVERED 16 of 16")
    assert (tmp_path / "report.html").is_file()


FEDERATION = {
    "README.md": "RECOVERED 8 of 8",
    "flower.md": "| client |",
    "nvflare.md": "| site-1 | RECOVERED, 8 of 8",
    "opacus.md": "1 NOT RECOVERED {'noise_multiplier': 1.0",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow) if page == "opacus.md" else page for page in FEDERATION]
)
def test_pages_on_federations_run(page, tmp_path, monkeypatch, capsys):
    printed = FEDERATION[page]
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    text, namespace = (ROOT / "docs" / "federation" / page).read_text(), {}
    for snippet in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(snippet, page, "exec"), namespace)
    assert printed in capsys.readouterr().out


def test_strategies_of_the_table_are_spear_plus_plus():
    from sparsedl import SparseDictionaryRecovery
    from sparsedl.surrogates import L1
    from sparsedl_fl import GradientInverter
    from sparsedl_fl.directions import DictionaryDirections

    guide = (ROOT / "docs" / "estimator.md").read_text()
    line = next(line for line in guide.splitlines() if line.startswith("SPEAR++ is"))
    names = {"GradientInverter": GradientInverter, "DictionaryDirections": DictionaryDirections,
             "SparseDictionaryRecovery": SparseDictionaryRecovery, "L1": L1}  # fmt: skip
    inverter = eval(line.split("`")[1], names)
    assert inverter.directions.recovery.deflation is None


def test_form():
    lines = README.splitlines()
    assert len(lines) <= 120
    first = next(number for number, line in enumerate(lines, 1) if line == "```python")
    assert first + len(SNIPPETS[0].splitlines()) <= 35


def test_relative_links_lead_somewhere():
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target
