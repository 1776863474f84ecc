"""Files that unpack to far more than they are, and broken ones, are refused before anything of them is unpacked."""

import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sparsedl_fl.audit.files.containers import load_tensors, read_file
from sparsedl_fl.audit.files.records import load_records
from sparsedl_fl.audit.files.unpacking import RECORDS_FREE, largest_unpacked

MANY = 20_000_000


def compressed(path, target):
    with zipfile.ZipFile(path) as given, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for info in given.infolist():
            packed.writestr(info.filename, given.read(info.filename))
    return target


def zipped(folder):
    torch.save({"x": torch.zeros(MANY)}, folder / "large.pt")
    return compressed(folder / "large.pt", folder / "bomb.pt")


def repeated_by_strides(folder):
    torch.save({"x": torch.zeros(1).expand(MANY)}, folder / "bomb.pt")
    return folder / "bomb.pt"


def shared(folder):
    one = torch.zeros(MANY // 1000)
    torch.save({str(i): one for i in range(1000)}, folder / "bomb.pt")
    return folder / "bomb.pt"


def sparse(folder):
    with torch.sparse.check_sparse_tensor_invariants(True):
        one = torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.long), torch.ones(1), (MANY,))
        torch.save({"x": one}, folder / "bomb.pt")
    return folder / "bomb.pt"


def announced(folder):
    """A storage that a file in the format before 2020 says it has."""
    torch.save({"x": torch.zeros(4)}, folder / "bomb.pt", _use_new_zipfile_serialization=False)
    content = (folder / "bomb.pt").read_bytes()
    small, large = b"K\x04", b"J" + struct.pack("<i", MANY)
    assert content.count(b"K\x04N") == 1
    (folder / "bomb.pt").write_bytes(content.replace(small + b"N", large + b"N"))
    return folder / "bomb.pt"


def arrays(folder):
    np.savez_compressed(folder / "bomb.npz", x=np.zeros(MANY))
    return folder / "bomb.npz"


def head_of_an_array(folder):
    np.save(folder / "bomb.npy", np.zeros(4))
    content = (folder / "bomb.npy").read_bytes()
    (folder / "bomb.npy").write_bytes(content.replace(b"(4,), }       ", b"(40000000,), }"))
    return folder / "bomb.npy"


@pytest.mark.parametrize("make", [zipped, repeated_by_strides, shared, sparse, announced, arrays, head_of_an_array])
def test_bombs_are_refused_unread(make, tmp_path):
    path = make(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"is refused: it has .* and unpacks to .* plausible"):
            read_file(path)
        assert tracemalloc.get_traced_memory()[1] < MANY
    finally:
        tracemalloc.stop()


def test_what_a_model_needs_is_plausible_and_more_is_not(tmp_path):
    state = {"a": torch.zeros(100_000), "b": torch.zeros(100)}
    tied = {"a": state["a"], "again": state["a"]}
    torch.save(tied, tmp_path / "tied.pt")
    assert set(read_file(tmp_path / "tied.pt")) == {"a", "again"}
    torch.save(tied | {"thrice": state["a"]}, tmp_path / "tied.pt")
    torch.save(state, tmp_path / "plain.pt")
    small = compressed(tmp_path / "plain.pt", tmp_path / "small.pt")
    for path in (tmp_path / "tied.pt", small):
        with pytest.raises(ValueError, match="is refused"):
            read_file(path)
        assert read_file(path, largest_unpacked(path, state | tied))["a"].shape == (100_000,)


def test_compressed_records_are_read_and_bombs_among_them_are_not(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=np.eye(64, dtype=np.uint8)[np.arange(5000) % 64])
    assert load_records(tmp_path / "x.npz")[0].shape == (5000, 64)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (2, RECORDS_FREE)})
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue())
    with pytest.raises(ValueError, match="is refused"):
        load_records(tmp_path / "bomb.npz")


def damaged(content):
    yield b""
    yield content[: len(content) // 2]
    yield content[:-3]
    yield b"hello world\n" * 10
    yield b"\x00" * 100
    yield b"PK\x03\x04" + b"\x00" * 100
    yield b"\x80\x02}q\x00."
    yield bytes(reversed(content))


@pytest.mark.parametrize("suffix", [".pt", ".old.pt", ".npz", ".npy", ".safetensors"])
def test_broken_files_are_named(suffix, tmp_path):
    good, tensors = tmp_path / f"good{suffix}", {"x": torch.ones(50, 3)}
    if suffix.endswith(".pt"):
        torch.save(tensors, good, _use_new_zipfile_serialization=suffix == ".pt")
    elif suffix == ".npz":
        np.savez(good, x=tensors["x"].numpy())
    elif suffix == ".npy":
        np.save(good, tensors["x"].numpy())
    else:
        save_file(tensors, good)
    assert read_file(good) is not None
    for number, content in enumerate(damaged(good.read_bytes())):
        path = tmp_path / f"broken{number}{suffix}"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"broken{number}"):
            load_tensors(path)


def test_folders_objects_and_meta_tensors_are_no_files_of_tensors(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        read_file(tmp_path)
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="objects"):
        read_file(tmp_path / "objects.npz")
    torch.save({"x": torch.ones(2, device="meta")}, tmp_path / "meta.pt")
    with pytest.raises(ValueError, match="no numbers for 'x'"):
        read_file(tmp_path / "meta.pt")
    torch.save({"x": torch.ones(2), "epoch": 3}, tmp_path / "mixed.pt")
    with pytest.raises(ValueError, match=r"nothing else; it has \['epoch', 'x'\]"):
        load_tensors(tmp_path / "mixed.pt")
