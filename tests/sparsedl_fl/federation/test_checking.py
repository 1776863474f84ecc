"""The client's own check, and the policy that every framework shares."""

import time
import warnings
from copy import deepcopy
from threading import Thread

import numpy as np
import pytest
import torch
from joblib import parallel_config

from sparsedl_fl.audit import Verdict
from sparsedl_fl.caught_warnings import caught_warnings
from sparsedl_fl.federation import LeakPolicy, LeakWarning, check_update

RATE = 0.05


def trained(maker, train, **options):
    model = maker()
    before = deepcopy(model.state_dict())
    train(model, **options)
    return before, model.state_dict()


@pytest.mark.parametrize("form", ["tensors", "arrays", "list", "difference", "prefixed"])
def test_every_form_of_a_state(maker, train, form):
    before, after = trained(maker, train)
    options = {"learning_rate": RATE, "n_steps": 1}
    if form == "arrays":
        after = {name: tensor.numpy() for name, tensor in after.items()}
    if form == "list":
        before, after = ([tensor.numpy() for tensor in state.values()] for state in (before, after))
    if form == "difference":
        after, options["is_difference"] = {name: after[name] - before[name] for name in after}, True
    if form == "prefixed":
        after = {f"module.{name}": tensor for name, tensor in after.items()}
    found = check_update(maker, before, after, **options)
    assert found.verdict is Verdict.RECOVERED
    assert found.best.n_certified == 8


def test_integer_buffers_are_no_matter(counting, train):
    model = counting()
    before = deepcopy(model.state_dict())
    train(model)
    after = model.state_dict()
    after["norm.num_batches_tracked"] += 3
    assert check_update(counting, before, after, learning_rate=RATE, n_steps=1).verdict is Verdict.RECOVERED


def test_a_model_in_training_is_left_as_it_was(maker, train):
    model = maker()
    before = deepcopy(model.state_dict())
    train(model)
    after = deepcopy(model.state_dict())
    assert check_update(model, before, after, learning_rate=RATE, n_steps=1).verdict is Verdict.RECOVERED
    assert all(torch.equal(tensor, after[name]) for name, tensor in model.state_dict().items())
    assert model.training


def test_adam_is_out_of_range(maker, train):
    before, after = trained(maker, train)
    found = check_update(maker, before, after, learning_rate=RATE, optimizer="adam")
    assert found.verdict is Verdict.OUT_OF_RANGE
    assert "adam" in found.reason


def test_what_is_not_of_the_model_is_named(maker, train):
    before, after = trained(maker, train)
    with pytest.raises(ValueError, match="after lacks the tensor '5.weight'"):
        check_update(maker, before, {n: t for n, t in after.items() if n != "5.weight"}, learning_rate=RATE)
    with pytest.raises(ValueError, match="before has 2 arrays"):
        check_update(maker, [np.zeros(2)] * 2, after, learning_rate=RATE)
    with pytest.raises(ValueError, match="of shape"):
        check_update(maker, before, after | {"5.bias": torch.zeros(3)}, learning_rate=RATE)


@pytest.mark.parametrize("mode", ["report", "warn", "block"])
def test_modes(maker, train, mode, tmp_path):
    before, after = trained(maker, train)
    policy = LeakPolicy(maker, RATE, mode=mode, n_steps=1, out=tmp_path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        checked = policy.check(before, after, client="hospital/7", server_round=3)
    assert checked.is_blocked == (mode == "block")
    assert (len([w for w in said if w.category is LeakWarning]) == 1) == (mode != "report")
    assert {path.name for path in (tmp_path / "round-003").iterdir()} == {
        "client-hospital_7.html",
        "client-hospital_7.json",
        "round.md",
    }
    report = (tmp_path / "round-003" / "round.md").read_text()
    assert "| hospital/7 | RECOVERED" in report
    assert "8 of 8 inputs of the model and 8 labels" in report
    assert "| hospital/7 | RECOVERED, 8 of 8 inputs of the model" in (tmp_path / "rounds.md").read_text()


@pytest.mark.parametrize("mode", ["report", "warn", "block"])
def test_an_error_inside_is_a_warning_and_fails_closed_where_it_blocks(mode):
    def broken():
        raise RuntimeError("no such file")

    policy = LeakPolicy(broken, RATE, mode=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)
        checked = policy.check({}, {}, client=1, server_round=1)
    assert checked.is_blocked == (mode == "block")
    assert "no such file" in checked.reason
    assert "audit failed" in policy.table.to_table()


def test_arguments_that_make_no_sense_are_named(maker, train):
    before, after = trained(maker, train)
    for name, value in (("optimizer", "smg"), ("loss", "nonsense"), ("learning_rate", 0), ("batch_size", 1.5)):
        with pytest.raises(ValueError, match=f"{name} must be"):
            check_update(maker, before, after, **({"learning_rate": RATE} | {name: value}))


def test_table_has_a_row_a_client_and_a_column_a_round(maker, train):
    policy = LeakPolicy(maker, RATE, mode="report", n_steps=1, max_seconds=2)
    for client, number in [("a", 1), ("b", 1), ("a", 2)]:
        policy.check(*trained(maker, train, seed=number), client=client, server_round=number)
    lines = policy.table.to_table().splitlines()
    assert lines[0] == "| client | round 1 | round 2 |"
    assert len(lines) == 4
    assert lines[3].endswith("|  |")
    assert len(policy.table) == len(list(policy.table)) == 3


@pytest.mark.slow
def test_updates_of_a_round_are_audited_at_the_same_time(maker, train):
    updates = [(seed, *trained(maker, train, seed=seed), {"batch_size": 8}) for seed in range(3)]
    alone, together = (LeakPolicy(maker, RATE, mode="report", n_steps=1, n_jobs=jobs) for jobs in (1, 2))
    one_by_one = alone.check_all(updates, server_round=1)
    with parallel_config("threading"):
        at_once = together.check_all(updates, server_round=1)
    assert [checked.client for checked in at_once] == ["0", "1", "2"]
    for one, other in zip(one_by_one, at_once, strict=True):
        np.testing.assert_array_equal(one.result.best.batch.inputs, other.result.best.batch.inputs)


def test_what_cannot_be_sent_to_another_process_is_audited_here(maker, train, monkeypatch):
    import sparsedl_fl.federation.policy as module

    parallel = module.Parallel

    def broken(n_jobs):
        if n_jobs != 1:
            raise RuntimeError("no processes")
        return parallel(n_jobs=1)

    monkeypatch.setattr(module, "Parallel", broken)
    policy = LeakPolicy(maker, RATE, mode="report", n_steps=1, n_jobs=2)
    updates = [(seed, *trained(maker, train, seed=seed), {}) for seed in range(2)]
    assert [checked.result.verdict for checked in policy.check_all(updates, server_round=1)] == [Verdict.RECOVERED] * 2


def test_waiting_for_another_thread_is_not_part_of_the_cost(maker, train):
    update, policy, seconds = trained(maker, train), LeakPolicy(maker, RATE, mode="report", n_steps=1), []
    thread = Thread(target=lambda: seconds.append(policy.check(*update, client="a", server_round=1).seconds))
    with caught_warnings():
        start = time.perf_counter()
        thread.start()
        thread.join(1)
        waited = time.perf_counter() - start
        assert thread.is_alive()
    thread.join()
    total = time.perf_counter() - start
    assert seconds[0] < total - 0.9 * waited
