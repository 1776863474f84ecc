"""An update leaves a blocking policy only after a complete audit that ended green."""

import pickle
import signal
import warnings
from contextlib import suppress
from copy import deepcopy

import numpy as np
import pytest
import torch
from joblib import parallel_config

from sparsedl_fl.audit import Verdict
from sparsedl_fl.federation import Finding, LeakPolicy, LeakWarning

RATE = 0.05
pytestmark = pytest.mark.filterwarnings("ignore::sparsedl_fl.federation.LeakWarning")
LEAKS = [verdict for verdict in Verdict if verdict.is_leak]


def checked(policy, before=None, after=()):
    return policy.check(before, after, client="a", server_round=1)


def trained(maker, train, **options):
    model = maker()
    before = deepcopy(model.state_dict())
    train(model, **options)
    return before, model.state_dict()


@pytest.mark.parametrize("mode", ["report", "warn", "block"])
@pytest.mark.parametrize("out_of_range", ["hold", "release"])
@pytest.mark.parametrize("verdict", list(Verdict))
def test_only_green_leaves_and_what_is_out_of_range_by_choice(maker, audit_says, mode, out_of_range, verdict):
    audit_says(verdict)
    policy = LeakPolicy(maker, RATE, mode=mode, out_of_range=out_of_range)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = checked(policy)
    is_green = verdict is Verdict.NOT_RECOVERED or (verdict is Verdict.OUT_OF_RANGE and out_of_range == "release")
    assert found.is_blocked == (mode == "block" and not is_green)
    assert bool(said) == (mode != "report" and not is_green)
    assert found.reason.startswith(str(verdict))
    assert (found.finding is Finding.LEAK) == (verdict in LEAKS)


@pytest.mark.parametrize("out_of_range", ["hold", "release"])
@pytest.mark.parametrize("verdict", [Verdict.NOT_RECOVERED, Verdict.OUT_OF_RANGE])
def test_a_cap_that_was_hit_holds(maker, audit_says, verdict, out_of_range):
    audit_says(verdict, is_complete=False)
    found = checked(LeakPolicy(maker, RATE, mode="block", out_of_range=out_of_range))
    assert found.is_blocked
    assert found.finding is Finding.CAP
    assert found.reason.startswith("cap: ")
    assert "max_effort" in found.reason


def test_a_leak_that_a_cap_cut_short_is_a_leak(maker, audit_says):
    audit_says(Verdict.PARTLY, is_complete=False)
    assert checked(LeakPolicy(maker, RATE, mode="block")).finding is Finding.LEAK


@pytest.mark.parametrize("out_of_range", ["hold", "release"])
def test_numbers_that_are_not_finite_hold(maker, audit_says, out_of_range):
    audit_says(Verdict.NOT_RECOVERED, missing=["1.weight"])
    found = checked(LeakPolicy(maker, RATE, mode="block", out_of_range=out_of_range))
    assert found.is_blocked
    assert "error: NaN or infinity in '1.weight'" in found.reason


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError("16 GB"), RecursionError(), OSError(5), KeyError("x")])
def test_whatever_is_raised_inside_holds(maker, audit_says, error):
    audit_says(error)
    found = checked(LeakPolicy(maker, RATE, mode="block", out_of_range="release"))
    assert found.is_blocked
    assert found.finding is Finding.ERROR
    assert found.reason.startswith("error: the audit failed: " + type(error).__name__)


@pytest.mark.parametrize("mode", ["report", "warn", "block"])
@pytest.mark.parametrize("kind", ["raised", "taken"])
def test_an_interrupt_holds_and_goes_on(maker, audit_says, mode, kind):
    if kind == "raised":
        audit_says(KeyboardInterrupt())
    else:
        audit_says(Verdict.NOT_RECOVERED, is_interrupted=True, is_complete=False)
    policy = LeakPolicy(maker, RATE, mode=mode, out_of_range="release")
    with pytest.raises(KeyboardInterrupt):
        policy.check_all([("a", None, (), {}), ("b", None, (), {})], server_round=1)
    (found,) = policy.table  # no other update is begun
    assert found.finding is Finding.INTERRUPTED
    assert found.is_blocked == (mode == "block")
    assert found.reason.startswith("interrupted: ")


