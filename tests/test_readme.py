"""The README's snippets run, in order and in one session, and it keeps to its form."""

import re
from pathlib import Path

import torch

README = (Path(__file__).parents[1] / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_snippets_run(capsys):
    torch.manual_seed(0)
    namespace = {}
    for snippet in SNIPPETS:
        exec(compile(snippet, "README.md", "exec"), namespace)
    printed = capsys.readouterr().out
    assert float(printed.splitlines()[0]) < 1e-12
    assert "16 of 16 inputs certified" in printed
    assert namespace["inverter"].directions.recovery.deflation is None


def test_form():
    lines = README.splitlines()
    assert len(lines) <= 120
    first = next(number for number, line in enumerate(lines, 1) if line == "```python")
    assert first + len(SNIPPETS[0].splitlines()) <= 35


def test_relative_links_lead_somewhere():
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target
