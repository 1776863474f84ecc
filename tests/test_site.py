"""The pages of the site: links lead somewhere, blocks run, all that is public is listed."""

import re
from pathlib import Path

import pytest
import torch

from tests.test_public_api import CONTRACT

ROOT = Path(__file__).parents[1]
PAGES = [
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    if not {"_build", "gallery", "generated", ".venv"} & set(path.relative_to(ROOT).parts)
]
WITHOUT_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def anchors(path):
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_there_are_pages():
    assert {"index.md", "start.md", "audit.md", "findings.md", "estimator.md"} <= {path.name for path in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(((?!http)[^)#]*)(?:#([^)]*))?\)", WITHOUT_CODE.sub("", page.read_text())):
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


def test_old_anchors_of_the_handbook_are_there():
    assert {"was-this-record-trained-on", "limits", "verdicts", "the-report", "in-python"} <= anchors(
        ROOT / "docs" / "audit.md"
    )


def test_pages_of_the_documentation_promise_nothing():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "handbook").glob("*.md")):
        assert not re.search(r"\bsafe(ly)?\b", page.read_text(), re.IGNORECASE), page


PRINTED = {
    "start.md": "RECOVERED 16 of 16 inputs of the model",
    "estimator.md": "complete 10",
    "handbook/filters.md": "{'percentiles': None}",
    "handbook/members.md": "20 of 40 records were trained on",
    "handbook/report.md": "8 records certified, 6 different ones",
}


@pytest.mark.parametrize("page", PRINTED)
def test_blocks_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL):
        exec(compile(block, page, "exec"), namespace)
    assert PRINTED[page] in capsys.readouterr().out


def test_the_reference_lists_all_that_is_public():
    listed, module = set(), None
    for page in (ROOT / "docs" / "api").glob("*.rst"):
        for line in page.read_text().splitlines():
            if line.startswith(".. currentmodule:: "):
                module = line.split()[-1]
            elif name := re.fullmatch(r"   (\w+)", line):
                listed.add((module, name[1]))
    public = {(module, name) for module, names in CONTRACT.items() for name in names if name != "__version__"}
    inner = {("sparsedl_fl.constraints.problem", "LayerProblem"), ("sparsedl_fl.certify.hypothesis", "Hypothesis")}
    values = {("sparsedl_fl.certify.certificate", "CRITERIA"), ("sparsedl_fl.simulation", "WIRES")}
    assert public - listed == inner | values
