import sys

import pytest

from sparsedl.progress import progress_bar


def test_silent_without_rich(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich", None)
    with progress_bar(False, total=3, description="columns") as report:
        assert report(1, "note") is None
    assert capsys.readouterr() == ("", "")


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with (
        pytest.raises(ImportError, match=r"pip install 'sparsedl\[progress\]'"),
        progress_bar(True, total=3, description="columns"),
    ):
        pass
