"""What a stranger can do with the wheel: run by the Python of a new environment, in an empty folder.

The names of the extras that are installed follow: python -I smoke.py audit. What needs another one has to name it.
"""

import base64
import importlib
import json
import pkgutil
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.metadata import metadata, version
from pathlib import Path

INSTALLED = set(sys.argv[1:])
KNOWN = set(metadata("sparsedl").get_all("Provides-Extra"))
ADVICE = re.compile(r"pip install 'sparsedl\[(\w+)\]'")
README = metadata("sparsedl").get_payload()
COMMAND = str(Path(sys.executable).with_name("sparsedl-fl"))


def run(line: str, status: int = 0) -> str:
    """Run a line of the README as it is written there; return what it prints."""
    name, *arguments = line.partition("#")[0].split()
    assert name == "sparsedl-fl", line
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=600)
    assert done.returncode == status, f"{line}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def written(start: str) -> str:
    """Return the command of the README that starts so."""
    return next(line.strip() for line in README.splitlines() if line.strip().startswith(start))


def lacks(text: str, extra: str) -> None:
    """Assert that a text names an extra which is not installed."""
    assert ADVICE.findall(text) == [extra], text
    assert extra not in INSTALLED


def check_modules() -> None:
    """Every module imports, or names the extra that it lacks; and no text names an extra that there is not."""
    n_modules, lacking = 0, []
    for package in map(importlib.import_module, ("sparsedl", "sparsedl_fl")):
        assert Path(package.__file__).is_relative_to(sys.prefix), package.__file__
        assert package.__version__ == version("sparsedl")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            n_modules += 1
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                named = ADVICE.findall(str(error))
                assert named, f"{module.name}: {error}"
                assert named[0] in KNOWN - INSTALLED, f"{module.name}: {error}"
                assert not error.__cause__.name.startswith("sparsedl"), f"{module.name}: {error.__cause__}"
                lacking.append(f"{module.name} [{named[0]}]")
        for source in Path(package.__file__).parent.rglob("*.py"):
            assert set(ADVICE.findall(source.read_text())) <= KNOWN, source
    assert n_modules > 150
    print(f"{n_modules} modules; not without an extra: {', '.join(lacking)}")


def check_readme() -> None:
    """Every Python block of the README runs, one after the other."""
    blocks, session = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL), {}
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), session)
    assert session["inverter"].recovered_.all()
    print(f"{len(blocks)} blocks of the README")


class Page(HTMLParser):
    """What a report holds: its elements, its pictures, its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements, self.pictures, self.words = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        """Remember the element, and the bytes of a picture."""
        self.elements.append(tag)
        if tag == "img":
            kind, _, content = dict(attributes)["src"].partition(",")
            assert kind == "data:image/png;base64"
            self.pictures.append(base64.b64decode(content))

    def handle_data(self, data: str) -> None:
        """Collect the words."""
        self.words += data


def check_report(folder: str, n_pictures: int) -> None:
    """Open both reports: the verdict, all that was recovered, and nothing from outside."""
    report = json.loads(Path(folder, "report.json").read_text())
    assert report["verdict"] == "RECOVERED"
    assert report["replay"]["n_matching"] == 6
    assert report["run"]["versions"]["sparsedl"] == version("sparsedl")
    page = Page(Path(folder, "report.html").read_text())
    assert "script" not in page.elements
    assert page.elements.count("h1") == 1
    assert "RECOVERED" in page.words
    assert len(page.pictures) == n_pictures
    assert all(picture.startswith(b"\x89PNG") for picture in page.pictures)


def check_commands() -> None:
    """The commands of the README, as they are written there."""
    package = Path(importlib.import_module("sparsedl_fl.audit.example").__file__).parent
    Path("mine.py").write_text("from sparsedl_fl.audit.example import model\n")
    shutil.copy(package / "weights.safetensors", "model.safetensors")
    shutil.copy(package / "update.safetensors", ".")
    assert "the model's input" in run(written("sparsedl-fl inspect"))
    example, mine = written("sparsedl-fl audit --example"), written("sparsedl-fl audit mine.py")
    mine = mine.replace("--input-shape 3 32 32", "--input-shape 1 8 8")  # of the model that is there
    if "audit" not in INSTALLED:
        for line in (example, mine, "sparsedl-fl audit --example"):
            lacks(run(line, status=2), "audit")
        lacks(run("sparsedl-fl demo", status=2), "demo")
        return
    for line, n_pictures in ((example, 0), (mine, 0), (f"{example.partition('#')[0]} --show-samples", 16)):
        assert run(line, status=1).startswith("RECOVERED: 16 of 16")
        check_report("report", n_pictures)
        shutil.rmtree("report")
    assert "inputs certified" in run("sparsedl-fl demo")
    assert "examples/paper/run.py" in run("sparsedl-fl reproduce")
    assert Path("demo.png").read_bytes().startswith(b"\x89PNG")


def check_errors() -> None:
    """What lacks an extra says so in Python too."""
    import torch

    from sparsedl import SparseDictionaryRecovery
    from sparsedl.datasets import make_sparse_dictionary
    from sparsedl_fl.audit import audit_model
    from sparsedl_fl.simulation import client_gradient, fully_connected, opacus_gradient

    X, _, _ = make_sparse_dictionary(n_samples=60, n_components=4, sparsity=0.5, random_state=0)
    model, inputs, labels = fully_connected(20, width=40, random_state=0), torch.randn(3, 20), torch.arange(3)
    audit = audit_model(model, client_gradient(model, inputs, labels))
    calls = {
        "progress": lambda: SparseDictionaryRecovery(verbose=True).fit(X),
        "audit": lambda: (audit.to_html(), audit.plot()),
        "dp": lambda: opacus_gradient(model, inputs, labels, clipping=1.0, noise_multiplier=1.0),
    }
    brings = {"audit": {"audit", "progress"}}
    there = INSTALLED.union(*(brings.get(extra, ()) for extra in INSTALLED))
    for extra, call in calls.items():
        try:
            call()
        except ImportError as error:
            assert extra not in there
            lacks(str(error), extra)
        else:
            assert extra in there, f"{extra} is not installed, and nothing asked for it"


for check in (check_modules, check_readme, check_commands, check_errors):
    check()
    print(f"{check.__name__}: well")
