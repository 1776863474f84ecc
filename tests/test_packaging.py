"""What goes into the wheel is found: every folder of both packages, and every file that is no module."""

import tomllib
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path

import sparsedl

ROOT = Path(__file__).parents[1]
PACKAGES = ("sparsedl", "sparsedl_fl")
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_folder_of_modules_is_a_package():
    """Folders without an ``__init__.py`` hold what is no module; setuptools finds all that the patterns match."""
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert len(folders) > 20
    for folder in folders:
        assert (folder / "__init__.py").is_file(), folder
        name = ".".join(folder.relative_to(ROOT).parts)
        assert any(fnmatch(name, pattern) for pattern in SETUPTOOLS["packages"]["find"]["include"]), name


def test_all_files_of_the_packages_come_with_them():
    lines = (ROOT / "MANIFEST.in").read_text().splitlines()
    assert {f"graft {package}" for package in PACKAGES} <= set(lines)
    assert "package-data" not in SETUPTOOLS


def test_the_version_that_is_installed_is_that_of_the_package():
    assert version("sparsedl") == sparsedl.__version__
