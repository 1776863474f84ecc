"""The import arrows of the house: a module imports only from layers below its own."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LAYERS = {
    "sparsedl": [
        {"arrays", "process", "progress"},
        {"_validation", "workers"},
        {"linalg", "monte_carlo_em", "repetitions", "symmetric_fixed_point"},
        {"contrast", "chance", "determinacy"},
        {"noisy", "surrogates", "preconditioning", "metrics", "datasets", "zeros"},
        {"observations"},
        {"evidence", "optimizers", "rounding", "polishing"},
        {"selection", "anchoring", "expected_errors", "starts"},
        {"candidates"},
        {"descents", "mixtures"},
        {"stages"},
        {"search"},
        {"noise_floor", "recovery"},
        {"likelihood"},
        {"attempt"},
        {"recipes"},
        {"diagnosis", "intercept"},
        {"estimator"},
        {"plotting", "__init__"},
    ],
    "sparsedl_fl": [
        {"activations", "caught_warnings", "lemmas", "solvers", "wording"},
        {"theory"},
        {"tracing"},
        {"layers"},
        {"lowrank", "metrics", "simulation"},
        {"constraints"},
        {"certify"},
        {"search"},
        {"directions"},
        {"layer_recovery"},
        {"inverter"},
        {"propagate", "reconstruction", "tabular"},
        {"models"},
        {"audit", "demo"},
        {"federation"},
        {"cli"},
        {"__init__"},
    ],
}
FILES = sorted(path for package in LAYERS for path in (ROOT / package).rglob("*.py"))


def level(package, module):
    for number, names in enumerate(LAYERS[package]):
        if module in names:
            return number
    raise AssertionError(f"{package}.{module} has no layer: give it one in tests/test_architecture.py")


def imports(path):
    """Yield (module, name) for every absolute import of the file; name is None for ``import module``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    package, *inside = path.relative_to(ROOT).with_suffix("").parts
    own = level(package, inside[0])
    for module, name in imports(path):
        root, *rest = module.split(".")
        if root == package:
            target = rest[0] if rest else ("__init__" if name is None or name[0].isupper() else name)
            if target != inside[0]:
                assert level(package, target) < own, f"{path}: imports {module} from the same layer or above"
        if package == "sparsedl":
            assert root != "sparsedl_fl", f"{path}: sparsedl knows nothing of federated learning"
        elif root == "sparsedl":
            private = [part for part in [*rest, name or ""] if part.startswith("_") and part != "__version__"]
            assert not private, f"{path}: uses the private {module}.{name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_short(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300, f"{path} is too long"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            code = node.end_lineno - node.body[0].lineno
            assert code <= 60, f"{path}: {node.name} is too long"


def test_geoopt_is_used_where_it_drives_the_steps_and_nowhere_else():
    users = [path.name for path in FILES if any(module.split(".")[0] == "geoopt" for module, _ in imports(path))]
    assert users == ["on_sphere.py"]


def test_command_line_imports_nothing_heavy_at_the_top():
    for path in (ROOT / "sparsedl_fl" / "cli").glob("*.py"):
        top = {
            node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        light = {
            "__future__",
            "argparse",
            "collections.abc",
            "contextlib",
            "importlib.util",
            "math",
            "os",
            "sys",
            "traceback",
            "typing",
            "warnings",
        }
        assert {module for module in top if not module.startswith("sparsedl_fl.cli")} <= light, path


ASKS_THE_ACTIVATION = [
    path
    for path in FILES
    if path.relative_to(ROOT).parts[0] == "sparsedl_fl"
    and path.relative_to(ROOT).with_suffix("").parts[1]
    in {"certify", "constraints", "directions", "inverter", "lowrank", "search"}
]


def assumptions(text):
    """Yield what code takes for granted of the activation; docstrings and comments may explain it."""
    preactivations = {"z", "preactivations", "Z"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name.lower() in {"relu", "relu6", "hardtanh"}:
                yield f"line {node.lineno}: {name}"
        if isinstance(node, ast.Compare):
            left, right = node.left, node.comparators[0]
            is_zero = isinstance(right, ast.Constant) and right.value == 0
            if is_zero and isinstance(left, ast.Name) and left.id in preactivations:
                yield f"line {node.lineno}: {left.id} compared with zero"
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in {"clamp", "maximum"}
        ):
            of = node.func.value if node.func.attr == "clamp" else (node.args or [node.func.value])[0]
            if isinstance(of, ast.UnaryOp):
                of = of.operand
            if isinstance(of, ast.Name) and of.id in preactivations:
                yield f"line {node.lineno}: {node.func.attr} of {of.id}"


@pytest.mark.parametrize("path", ASKS_THE_ACTIVATION, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_activation_is_asked_and_never_assumed(path):
    assert not list(assumptions(path.read_text()))


@pytest.mark.parametrize(
    "line", ["torch.relu(z)", "z.clamp(min=0)", "is_active = z > 0", "np.maximum(preactivations, 0)", "a = ReLU()"]
)
def test_an_assumption_is_seen(line):
    assert len(list(assumptions(line))) == 1
    assert not list(assumptions('"""A ReLU: z > 0."""\ny = phi.value(z)'))
    assert len(ASKS_THE_ACTIVATION) > 20
