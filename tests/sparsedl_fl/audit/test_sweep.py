"""Sweeps: what is simulated is what it says, and what counts as recovered is right."""

import json

import pytest
import torch

from sparsedl_fl.audit import STOCK, Setting, Verdict, default_settings, example, sweep
from sparsedl_fl.audit.sweeping.sweep_clients import accuracy_after
from sparsedl_fl.simulation import SimulatedClient


@pytest.fixture(scope="module")
def digits():
    return example.records()


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return example.model()


SETTINGS = [
    Setting("batch size", "4", SimulatedClient(batch_size=4)),
    Setting("batch size", "200", SimulatedClient(batch_size=200)),
    Setting("optimiser", "Adam", SimulatedClient(batch_size=4, n_epochs=2, optimizer="adam")),
]


def test_says_where_the_leak_stops_and_what_is_out_of_range(model, digits, tmp_path):
    seen = []
    out = tmp_path / "records.jsonl"
    arguments = {"settings": SETTINGS, "n_batches": 2, "max_effort": 2, "out": out}
    found = sweep(model, *digits, **arguments, report=lambda done, total: seen.append((done, total)))
    few, many, adam = found.rows
    assert few.share == few.label_share == 1
    assert many.share == 0
    assert adam.verdicts == {str(Verdict.OUT_OF_RANGE): 2}
    assert found.weakest["optimiser"] is None  # out of range is no conclusion
    assert seen[-1] == (6, 6)
    assert sum(row.n_wrong for row in found.rows) == 0
    assert "out of range" in found.to_table()
    again = sweep(model, *digits, **arguments, report=lambda done, total: seen.append("again"))
    assert "again" not in seen  # everything was on file
    assert again.to_dict() == found.to_dict()
    assert json.loads(found.to_json())["settings"][0]["share"] == 1
    assert len(found.plot().patches) == 3


def test_goes_on_after_an_interruption(model, digits, tmp_path):
    out = tmp_path / "records.jsonl"

    def stop(done, total):
        raise KeyboardInterrupt

    arguments = {"settings": SETTINGS[:1], "n_batches": 3, "max_effort": 2, "out": out}
    with pytest.raises(KeyboardInterrupt):
        sweep(model, *digits, **arguments, report=stop)
    kept = out.read_text().splitlines()
    assert len(kept) == 1
    out.write_text(out.read_text() + '{"key": "cut off')
    counts = []
    sweep(model, *digits, **arguments, report=lambda done, total: counts.append(done))
    assert counts == [2, 3]


def test_an_interrupt_inside_an_audit_ends_the_sweep_and_its_record_is_not_kept(model, digits, tmp_path, monkeypatch):
    from sparsedl_fl import GradientInverter

    def stop(self, layer):
        raise KeyboardInterrupt  # the audit keeps what it has, and says that it was interrupted

    out = tmp_path / "records.jsonl"
    arguments = {"settings": SETTINGS[:1], "n_batches": 2, "max_effort": 2, "out": out}
    with monkeypatch.context() as patch:
        patch.setattr(GradientInverter, "fit", stop)
        with pytest.raises(KeyboardInterrupt):
            sweep(model, *digits, **arguments)
    assert not out.exists()
    assert sweep(model, *digits, **arguments).rows[0].share == 1


def test_records_are_those_of_a_model_its_data_and_options(model, digits, tmp_path):
    def n_run(model, inputs, **changed):
        counts = []
        arguments = {"settings": SETTINGS[:1], "n_batches": 1, "max_effort": 2, "out": tmp_path / "records.jsonl"}
        sweep(model, inputs, digits[1], **arguments | changed, report=lambda *_: counts.append(1))
        return len(counts)

    class Smooth(torch.nn.Module):
        """Other code with the same weights and modules."""

        def __init__(self, function):
            super().__init__()
            self.first, self.head, self.function = model[1], model[5], function

        def forward(self, x):
            return self.head(self.function(self.first(x.flatten(1))))

    other = torch.nn.Sequential(*model[:2], torch.nn.Tanh(), *model[3:])
    assert n_run(model, digits[0]) == 1
    assert n_run(model, digits[0]) == 0
    assert n_run(other, digits[0]) == 1
    assert n_run(model, 0.5 * digits[0]) == 1
    assert n_run(model, digits[0], max_effort=1) == 1
    assert [n_run(Smooth(function), digits[0]) for function in (torch.relu, torch.tanh, torch.relu)] == [1, 1, 0]
    assert n_run(model, digits[0]) == 0


def test_broken_lines_and_records_of_others_are_passed_over(tmp_path):
    from sparsedl_fl.audit.sweeping.records_on_file import FIELDS, append_record, read_records

    whole = dict.fromkeys(FIELDS, 0) | {"key": "a", "is_complete": True}
    capped = whole | {"key": "b", "is_complete": False}
    path = tmp_path / "records.jsonl"
    path.write_text('{"key": "old", "verdict": "NOT RECOVERED"}\n[1]\n{"key": "cut o}')
    append_record(path, whole)
    append_record(path, capped)
    assert set(read_records(path)) == {"a", "b"}
    assert set(read_records(path, is_timed=True)) == {"a"}
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(ValueError, match="cannot be written"):
        append_record(tmp_path / "link", whole)


def test_made_up_records_will_do(model):
    found = sweep(model, settings=SETTINGS[:1], n_batches=1, example=torch.zeros(1, 1, 8, 8), max_seconds=2)
    assert found.rows[0].share == 1
    assert "Gaussian" in found.data


def test_more_records_than_there_are(model, digits):
    with pytest.raises(ValueError, match="takes more records than the 50"):
        sweep(model, digits[0][:50], digits[1][:50], settings=SETTINGS)


def test_ladders_are_what_they_say():
    settings = default_settings(8, most=64)
    assert all(setting.client.n_records <= 64 for setting in settings)
    assert len({(setting.defence, setting.name) for setting in settings}) == len(settings)
    assert {setting.defence.split()[0] for setting in STOCK} == {"Flower", "NVFLARE", "FLIP", "Opacus"}


def test_training_learns_and_noise_costs(model, digits):
    plain = SimulatedClient(batch_size=64, n_epochs=1, mini_batch=8, learning_rate=0.1)
    noisy = SimulatedClient(
        batch_size=64, n_epochs=1, mini_batch=8, learning_rate=0.1, client_clipping=1, client_noise=5
    )
    with_it, without = (accuracy_after(model, *digits, one, torch.nn.functional.cross_entropy, 20)
                        for one in (noisy, plain))  # fmt: skip
    assert without > 0.6
    assert with_it < without - 0.2


def test_one_step_of_adam_is_in_range(model, digits):
    client = SimulatedClient(batch_size=4, n_epochs=1, optimizer="adam", learning_rate=1e-2)
    row = sweep(model, *digits, settings=[Setting("optimiser", "Adam", client)], n_batches=1, max_effort=5).rows[0]
    assert row.n_wrong == 0
    assert row.verdicts != {str(Verdict.OUT_OF_RANGE): 1}
