"""Reports on disk: whole or not at all, never through a link, and never over what is not ours."""

import json
import os
import stat

import pytest
import torch
from torch import nn

from sparsedl_fl.audit import audit_model, out_of_range
from sparsedl_fl.audit.writing import check_folder, check_target, is_ours, write_whole
from sparsedl_fl.simulation import client_gradient

HOSTILE = "a\x1b[2Jb\u202ec\x9bd"


@pytest.fixture(scope="module")
def audit():
    """Of a model whose layer has a name that would clear a terminal and turn what is behind it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential()
        model.add_module(HOSTILE, nn.Linear(30, 60))
        model.add_module("act", nn.ReLU())
        model.add_module("<b>head", nn.Linear(60, 10))
        return audit_model(model, client_gradient(model, torch.randn(3, 30), torch.arange(3)))


def test_a_file_is_there_whole_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "x.html"
    write_whole(path, "first")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "second")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["x.html"]


def test_nothing_is_written_through_a_link_or_over_a_folder(tmp_path, audit):
    (tmp_path / "target").write_text("mine")
    for name, target in (("link", "target"), ("dangling", "nothing")):
        (tmp_path / name).symlink_to(tmp_path / target)
        with pytest.raises(ValueError, match="symbolic link"):
            audit.to_json(tmp_path / name)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="no file"):
        audit.to_html(tmp_path / "folder")
    with pytest.raises(ValueError, match="cannot be written: No such file"):
        audit.to_html(tmp_path / "none" / "x.html")
    (tmp_path / "to").symlink_to(tmp_path / "folder")
    with pytest.raises(ValueError, match="symbolic link"):
        check_folder(tmp_path / "to")
    assert (tmp_path / "target").read_text() == "mine"
    assert not (tmp_path / "nothing").exists()


def test_samples_are_for_the_owners_eyes(tmp_path, audit):
    path, before = tmp_path / "x.json", os.umask(0o022)
    try:
        for shown, mode in ((False, 0o644), (True, 0o600), (False, 0o644)):
            audit.to_json(path, show_samples=shown)
            assert stat.S_IMODE(path.stat().st_mode) == mode
            audit.to_html(path.with_suffix(".html"), show_samples=shown)
            assert stat.S_IMODE(path.with_suffix(".html").stat().st_mode) == mode
    finally:
        os.umask(before)


def test_what_is_ours_is_told_from_what_is_not(tmp_path, audit):
    for name, content in (("x.html", audit.to_html()), ("x.json", audit.to_json()), ("empty.html", "")):
        (tmp_path / name).write_text(content)
        assert is_ours(tmp_path / name)
        check_target(tmp_path / name)
    for name, content in (
        ("a.html", "<html>my page</html>"),
        ("a.json", '{"schema_version": "2"}'),
        ("b.json", "[1]"),
        ("c.json", "{"),
        ("a.jsonl", '{"x": 1}\n'),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match="no report of sparsedl-fl: .*force"):
            check_target(tmp_path / name)
        check_target(tmp_path / name, is_forced=True)


def test_names_cannot_steer_a_page_or_a_terminal(audit):
    page, text = audit.to_html(), audit.to_json()
    for content in (page, text, audit._repr_html_()):
        assert not {c for c in content if not c.isprintable() and c != "\n"}
        assert "<b>head" not in content.replace(text, "")
    assert r"a\x1b[2Jb\u202ec\x9bd" in page
    assert HOSTILE in {layer["name"] for layer in json.loads(text)["layers"]}  # JSON has an escape of its own
    told = out_of_range(nn.Linear(2, 2), "x", command="sparsedl-fl \udcff\x1b")
    json.loads(told.to_json().encode())
    told.to_html().encode()
