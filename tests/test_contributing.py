"""The blocks of CONTRIBUTING.md run: each beside the imports of a neighbour, put where the page says."""

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from shutil import copytree
from types import ModuleType

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.metrics import match_components
from sparsedl.optimizers import RiemannianAdam
from sparsedl.surrogates import L1, check_surrogate
from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.activations import KNOWN, check_activation
from sparsedl_fl.audit import audit_model
from sparsedl_fl.certify import certificate
from sparsedl_fl.cli import COMMANDS, main
from sparsedl_fl.constraints import Linearization, Stacked
from sparsedl_fl.directions import ActivationDirections
from sparsedl_fl.federation import LeakPolicy
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.propagate.backward import KnownBatch
from sparsedl_fl.search import recipes
from sparsedl_fl.simulation import WIRES, SimulatedClient, client_gradient, fedavg_update, fully_connected

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = dict(re.findall(r"^\*\*(.+?):\*\*[^`]*(?:`[^`]+`[^`]*)*?\n```\w+\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))

NEIGHBOURS = {
    "A surrogate": "sparsedl.surrogates.huber",
    "An optimiser": "sparsedl.optimizers.projected_gradient",
    "A rounding": "sparsedl.rounding",
    "An activation": "sparsedl_fl.activations.smooth",
    "A fact about samples, a constraint": "sparsedl_fl.constraints.tail_gradient",
    "A search, a stage": "sparsedl_fl.search.stages",
    "A proof, a criterion": "sparsedl_fl.certify.zero_criteria",
    "A kind of layer to walk through": "sparsedl_fl.propagate.backward",
    "A wire transform, a client": "sparsedl_fl.simulation.wire",
    "A command": "sparsedl_fl.cli.reproduce",
    "A framework": "sparsedl_fl.federation.policy",
}


def written(title):
    """Return the block of a title as the module that it would be, with the imports of its neighbour."""
    neighbour = import_module(NEIGHBOURS[title])
    assert title in PAGE
    module = ModuleType("contributed")
    imported = {name: value for name, value in vars(neighbour).items() if not name.startswith("__")}
    vars(module).update(imported, Linearization=Linearization)  # the page says so of the constraint
    with pytest.MonkeyPatch.context() as patch:  # dataclasses ask for the module of their class
        patch.setitem(import_module("sys").modules, "contributed", module)
        exec(compile("from __future__ import annotations\n" + BLOCKS[title], title, "exec"), vars(module))
    return module


def test_every_block_is_run_here():
    assert set(BLOCKS) == {*NEIGHBOURS, "A chapter of the report"}
    assert PAGE.count("```") == 2 * len(BLOCKS)


def test_the_page_is_short_and_leads_somewhere():
    assert len(PAGE.splitlines()) < 250
    assert all(len(line) <= 120 for line in PAGE.splitlines())
    for page in ("CONTRIBUTING.md", "SECURITY.md", "docs/glossary.md"):
        for target in re.findall(r"\]\(((?!http)[^)#]+)\)", (ROOT / page).read_text()):
            assert ((ROOT / page).parent / target).exists(), (page, target)


def test_paths_and_names_of_the_page_exist():
    for path in re.findall(r"`((?:sparsedl|sparsedl_fl|tests|examples|docs)/[a-z_/.]+)`", PAGE):
        assert (ROOT / path).exists(), path
    rooms = re.findall(r"^      ([\w/. ]+?)   ", PAGE, re.MULTILINE)
    named = {name.rstrip("/") for line in rooms for name in line.split()}
    there = {path.parent.name for path in (ROOT / "sparsedl_fl").glob("*/__init__.py")}
    assert there <= named, there - named
    assert named - there == {"inverter.py", "layer_recovery.py"}


def test_the_glossary_names_what_is_there():
    files = [path for package in ("sparsedl", "sparsedl_fl") for path in (ROOT / package).rglob("*.py")]
    sources = "".join(path.read_text() for path in files)
    rows = [row.split("|") for row in (ROOT / "docs" / "glossary.md").read_text().splitlines() if row.startswith("| ")]
    assert {len(row) for row in rows} == {7}
    for name in re.findall(r"`(.+?)`", " ".join(row[4] for row in rows)):
        assert re.search(rf"\b{name}\b", sources) or (ROOT / name).exists(), f"{name} has another name now"


@pytest.fixture(scope="module")
def dictionary():
    return make_sparse_dictionary(n_samples=300, n_components=12, sparsity=0.6, random_state=0)


def error(dictionary, **strategies):
    X, _, components = dictionary
    found = SparseDictionaryRecovery(random_state=0, **strategies).fit(X)
    return match_components(found.components_, components).errors.max()


def test_surrogate(dictionary):
    surrogate = written("A surrogate").Welsch()
    check_surrogate(surrogate)
    assert error(dictionary, surrogate=surrogate) < 1e-9


def test_optimiser(dictionary):
    optimizer = written("An optimiser").UnitSteps()
    assert error(dictionary, surrogate=L1(), optimizer=optimizer) < 1e-9


def test_rounding(dictionary):
    rounding = written("A rounding").NearestZeros()
    assert error(dictionary, surrogate=L1(), optimizer=RiemannianAdam(), rounding=rounding) < 1e-9


def client(activation, b, n=30, width=60, binary=False):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(n, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, 10)
        )
        batch = torch.rand(b, n).round() if binary else torch.randn(b, n)
    return model, batch, client_gradient(model, batch, torch.arange(b) % 10)


def test_activation(monkeypatch):
    activation = written("An activation").LogSigmoid()
    check_activation(activation)
    monkeypatch.setitem(KNOWN, activation.name, activation)
    model, batch, gradient = client(nn.LogSigmoid, 12)
    layer = LayerGradient.from_model(model, gradient, example=batch[:1])
    assert layer.activation in (activation, activation.name)
    inverter = GradientInverter(random_state=0).fit(layer)
    assert inverter.recovered_.all()
    assert match_batches(batch, inverter.inputs_).squared_errors.max() < 1e-6


def layer_alone(model, gradient):
    """The first layer with the next one's gradient, and nothing else."""
    return LayerGradient(
        weight=model[0].weight, bias=model[0].bias, weight_grad=gradient["0.weight"], bias_grad=gradient["0.bias"],
        next_weight_grad=gradient["2.weight"], activation="gelu",
    )  # fmt: skip


def test_constraint():
    Binary = written("A fact about samples, a constraint").Binary
    generator = torch.Generator().manual_seed(0)
    A, a, z = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((5, 8), (5,), (3, 8)))
    here = Binary(A, a, 4).at(z.requires_grad_())
    (gradient,) = torch.autograd.grad(here.cost.sum() / 2, z)
    torch.testing.assert_close(here.gradient, gradient)
    single = Binary(A, a, 4).at(z[:1])
    jacobian = torch.autograd.functional.jacobian(lambda z: Binary(A, a).at(z).residual[0], z[:1])[:, 0]
    torch.testing.assert_close(single.gram(z), z @ jacobian.T @ jacobian @ z.T)


