"""The list of frameworks names modules and extras that are there."""

import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from sparsedl_fl.federation import FRAMEWORKS


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_each_is_a_module_and_has_an_extra(name):
    assert find_spec(f"sparsedl_fl.federation.{name}") is not None
    project = Path(__file__).parents[3] / "pyproject.toml"
    assert FRAMEWORKS[name] in tomllib.loads(project.read_text())["project"]["optional-dependencies"]
