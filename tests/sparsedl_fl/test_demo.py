import numpy as np
import pytest

from sparsedl_fl.cli import main
from sparsedl_fl.demo import natural_patches, run_demo


def test_patches_are_natural_and_seeded():
    patches, mean, std = natural_patches(5, random_state=0)
    assert patches.shape == (5, 32, 32, 3)
    assert 0 <= patches.min() < patches.max() <= 1
    assert (patches.std(axis=(1, 2)).mean(axis=1) >= 0.1).all()
    assert mean.shape == std.shape == (3,)
    np.testing.assert_array_equal(patches, natural_patches(5, random_state=0)[0])


def test_the_demo_recovers_its_batch():
    audit = run_demo(seed=1)
    assert audit.inverter.batch_size_ == 20
    assert audit.certified.all()
    assert audit.psnr.min() > 90
    assert np.abs(audit.recovered - audit.originals).max() < 1e-4


def test_command_line_prints_a_table_and_writes_a_picture(tmp_path, capsys):
    picture = tmp_path / "demo.png"
    assert main(["demo", "--batch-size", "4", "--width", "60", "--output", str(picture)]) == 0
    captured = capsys.readouterr()
    for row in (
        "batch size found",
        "inputs certified",
        "agreement with the weights",
        "mean PSNR",
        "worst PSNR",
        "seconds",
    ):
        assert row in captured.out
    assert "4/4" in captured.err
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_command_line_wants_a_command(capsys):
    with pytest.raises(SystemExit):
        main([])
    assert "demo" in capsys.readouterr().err