def test_constraint_finds_what_there_were_too_few_equations_for():
    """31 samples behind 60 units: the next layer alone has 29 equations for 31 unknowns, and nobody can find one."""
    Binary = written("A fact about samples, a constraint").Binary
    model, batch, gradient = client(nn.GELU, 31, 40, binary=True)
    inverse = torch.linalg.pinv(model[0].weight.detach().double())

    class WithFact(ActivationDirections):
        def _equations(self, problem, behind):
            fact = Binary(inverse, -inverse @ model[0].bias.detach().double(), problem.batch_size)
            return Stacked.of(super()._equations(problem, behind), fact)

    n_exact = []
    for strategy in (ActivationDirections, WithFact):
        with pytest.warns(ConvergenceWarning):  # no criterion asks the fact, so that nothing is certified by it
            inverter = GradientInverter(strategy(max_starts=200), random_state=0).fit(layer_alone(model, gradient))
        assert not inverter.recovered_.any()
        n_exact.append(int((match_batches(batch, inverter.inputs_).squared_errors < 1e-8).sum()))
    assert n_exact[0] == 0
    assert n_exact[1] > 0  # 2 of 31, 5 by 300 starts


def test_stage(monkeypatch):
    stage = written("A search, a stage").BetweenFound()
    monkeypatch.setitem(recipes.STAGES, stage.name, stage)
    proposed, propose = [], stage.propose

    def counted(*given):
        proposed.append(propose(*given))
        return proposed[-1]

    monkeypatch.setattr(stage, "propose", counted, raising=False)
    lines = tuple(
        replace(recipe, stages=(stage.name, *recipe.stages)) if recipe.layer == "smooth" else recipe
        for recipe in recipes.RECIPES
    )
    monkeypatch.setattr(recipes, "RECIPES", lines)
    model, batch, gradient = client(nn.GELU, 24)
    inverter = GradientInverter(random_state=0).fit(layer_alone(model, gradient))
    assert inverter.recovered_.all()
    assert max(0 if one.inputs is None else len(one.inputs) for one in proposed) > 0


