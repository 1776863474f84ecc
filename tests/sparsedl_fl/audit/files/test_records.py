"""A client's records, examples of inputs, and vocabularies."""

import json

import numpy as np
import pytest
import torch

from sparsedl_fl.audit.files import load_example, load_records, load_vocabulary


def test_records(tmp_path):
    bytes_ = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    np.savez(tmp_path / "x.npz", x=bytes_, y=np.array([1, 2]))
    x, y = load_records(tmp_path / "x.npz", (3, 4, 4))
    assert x.shape == (2, 3, 4, 4)
    np.testing.assert_allclose(x[0, 1, 0, 0], bytes_[0, 0, 0, 1] / 255)
    assert y.tolist() == [1, 2]
    with pytest.raises(ValueError, match="records of shape"):
        load_records(tmp_path / "x.npz", (5, 5))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.ones((2, 3))}, "array x"),
        ({"x": np.full((2, 3), np.nan)}, "NaN"),
        ({"x": np.ones((2, 3)), "y": np.ones((2, 2))}, "labels y of shape"),
        ({"x": np.ones((2, 3)), "y": np.ones(3)}, "2 records and 3 labels"),
        ({"x": np.array(["a", "b"])}, "numbers are needed"),
    ],
)
def test_records_that_are_none(arrays, message, tmp_path):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_records(tmp_path / "x.npz")


def test_an_example_is_one_tensor_with_or_without_the_batch(tmp_path):
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    np.save(tmp_path / "x.npy", pixels)
    np.savez(tmp_path / "x.npz", pixels)
    np.savez(tmp_path / "named.npz", x=pixels, y=np.ones(3))
    torch.save(torch.from_numpy(pixels), tmp_path / "x.pt")
    for name in ("x.npy", "x.npz", "named.npz", "x.pt"):
        shapes = {tuple(found.shape) for found in load_example(tmp_path / name)}
        assert shapes == {(2, 8), (1, 8, 8)}
    readings = load_example(tmp_path / "x.npy")
    assert {reading.dtype for reading in readings} == {torch.float32, torch.int64}
    for broken in (np.ones((0, 3)), np.array(["a"])):
        np.save(tmp_path / "broken.npy", broken)
        with pytest.raises(ValueError, match="broken.npy"):
            load_example(tmp_path / "broken.npy")
    np.savez(tmp_path / "two.npz", a=pixels, b=pixels)
    with pytest.raises(ValueError, match="one tensor"):
        load_example(tmp_path / "two.npz")


@pytest.mark.parametrize(
    "content",
    [
        {"[PAD]": 0, "cat": 2, "dog": 1},
        ["[PAD]", "dog", "cat"],
        {"model": {"vocab": {"dog": 1, "cat": 2}}, "added_tokens": [{"id": 0, "content": "[PAD]"}]},
        {"model": {"vocab": [["[PAD]", 0.0], ["dog", -1.5], ["cat", -2.0]]}},
        "[PAD]\ndog\ncat\n",
        "[PAD]\r\ndog\r\ncat",
    ],
)
def test_vocabularies(content, tmp_path):
    path = tmp_path / ("vocab.txt" if isinstance(content, str) else "vocab.json")
    path.write_bytes((content if isinstance(content, str) else json.dumps(content)).encode())
    assert load_vocabulary(path) == {0: "[PAD]", 1: "dog", 2: "cat"}


@pytest.mark.parametrize("text", ["{", "3", '{"a": "b"}', '{"a": -1}', '{"a": true}', "[1, 2]", "{}", "[" * 100_000])
def test_vocabularies_that_are_none(text, tmp_path):
    (tmp_path / "vocab.json").write_text(text)
    with pytest.raises(ValueError, match="vocabulary"):
        load_vocabulary(tmp_path / "vocab.json")
    with pytest.raises(ValueError, match="cannot be read"):
        load_vocabulary(tmp_path)