def test_an_interrupt_that_a_search_takes_in_silence_is_noted(maker, monkeypatch, audit_says):
    """Part of the search swallows one and says nothing."""
    from sparsedl_fl.federation import outcome

    audit_says(Verdict.NOT_RECOVERED)
    told = outcome.check_update

    def check(*arguments, **options):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return told(*arguments, **options)

    monkeypatch.setattr(outcome, "check_update", check)
    before = signal.getsignal(signal.SIGINT)
    policy = LeakPolicy(maker, RATE, mode="block")
    with pytest.raises(KeyboardInterrupt):
        checked(policy)
    assert policy.table.audits[0].is_blocked
    assert signal.getsignal(signal.SIGINT) is before


def test_a_real_audit_that_is_interrupted(maker, train, monkeypatch):
    update = trained(maker, train)
    monkeypatch.setattr("sparsedl_fl.inverter.GradientInverter.fit", lambda *_: signal.raise_signal(signal.SIGINT))
    policy = LeakPolicy(maker, RATE, mode="block", n_steps=1)
    with pytest.raises(KeyboardInterrupt):
        checked(policy, *update)
    assert policy.table.audits[0].finding is Finding.INTERRUPTED


@pytest.mark.parametrize("limit", ["max_effort", "max_seconds"])
@pytest.mark.parametrize("out_of_range", ["hold", "release"])
def test_a_real_audit_that_is_cut_short(maker, train, limit, out_of_range):
    before, after = trained(maker, train)
    generator = torch.Generator().manual_seed(0)
    after = {name: tensor + 0.01 * torch.randn(tensor.shape, generator=generator) for name, tensor in after.items()}
    options = {limit: 1e-6, "batch_size": 8, "n_steps": 1, "out_of_range": out_of_range}
    found = checked(LeakPolicy(maker, RATE, mode="block", **options), before, after)
    assert found.is_blocked
    assert found.finding is Finding.CAP


@pytest.mark.slow
def test_a_real_audit_that_ends_green_leaves(maker, train):
    before, after = trained(maker, train)
    generator = torch.Generator().manual_seed(0)
    after = {
        name: tensor
        + 5 * (tensor - before[name]).square().mean().sqrt() * torch.randn(tensor.shape, generator=generator)
        for name, tensor in after.items()
    }
    found = checked(LeakPolicy(maker, RATE, mode="block", n_steps=1, batch_size=8), before, after)
    assert found.finding is Finding.CLEAR
    assert not found.is_blocked


def test_nothing_but_nan_is_held(maker, train):
    before, after = trained(maker, train)
    for spoilt, optimizer in ((list(after), "sgd"), (["1.weight"], "sgd"), (["5.bias"], "adam")):
        given = {name: tensor * np.nan if name in spoilt else tensor for name, tensor in after.items()}
        policy = LeakPolicy(maker, RATE, mode="block", n_steps=1, optimizer=optimizer, out_of_range="release")
        found = checked(policy, before, given)
        assert found.is_blocked
        assert "NaN" in found.reason or found.finding is Finding.LEAK


def test_a_report_that_cannot_be_written_holds(maker, audit_says, tmp_path):
    audit_says(Verdict.NOT_RECOVERED)
    policy = LeakPolicy(maker, RATE, mode="block", out=tmp_path / "reports")
    (tmp_path / "reports").write_text("no folder")
    with pytest.warns(LeakWarning, match="could not be written"):
        found = checked(policy)
    assert found.is_blocked
    assert found.reason.startswith("error: the report of client a could not be written")
    assert list(policy.table) == [found]


