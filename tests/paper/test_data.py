import sys
import urllib.error
import zipfile

import numpy as np
import pytest
import sklearn.datasets
from PIL import Image

from paper.data import DATASETS, load_adult, load_images


@pytest.fixture(autouse=True)
def forget():
    load_images.cache_clear()
    yield
    load_images.cache_clear()


def test_a_folder_of_files_by_the_names_of_the_data_sets(source, patches):
    images = load_images("cifar10", source)
    pixels, labels = images.draw(10, seed=0)
    assert pixels.shape == (10, 32, 32, 3)
    assert 0 <= pixels.min() < pixels.max() <= 1
    for picture, label in zip(pixels, labels, strict=True):
        index = np.flatnonzero((patches[0] == np.round(picture * 255)).all(axis=(1, 2, 3)))
        assert (patches[1][index] == label).all()
        assert len(index) == 1


def test_a_draw_is_seeded_and_has_no_picture_twice(source):
    images = load_images("cifar10", source)
    pixels, _ = images.draw(60, seed=3)
    np.testing.assert_array_equal(pixels, images.draw(60, seed=3)[0])
    assert len(np.unique(pixels.reshape(60, -1), axis=0)) == 60


def test_one_class(source):
    images = load_images("cifar10", source)
    for seed in range(4):
        assert len(set(images.draw(20, seed, one_class=True)[1])) == 1
    with pytest.raises(ValueError, match="no class has 31 pictures; the largest has 30"):
        images.draw(31, 0, one_class=True)


def test_more_than_there_are_come_mirrored(source):
    pixels, _ = load_images("cifar10", source).draw(100, seed=0)
    assert len(np.unique(pixels.reshape(100, -1), axis=0)) > 60


def test_normalisation_goes_back_and_forth(source):
    images = load_images("cifar10", source)
    pixels, _ = images.draw(5, seed=0)
    inputs = images.normalize(pixels)
    assert inputs.shape == (5, 3072)
    np.testing.assert_allclose(images.denormalize(inputs.double().numpy()), pixels.reshape(5, -1), atol=1e-6)


@pytest.mark.parametrize("zipped", [False, True])
def test_images_in_folders_are_classes(tmp_path, zipped):
    rng = np.random.default_rng(0)
    for index, size in enumerate([(50, 80), (40, 40), (20, 30), (90, 300)]):
        folder = tmp_path / "pictures" / f"class{index % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(256, size=(*size, 3), dtype=np.uint8)).save(folder / f"{index}.png")
    source = tmp_path / "pictures"
    if zipped:
        source = tmp_path / "pictures.zip"
        with zipfile.ZipFile(source, "w") as archive:
            for file in sorted((tmp_path / "pictures").rglob("*.png")):
                archive.write(file, file.relative_to(tmp_path / "pictures"))
    images = load_images("cifar10", str(source))
    assert images.labels.tolist() == [0, 0, 1, 1]
    assert all(min(picture.shape[:2]) >= 32 for picture in images.pictures)
    assert images.draw(4, seed=0)[0].shape == (4, 32, 32, 3)


def test_openml_pictures_have_their_channels_last(monkeypatch):
    flat = np.arange(2 * 3072).reshape(2, 3072) % 251

    class Bunch:
        data, target = flat, np.array(["3", "5"])

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", lambda name, as_frame: Bunch)
    images = load_images("cifar10")
    assert images.labels.tolist() == [3, 5]
    assert images.pictures[1][2, 5].tolist() == [flat[1, channel * 1024 + 2 * 32 + 5] for channel in range(3)]


def test_what_is_wrong_with_a_source(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="tinyimagenet is not on OpenML: pass --data with tinyimagenet.npz"):
        load_images("tinyimagenet")
    with pytest.raises(ValueError, match="does not exist"):
        load_images("cifar10", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="holds neither images nor any of mnist.npz"):
        load_images("mnist", str(tmp_path))
    np.savez(tmp_path / "cifar10.npz", x=np.zeros((2, 32, 32), dtype=np.uint8))
    with pytest.raises(ValueError, match="must hold the arrays x and y"):
        load_images("cifar10", str(tmp_path))
    np.savez(tmp_path / "cifar10.npz", x=np.zeros((2, 32, 32), dtype=np.uint8), y=np.zeros(2))
    with pytest.raises(ValueError, match="has 1 channels, cifar10 has 3"):
        load_images("cifar10", str(tmp_path))
    with pytest.raises(ValueError, match="holds no adult"):
        load_adult(str(tmp_path))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"sparsedl\[reproduce\]"):
        load_adult(str(tmp_path))


@pytest.mark.parametrize(("load", "file"), [(lambda: load_images("cifar10"), "cifar10.npz"), (load_adult, "adult.csv")])
def test_without_a_network_it_says_what_to_give(monkeypatch, load, file):
    def unreachable(*_, **__):
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", unreachable)
    with pytest.raises(ValueError, match=rf"OpenML \(.*no route to host.*\): pass --data with {file}"):
        load()


def test_census_rows_from_a_file(tmp_path):
    (tmp_path / "adult.csv").write_text("age,sex,income\n30,Male,>50K\n40,Female,<=50K.\n")
    table, labels = load_adult(str(tmp_path))
    assert list(table) == ["age", "sex"]
    assert labels.tolist() == [1, 0]


def test_every_data_set_says_how_to_normalise():
    for dataset in DATASETS.values():
        assert len(dataset.mean) == len(dataset.std) in (1, 3)
