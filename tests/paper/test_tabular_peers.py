"""What TabLeak's batches are scored by, how its code is called, and what is said where there is no clone of it.

TabLeak itself is not run: a few lines of our own stand where its packages would be.
"""

import sys

import numpy as np
import pytest
import torch

from paper.census import TOLERANCE, Census, load_census, right_features
from paper.methods import Budget
from paper.run import main
from paper.tableak import CLONE, PACKAGES, TabLeak
from paper.tabular_peers import TabularPeerBatch
from sparsedl_fl.simulation import client_gradient, fully_connected

PETS = Census(
    rows=np.array([[3.0, 0.0], [5.0, 2.0], [4.0, 1.0], [8.0, 2.0]]),
    labels=np.array([0, 1, 0, 1]),
    features={"age": None, "kind": ("cat", "dog", "owl")},
)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with what is used of TabLeak, and the variable that names it."""
    files = {
        "attacks/__init__.py": "from .gradient_inversion_attack import invert_grad\n",
        "attacks/gradient_inversion_attack.py": (
            "import torch\n"
            "from utils import continuous_sigmoid_bound\n"
            "seen = {}\n"
            "def invert_grad(**given):\n"
            "    seen.update(given)\n"
            "    start = torch.rand(given['true_data'].shape).requires_grad_()\n"
            "    return continuous_sigmoid_bound(start, dataset=given['dataset'])\n"
        ),
        "utils/__init__.py": (
            "def continuous_sigmoid_bound(x, dataset):\n"
            "    x[:, [0]] = 7.0\n"
            "    return x\n"
            "def post_process_continuous(x, dataset):\n"
            "    x[:, [0]] = dataset.upper\n"
            "    return x\n"
        ),
        "datasets/__init__.py": "",
        "datasets/base_dataset.py": (
            "class BaseDataset:\n"
            "    def __init__(self, name, device):\n"
            "        self.name = name\n"
            "    def train(self):\n"
            "        pass\n"
            "    def standardize(self):\n"
            "        self.Xtrain = (self.Xtrain - self.mean) / self.std\n"
            "    def _calculate_categorical_feature_distributions_and_continuous_bounds(self):\n"
            "        self.upper = ((self.Xtrain - self.mean) / self.std).max(dim=0).values[0]\n"
        ),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv(CLONE, str(tmp_path))
    return tmp_path


def test_rows_are_decoded_from_columns_that_are_not_exact():
    columns = PETS.one_hot(PETS.rows)
    assert columns.shape == (4, 4)
    np.testing.assert_array_equal(PETS.decode(columns + 0.4 * np.array([1, -1, 1, -1])), PETS.rows)


def test_a_number_is_right_within_its_tolerance_and_a_row_not_found_has_none():
    tolerances = PETS.tolerances(TOLERANCE)
    np.testing.assert_allclose(tolerances, [0.319 * np.std([3, 5, 4, 8], ddof=1), 0])
    found = np.array([[8.6, 2.0], [3.7, 0.0], [5.0, 1.0]])
    right = right_features(PETS.rows, found, tolerances)
    assert right.sum() == 4
    assert right[3].all()
    assert not right.any(axis=1).all()
    assert not right_features(PETS.rows, np.empty((0, 2)), tolerances).any()


def test_rows_with_a_missing_value_are_left_out(tmp_path):
    (tmp_path / "adult.csv").write_text("age,sex,income\n30,Male,>50K\n40,?,<=50K\n50,Female,<=50K.\n")
    census = load_census(str(tmp_path))
    np.testing.assert_array_equal(census.rows, [[30, 1], [50, 0]])
    assert census.features == {"age": None, "sex": ("Female", "Male")}
    np.testing.assert_array_equal(census.labels, [1, 0])


def test_our_audit_gets_the_rows_and_a_guess_does_not(census):
    record = TabularPeerBatch(4, 100).run("activation", 0, str(census.parent), Budget())
    assert record["exact"]
    assert (record["certified"], record["records"], record["verdict"]) == (4, 1.0, "RECOVERED")
    assert record["features"] == [1.0] * 4
    guessed = TabularPeerBatch(4, 100).run("guess", 0, str(census.parent), Budget())
    assert not guessed["exact"]
    assert 0 < np.mean(guessed["features"]) < 1


def test_a_peer_is_scored_as_we_are(census, monkeypatch):
    import paper.tabular_peers as module

    given = {}

    class Mean:
        version = "tableak 0"

        def __init__(self, table):
            given.update(table=table)

        def invert(self, model, gradients, labels, n_members, seed):
            given.update(n_members=n_members, seed=seed, labels=labels)
            return np.zeros((2, model[0].in_features))

    monkeypatch.setattr(module, "TabLeak", Mean)
    record = TabularPeerBatch(2, 100).run("tableak", 5, str(census.parent), Budget(members=3))
    assert (given["n_members"], given["seed"], given["labels"].shape) == (3, 5, (2,))
    assert record["peer"] == "tableak 0"
    assert len(record["features"]) == 2
    assert (record["exact"], record["records"]) == (False, 0.0)


def test_other_attacks_are_refused(census):
    with pytest.raises(ValueError, match="activation, tableak and guess, not by 'breaching'"):
        TabularPeerBatch(2, 100).run("breaching", 0, str(census.parent), Budget())


def test_the_clone_is_given_our_table_and_leaves_no_trace(clone):
    mine = sys.modules["utils"] = type(sys)("utils")
    before, paths = set(sys.modules), list(sys.path)
    try:
        peer = TabLeak(PETS)
        assert sys.modules["utils"] is mine
        assert set(sys.modules) == before
        assert sys.path == paths
    finally:
        del sys.modules["utils"]
    assert not {name for name in sys.modules if name.split(".")[0] in PACKAGES}
    model = fully_connected(4, width=5, n_hidden=2, n_classes=2, random_state=0)
    labels = torch.tensor([0, 1])
    state = torch.get_rng_state()
    gradients = client_gradient(model, torch.ones(2, 4), labels)
    found = peer.invert(model, gradients, labels, 3, 0)
    assert torch.equal(state, torch.get_rng_state())
    assert found.shape == (2, 4)
    np.testing.assert_allclose(found[:, 0], 3 / np.std([3, 5, 4, 8], ddof=1), rtol=1e-6)  # cut at the largest age
    np.testing.assert_array_equal(found, peer.invert(model, gradients, labels, 3, 0))
    seen = peer._code.invert.__globals__["seen"]
    assert (seen["post_selection"], seen["max_iterations"], seen["pooling"]) == (3, 1500, "median+softmax")
    assert not seen["true_data"].any()
    assert seen["dataset"].features["income"] == ["no", "yes"]
    torch.testing.assert_close(seen["dataset"].Xtrain.mean(dim=0), torch.zeros(4))


def test_a_clone_that_lacks_a_package_is_said_to(clone):
    (clone / "datasets" / "base_dataset.py").write_text("import no_such_package\n")
    with pytest.raises(ValueError, match="no_such_package"):
        TabLeak(PETS)


def test_without_a_clone_it_says_what_to_clone(census, tmp_path, monkeypatch, capsys):
    options = ["--rows", "adult-1", "--directions", "tableak", "--batches", "1", "--data", str(census.parent)]
    monkeypatch.delenv(CLONE, raising=False)
    assert main(["tabular-peers", *options, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "https://github.com/eth-sri/tableak" in said
    assert CLONE in said
    monkeypatch.setenv(CLONE, str(tmp_path))
    assert main(["tabular-peers", *options, "--out", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_a_peer_is_refused_where_there_are_no_census_rows(source, tmp_path, capsys):
    options = ["--rows", "20x200", "--directions", "tableak", "--batches", "1", "--data", source]
    assert main(["frontier", *options, "--out", str(tmp_path)]) == 2
    assert "tabular-peers" in capsys.readouterr().err