def test_a_table_that_breaks_is_no_end_of_a_training(maker, audit_says, monkeypatch, tmp_path):
    audit_says(Verdict.NOT_RECOVERED)
    policy = LeakPolicy(maker, RATE, mode="report", out=tmp_path)
    monkeypatch.setattr(policy.table, "of_round", lambda *_: 1 / 0)
    assert not checked(policy).is_blocked


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "blok"), ("mode", None), ("out_of_range", "let go"), ("out_of_range", True),
        ("learning_rate", 0), ("learning_rate", -0.1), ("learning_rate", np.nan), ("learning_rate", "0.1"),
        ("n_steps", 0), ("n_steps", 1.5), ("n_steps", "all"), ("momentum", -1), ("momentum", np.inf),
        ("weight_decay", -0.1), ("optimizer", "smg"), ("optimizer", "SGD"), ("optimizer", None),
        ("batch_size", 0), ("batch_size", True), ("loss", "nonsense"), ("loss", 3), ("example", [1.0]),
        ("max_effort", 0), ("max_seconds", -1), ("max_seconds", "10"), ("n_jobs", 0), ("n_jobs", "all"),
        ("leaks", "RECOVERED"), ("leaks", ("everything",)), ("leaks", 3), ("leaks", Verdict.PARTLY),
    ],
)  # fmt: skip
def test_a_slip_is_refused_at_once_and_held_when_it_comes_later(maker, train, name, value):
    with pytest.raises(ValueError, match=name):
        LeakPolicy(**{"model": maker, "learning_rate": RATE, name: value})
    before, after = trained(maker, train)
    policy = LeakPolicy(maker, RATE, mode="block", n_steps=1, out_of_range="release")
    setattr(policy, name, value)
    found = checked(policy, before, after)
    assert found.is_blocked
    assert name in found.reason


def test_other_slips_are_refused(maker, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="out must be a folder"):
        LeakPolicy(maker, RATE, out=tmp_path / "file")
    with pytest.raises(ValueError, match="out must be a path"):
        LeakPolicy(maker, RATE, out=7)
    with pytest.raises(ValueError, match="n_steps is needed"):
        LeakPolicy(maker, RATE, weight_decay=0.1)
    with pytest.raises(TypeError, match="model must be"):
        LeakPolicy("resnet18", RATE)
    assert LeakPolicy(maker, RATE, optimizer="adamw", loss="mse", n_jobs=-1).max_effort is None


def test_a_fact_of_one_update_that_is_a_slip_holds(maker, train):
    update = trained(maker, train)
    policy = LeakPolicy(maker, RATE, mode="block", n_steps=1)
    for facts in ({"batch_size": "eight"}, {"batchsize": 8}, {"loss": "nonsense"}):
        found = policy.check(*update, client="a", server_round=1, **facts)
        assert found.finding is Finding.ERROR
        assert next(iter(facts)) in found.reason


def test_what_counts_as_a_leak_can_only_grow(maker, audit_says):
    for leaks in ((), LEAKS, [Verdict.OUT_OF_RANGE], ("OUT OF RANGE",)):
        policy = LeakPolicy(maker, RATE, mode="block", out_of_range="release", leaks=leaks)
        assert set(LEAKS) <= set(policy.leaks)
        for verdict in LEAKS:
            audit_says(verdict)
            assert checked(policy).is_blocked
        audit_says(Verdict.OUT_OF_RANGE)
        assert checked(policy).is_blocked == (Verdict.OUT_OF_RANGE in policy.leaks)
    audit_says(Verdict.NOT_RECOVERED)
    assert checked(LeakPolicy(maker, RATE, mode="block", leaks=list(Verdict))).is_blocked


