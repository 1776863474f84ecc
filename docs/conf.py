"""How the site is built: `make docs`. The source folder is the repository, so that links hold there and here."""

import os
import re
import shutil
import sys
import tomllib
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
os.environ.setdefault("SPARSEDL_SMALL", "1")  # the gallery's scripts, in minutes
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")

import sparsedl  # noqa: E402

about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
project, release = about["name"], sparsedl.__version__
version = release
author = "The sparsedl developers"
copyright = "The sparsedl developers"

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
root_doc = "docs/index"
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb", ".ipynb": "myst-nb"}
include_patterns = [
    "docs/**",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "examples/**/*.md",
    "examples/notebooks/*.ipynb",
    "tests/frontier/*.md",
]
templates_path = [str(ROOT / "docs" / "_templates")]
exclude_patterns = ["docs/_*/**", "docs/gallery/*.ipynb", "sg_execution_times.rst", "**/sg_execution_times.rst"]
default_role = "py:obj"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # pages show what is stored in the notebooks; the tests run them

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autosummary_generate = True
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

# The gallery is the scripts alone: folders beside them have pages of their own.
scripts = ROOT / "docs" / "_scripts"
shutil.rmtree(scripts, ignore_errors=True)
scripts.mkdir()
for path in (ROOT / "examples" / "GALLERY_HEADER.rst", *sorted((ROOT / "examples").glob("plot_*.py"))):
    shutil.copy2(path, scripts)

sphinx_gallery_conf = {
    "examples_dirs": ["docs/_scripts"],
    "gallery_dirs": ["docs/gallery"],
    "filename_pattern": "/plot_" if "ADULT_CSV" in os.environ else r"/plot_(?!tabular)",  # its table is downloaded
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib",),
    "matplotlib_animations": False,
    "plot_gallery": os.environ.get("DOCS_GALLERY", "1") != "0",
}
warnings.filterwarnings("ignore", category=UserWarning)  # of scripts: what they cannot find is in their text

html_theme = "pydata_sphinx_theme"
html_title = f"sparsedl {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sidebars = {
    f"docs/{page}": [] for page in ("start", "findings", "estimator", "how-it-works", "notebooks", "glossary")
} | {
    "CHANGELOG": [],
    "CONTRIBUTING": [],
    "examples/notebooks/*": [],
}  # they have no pages below them, or few
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def front_door(app, error):
    """Let the folder that was built open at the first page."""
    if error is None and app.builder.format == "html":
        page = '<!doctype html><title>sparsedl</title><meta http-equiv="refresh" content="0; url=docs/index.html">\n'
        Path(app.outdir, "index.html").write_text(page)


def escape_underscores(app, what, name, obj, options, lines):
    """Keep ``(batch_size_, n)`` from being read as a link."""
    lines[:] = [re.sub(r"(\w)_(?=[,)])", r"\1\\_", line) if "of shape (" in line else line for line in lines]


def skip_metadata_routing(app, what, name, obj, skip, options):
    """Leave out what scikit-learn adds to every estimator, whose text links to scikit-learn's own pages."""
    return True if re.fullmatch(r"set_\w+_request", name.rpartition(".")[2]) else None


def setup(app):
    """Connect."""
    app.connect("autodoc-process-docstring", escape_underscores, priority=1)
    app.connect("autodoc-skip-member", skip_metadata_routing)
    app.connect("build-finished", front_door)