def test_criterion(monkeypatch):
    model, batch, gradient = client(nn.GELU, 8)
    criterion = written("A proof, a criterion").AmongRecords(batch[:3].numpy().astype(float))
    monkeypatch.setattr(certificate.certify, "__defaults__", ((criterion,),))
    with pytest.warns(ConvergenceWarning):
        inverter = GradientInverter(random_state=0).fit(layer_alone(model, gradient))
    assert inverter.recovered_.sum() == 3
    assert (inverter.evidence_[inverter.recovered_] == criterion.kind).all()


def test_walk():
    generator = torch.Generator().manual_seed(0)
    scale, batch = nn.Parameter(torch.rand(20, generator=generator) + 0.5), torch.randn(6, 20, generator=generator)
    fed, linear = (batch * scale).detach().requires_grad_(), nn.Linear(20, 40)
    z = linear(batch * scale)
    loss = torch.relu(z).square().sum()
    scale_grad, z_grad = torch.autograd.grad(loss, (scale, z))
    known = KnownBatch(fed.detach().numpy(), z_grad.numpy().T, np.full(6, 1e-6), np.ones(6, bool), np.arange(6))
    before_scale = written("A kind of layer to walk through").before_scale
    given = known, linear.weight.detach().numpy(), scale.detach().numpy()
    found = before_scale(*given, scale_grad.numpy())
    assert found.is_whole
    np.testing.assert_allclose(found.inputs, batch.numpy(), atol=1e-5)
    assert not before_scale(*given, scale_grad.flip(0).numpy()).certified.any()


def test_wire(monkeypatch):
    ternary = written("A wire transform, a client").ternary
    monkeypatch.setitem(WIRES, "ternary", ternary)
    model = fully_connected(30, width=60, random_state=0)
    sent = SimulatedClient(batch_size=4, wire="ternary").update(model, torch.randn(4, 30), torch.arange(4))
    assert all(len(tensor.unique()) <= 3 for tensor in sent.gradients.values())


def test_chapter(tmp_path, monkeypatch):
    page = import_module("sparsedl_fl.audit.report.page")
    folder = tmp_path / "report"
    copytree(Path(page.__file__).parent, folder)
    (folder / "sections" / "labels.html").write_text(BLOCKS["A chapter of the report"])
    monkeypatch.setattr(page, "files", lambda package: folder)
    monkeypatch.setitem(page.SECTIONS, "labels", "Labels")
    model = fully_connected(30, width=60, random_state=0)
    gradient = client_gradient(model, torch.randn(4, 30, generator=torch.Generator().manual_seed(0)), torch.arange(4))
    assert "shows labels of 4 classes" in page.as_html(audit_model(model, gradient))


def test_command(monkeypatch, capsys):
    monkeypatch.setitem(COMMANDS, "guess", written("A command"))
    assert main(["guess", "200"]) == 0
    assert capsys.readouterr().out == "about 100\n"


def test_framework():
    AuditedReceiver = written("A framework").AuditedReceiver
    model = fully_connected(30, width=60, random_state=0)
    batch = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))
    before, after = fedavg_update(model, batch, torch.arange(4), learning_rate=0.1)
    policy = LeakPolicy(model=model, learning_rate=0.1, n_steps=1, mode="report")
    assert AuditedReceiver(policy).receive("one", 1, before, after) is after
    with pytest.warns(Warning, match="blocked"):
        assert AuditedReceiver(replace(policy, mode="block")).receive("one", 2, before, after) is None