@pytest.mark.parametrize(
    "garbage", [None, 3, "weights", {}, [], {"1.weight": "x"}, {"1.weight": None}, ["a"] * 6, [None] * 6, {1: 2}]
)
@pytest.mark.parametrize("mode", ["report", "block"])
def test_garbage_is_written_down(maker, train, garbage, mode, tmp_path):
    before, after = trained(maker, train)
    policy = LeakPolicy(maker, RATE, mode=mode, n_steps=1, out=tmp_path)
    for start, end in ((before, garbage), (before, after | {"1.weight": garbage})):
        found = checked(policy, start, end)
        assert found.finding is Finding.ERROR
        assert found.is_blocked == (mode == "block")
    assert "audit failed, error" in policy.table.to_table()


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.complex64, bool, object])
def test_numbers_of_another_kind_are_no_weights(maker, train, kind):
    before, after = trained(maker, train)
    after = {name: tensor.numpy().astype(kind) for name, tensor in after.items()}
    found = checked(LeakPolicy(maker, RATE, mode="block", n_steps=1, batch_size=8), before, after)
    assert found.finding is Finding.ERROR
    assert "'1.weight'" in found.reason


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), [("gradients", 0), ("difference", 0), ("difference", 4), ("weights", 0)])
def test_arrays_that_are_no_weights_are_looked_at_as_differences_too(maker, train, kind, seed):
    before, after = trained(maker, train, seed=seed)
    given = {name: after[name] - before[name] for name in after}
    given = {"gradients": {n: -t / RATE for n, t in given.items()}, "difference": given, "weights": after}[kind]
    found = checked(LeakPolicy(maker, RATE, mode="block", n_steps=1), before, given)
    assert found.result.verdict in (Verdict.RECOVERED, Verdict.PARTLY)
    assert found.result.best.n_certified == 8


@pytest.mark.parametrize("backend", [pytest.param("loky", marks=pytest.mark.slow), "threading"])
def test_updates_at_the_same_time_fail_one_by_one(maker, train, backend):
    before, after = trained(maker, train)
    policy = LeakPolicy(maker, RATE, mode="block", n_steps=1, n_jobs=2)
    updates = [("a", before, after, {}), ("b", before, None, {}), ("c", ValueError("torn"), after, {})]
    with parallel_config(backend):
        found = policy.check_all(updates, server_round=1)
    assert [one.finding for one in found] == [Finding.LEAK, Finding.ERROR, Finding.ERROR]
    assert all(one.is_blocked for one in found)


def test_an_interrupt_of_several_at_the_same_time(maker, audit_says):
    audit_says(KeyboardInterrupt())
    policy = LeakPolicy(maker, RATE, mode="block", n_jobs=2)
    with parallel_config("threading"), pytest.raises(KeyboardInterrupt):
        policy.check_all([("a", None, (), {})] * 3, server_round=1)
    assert all(one.is_blocked for one in policy.table)


def test_the_table_tells_records_apart_and_keeps_its_cells(maker, audit_says, tmp_path):
    audit_says(ValueError("a | b\nc \x1b[2J"))
    policy = LeakPolicy(maker, RATE, mode="block", out=tmp_path)
    for record in ("arrays", "more"):
        policy.check(None, (), client="x|y\n", server_round=1, record=record, not_looked_at=("metrics 'm'",))
    assert policy.table.to_table().splitlines()[2].count("|") == 3
    assert "arrays: audit failed, error, blocked" in policy.table.to_table()
    assert "more: audit failed, error, blocked" in policy.table.to_table()
    report = (tmp_path / "round-001" / "round.md").read_text()
    assert len(report.splitlines()) == 8
    assert "\x1b" not in report
    assert report.endswith("Not looked at: metrics 'm'.\n")
    assert len(list((tmp_path / "round-001").glob("client-*.txt"))) == 2


def test_a_policy_can_be_pickled(maker):
    assert pickle.loads(pickle.dumps(LeakPolicy(maker, RATE, out_of_range="release"))).out_of_range == "release"
