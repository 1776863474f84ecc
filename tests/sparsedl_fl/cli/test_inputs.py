"""What a user has: token ids, shapes with or without the batch, examples, checkpoints, modes."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sparsedl_fl.audit import example
from sparsedl_fl.simulation import client_gradient

MODELS = """
import torch
from torch import nn


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(500, 16), nn.Embedding(12, 16)
        self.hidden, self.head = nn.Linear(16, 40), nn.Linear(40, 3)

    def forward(self, ids):
        places = self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(torch.relu(self.hidden((self.words(ids) + places).mean(1))))


class Dropped(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(30, 60), nn.BatchNorm1d(60), nn.ReLU(), nn.Dropout(0.5), nn.Linear(60, 10))


def convolutional():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 5))


def tokens():
    return nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
"""


@pytest.fixture
def models(tmp_path):
    (tmp_path / "models.py").write_text(MODELS)
    return f"{tmp_path}/models.py"


def layers(found):
    assert found.status == 0, found.err
    return {row["name"]: row for row in json.loads(found.out)["layers"]}


def test_token_ids_of_a_length(models, run, refused):
    rows = layers(run("inspect", f"{models}:Text", "--input-ids", 12, "--json"))
    assert (rows["hidden"]["attack"], rows["words"]["attack"], rows["places"]["attack"]) == ("next weights", "rows", "")
    assert "--input-ids 13" in refused("inspect", f"{models}:Text", "--input-ids", 13)  # more than there are places


@pytest.mark.parametrize("shape", [(3, 9, 9), (1, 3, 9, 9), (4, 3, 9, 9)])
def test_shapes_with_or_without_the_batch(shape, models, run, refused):
    rows = layers(run("inspect", f"{models}:convolutional", "--input-shape", *shape, "--json"))
    assert rows["4"]["attack"] == "head"
    assert "--input-shape 9 9" in refused("inspect", f"{models}:convolutional", "--input-shape", 9, 9)


@pytest.mark.parametrize("shape", [(30,), (1, 30)])
def test_one_row_is_no_token(shape, models, run):
    rows = layers(run("inspect", f"{models}:Dropped", "--eval", "--input-shape", *shape, "--json"))
    assert rows["0"]["feeds"] == "the model's input"
    assert rows["4"]["attack"] == "head"


def test_examples_from_files(models, run, refused, tmp_path):
    np.save(tmp_path / "one.npy", np.zeros((3, 9, 9), dtype=np.uint8))
    torch.save({"x": torch.zeros(5, 3, 9, 9), "y": torch.zeros(5)}, tmp_path / "many.pt")
    for name in ("one.npy", "many.pt"):
        rows = layers(run("inspect", f"{models}:convolutional", "--example-input", tmp_path / name, "--json"))
        assert rows["4"]["attack"] == "head"
    np.save(tmp_path / "ids.npy", np.arange(12, dtype=np.int32))
    assert layers(run("inspect", f"{models}:Text", "--example-input", tmp_path / "ids.npy", "--json"))
    np.save(tmp_path / "floats.npy", np.ones((2, 12)))
    assert "--example-input" in refused("inspect", f"{models}:Text", "--example-input", tmp_path / "floats.npy")


def test_the_mode_of_the_client(models, run):
    told = {
        mode: layers(run("inspect", f"{models}:Dropped", *mode, "--json")) for mode in ((), ("--eval",), ("--train",))
    }
    assert "batch normalisation in training mode" in told["--train",]["0"]["obstacle"]
    assert "pass --eval" in told["--train",]["0"]["obstacle"]
    assert told[()] == told["--train",]
    assert (told["--eval",]["0"]["obstacle"], told["--eval",]["0"]["dropout"]) == ("", 0)


def test_transformers_are_seen_in_their_slow_path_and_left_in_the_fast_one(models, run):
    before = torch.backends.mha.get_fastpath_enabled()
    rows = layers(run("inspect", f"{models}:tokens", "--eval", "--input-shape", 6, 16, "--json"))
    assert (rows["linear1"]["behind"], rows["linear1"]["feeds"]) == ("relu", "tokens")
    assert not any("did not run" in row["obstacle"] for row in rows.values())
    assert torch.backends.mha.get_fastpath_enabled() == before


@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_a_federations_lists_and_checkpoints(suffix, run, tmp_path):
    weights, update = load_file(example.WEIGHTS), load_file(example.UPDATE)
    names = [name for name, _ in example.model().named_parameters()]
    if suffix == ".npz":
        np.savez(tmp_path / "w.npz", *[weights[name].numpy() for name in names])
        np.savez(tmp_path / "u.npz", *[(weights[name] - 0.1 * update[name]).numpy() for name in names])
        client = ("--learning-rate", 0.1, "--local-steps", 1)
    else:
        torch.save({"model_state_dict": weights, "epoch": 3}, tmp_path / "w.pt")
        torch.save({"gradients": update, "old": {name: 0 * update[name] for name in names}}, tmp_path / "u.pt")
        client = ("--key", "gradients")
        torch.save({"gradients": weights}, tmp_path / "w.pt")
    spec = "sparsedl_fl.audit.example:model"
    found = run("audit", spec, tmp_path / f"u{suffix}", "--weights", tmp_path / f"w{suffix}", *client)
    assert found.status == 1
    assert found.out.startswith(("RECOVERED", "PARTLY"))


def test_several_entries_are_told_apart_by_an_option(refused, tmp_path):
    update = load_file(example.UPDATE)
    torch.save({"a": update, "b": update}, tmp_path / "u.pt")
    spec = "sparsedl_fl.audit.example:model"
    message = refused("audit", spec, tmp_path / "u.pt", "--weights", example.WEIGHTS)
    assert "['a', 'b']: name one by --key" in message


def test_a_model_beside_other_files_of_its_own(run, tmp_path):
    (tmp_path / "parts_of_it.py").write_text("from torch import nn\n\n\ndef layer():\n    return nn.Linear(30, 60)\n")
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\n\nfrom dataclasses import dataclass\nfrom typing import ClassVar\n\n"
        "from torch import nn\n\n\n@dataclass\nclass Sizes:\n    width: int = 60\n    most: ClassVar[int] = 3\n\n\n"
        "def make():\n    from parts_of_it import layer\n\n"
        "    return nn.Sequential(layer(), nn.ReLU(), nn.Linear(Sizes().width, 10))\n"
    )
    assert run("inspect", f"{tmp_path}/mine.py:make").status == 0


def test_a_users_loss_and_a_vocabulary(run, tmp_path):
    (tmp_path / "mine.py").write_text("from torch.nn.functional import cross_entropy as loss\n")
    (tmp_path / "words.txt").write_text("a\nb\n")
    found = run("audit", "--example", "--loss", f"{tmp_path}/mine.py:loss", "--vocabulary", tmp_path / "words.txt")
    assert found.status == 1


def test_names_cannot_steer_the_terminal(run, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n\ndef make():\n    model = nn.Sequential()\n"
        "    model.add_module('a\\x1b[2J\\u202e', nn.Linear(30, 60))\n    model.add_module('b', nn.ReLU())\n"
        "    model.add_module('c\\nRECOVERED', nn.Linear(60, 10))\n    return model\n"
    )
    from sparsedl_fl.audit.files import load_model

    model = load_model(f"{tmp_path}/mine.py:make")
    torch.save(model.state_dict(), tmp_path / "w.pt")
    torch.save(client_gradient(model, torch.randn(3, 30), torch.arange(3)), tmp_path / "u.pt")
    spec = f"{tmp_path}/mine.py:make"
    for command in (("inspect", spec), ("audit", spec, tmp_path / "u.pt", "--weights", tmp_path / "w.pt")):
        for form in ((), ("--json",)):
            found = run(*command, *form)
            assert found.status in (0, 1)
            assert not {c for c in found.out + found.err if not c.isprintable() and c != "\n"}
            assert "\nRECOVERED" not in found.out


def test_a_sweep_of_a_text_model_draws_ids(models, run):
    only = ("--only", "number format", "--batches", 1, "--batch-size", 2, "--effort", 0)
    assert run("sweep", f"{models}:Text", "--input-ids", 12, *only).status == 0


@pytest.mark.parametrize("rate", [(), ("--learning-rate", 0.001)])
def test_adam_hides_no_token_ids(models, run, tmp_path, rate):
    from sparsedl_fl.audit.files import load_model

    model = load_model(f"{models}:Text")
    torch.save(model.state_dict(), tmp_path / "w.pt")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    ids = torch.arange(24).reshape(2, 12)
    torch.nn.functional.cross_entropy(model(ids), torch.arange(2)).backward()
    optimizer.step()
    torch.save(model.state_dict(), tmp_path / "u.pt")
    weights = ("--weights", tmp_path / "w.pt", "--optimizer", "adam", "--input-ids", 12)
    found = run("audit", f"{models}:Text", tmp_path / "u.pt", *weights, *rate, "--json")
    assert found.status == 1, found
    assert json.loads(found.out)["verdict"] == "PARTLY"
