"""NVFLARE's own DXO, Shareable and context, in one process."""

import warnings

import numpy as np
import pytest
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy

from sparsedl_fl.audit import Verdict
from sparsedl_fl.federation import Finding, LeakPolicy, LeakWarning
from sparsedl_fl.federation.nvflare import GlobalModelFilter, LeakAuditFilter

RATE = 0.05
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::sparsedl_fl.federation.LeakWarning"),
]


def shareable(weights, kind=DataKind.WEIGHTS):
    return DXO(kind, data={name: np.array(tensor) for name, tensor in weights.items()}).to_shareable()


@pytest.fixture
def job(maker, train):
    """Return the weights sent, those that come back, and a context."""
    model = maker()
    sent = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train(model)
    manager = FLContextManager(
        engine=None, identity_name="site-1", job_id="job", public_stickers={}, private_stickers={}
    )
    return sent, model.state_dict(), manager.new_context()


def results(job, policy, kind, *filters):
    sent, after, context = job
    GlobalModelFilter().process(shareable(sent), context)
    if kind == DataKind.WEIGHT_DIFF:
        after = {name: after[name] - sent[name] for name in after}
    found = shareable(after, kind)
    found.set_header("current_round", 2)
    for one in (*filters, LeakAuditFilter(policy)):
        found = one.process(found, context)
    return from_shareable(found)


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
@pytest.mark.parametrize("mode", ["report", "block"])
def test_results_are_audited_and_emptied(maker, job, kind, mode):
    policy = LeakPolicy(maker, RATE, mode=mode, n_steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)
        dxo = results(job, policy, kind)
    (checked,) = policy.table
    assert checked.result.verdict is Verdict.RECOVERED
    assert (checked.client, checked.server_round) == ("site-1", 2)
    assert (len(dxo.data) == 0) == (mode == "block")
    assert dxo.get_meta_prop("leak_audit").startswith("RECOVERED")


def test_behind_another_filter_it_sees_what_leaves(maker, job):
    policy = LeakPolicy(maker, RATE, mode="report", n_steps=1, batch_size=8, max_seconds=2)
    results(job, policy, DataKind.WEIGHT_DIFF, PercentilePrivacy(percentile=10, gamma=1e-4))
    assert policy.table.audits[0].result.verdict is not Verdict.RECOVERED


def test_an_error_inside_fails_closed_where_it_blocks(maker, job):
    def broken():
        raise RuntimeError("gone")

    for mode in ("report", "block"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeakWarning)
            dxo = results(job, LeakPolicy(broken, RATE, mode=mode), DataKind.WEIGHTS)
        assert (len(dxo.data) == 0) == (mode == "block")


def test_single_numbers_and_failed_tasks_pass(maker, job):
    policy = LeakPolicy(maker, RATE, mode="block")
    metrics = DXO(DataKind.METRICS, data={"loss": 1.0, "by class": {"a": np.float32(2)}, "names": ["a"]})
    found = from_shareable(LeakAuditFilter(policy).process(metrics.to_shareable(), job[2]))
    assert found.data["loss"] == 1.0
    assert found.get_meta_prop("leak_audit") == "not looked at: METRICS, single numbers and words"
    failed = Shareable()
    failed.set_return_code("EXECUTION_EXCEPTION")
    assert LeakAuditFilter(policy).process(failed, job[2]) is failed
    assert len(policy.table) == 0


KINDS = {
    "array in metrics": lambda weights: DXO(DataKind.METRICS, data={"gradient": weights["1.weight"]}),
    "list in metrics": lambda weights: DXO(DataKind.METRICS, data={"all": {"gradient": [0.1, 0.2]}}),
    "bytes": lambda weights: DXO(DataKind.ANALYTIC, data={"packed": b"weights"}),
    "model": lambda weights: DXO(DataKind.FL_MODEL, data={"params": weights}),
    "own": lambda weights: DXO(DataKind.APP_DEFINED, data=list(weights.values())),
    "strange": lambda weights: DXO("OTHER", data=weights),
    "no part": lambda weights: DXO(DataKind.COLLECTION, data={"a": weights}),
    "nested": lambda weights: DXO(DataKind.COLLECTION, data={"a": DXO(DataKind.STATISTICS, data=weights)}),
}


@pytest.mark.parametrize("mode", ["report", "block"])
@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_other_kinds_are_written_down_and_held(maker, job, kind, mode):
    policy = LeakPolicy(maker, RATE, mode=mode, out_of_range="release")
    weights = {name: tensor.numpy() for name, tensor in job[1].items()}
    sent = KINDS[kind](weights).to_shareable()
    found = LeakAuditFilter(policy).process(sent, job[2])
    (checked,) = policy.table
    assert checked.finding is Finding.ERROR
    assert checked.is_blocked == (mode == "block")
    dxo = from_shareable(found)
    left = dxo.data["a"].data if kind == "nested" else dxo.data
    assert bool(left) == (mode == "report")


@pytest.mark.parametrize("mode", ["report", "block"])
def test_weights_in_collections_are_audited(maker, job, mode):
    sent, after, context = job
    inner = DXO(DataKind.WEIGHTS, data={name: tensor.numpy() for name, tensor in after.items()})
    policy = LeakPolicy(maker, RATE, mode=mode, n_steps=1)
    GlobalModelFilter().process(shareable(sent), context)
    nested = DXO(DataKind.COLLECTION, data={"body": DXO(DataKind.COLLECTION, data={"linear": inner})})
    found = from_shareable(LeakAuditFilter(policy).process(nested.to_shareable(), context))
    (checked,) = policy.table
    assert (checked.record, checked.result.verdict) == ("body.linear", Verdict.RECOVERED)
    assert bool(found.data["body"].data["linear"].data) == (mode == "report")


@pytest.mark.parametrize("mode", ["report", "block"])
@pytest.mark.parametrize("place", ["meta", "result"])
def test_arrays_beside_the_data_are_held(maker, job, audit_says, place, mode):
    audit_says(Verdict.NOT_RECOVERED)
    sent, after, context = job
    policy = LeakPolicy(maker, RATE, mode=mode)
    GlobalModelFilter().process(shareable(sent), context)
    found = shareable(after)
    if place == "meta":
        found["DXO"]["meta"] = {"quant_state": {"absmax": np.ones(3)}, "steps": 1}
    else:
        found["gradients"], found["note"] = list(after.values()), "text"
    found = LeakAuditFilter(policy).process(found, context)
    assert len(from_shareable(found).data) == len(after)
    assert ("gradients" in found or "quant_state" in found["DXO"]["meta"]) == (mode == "report")
    assert found["DXO"]["meta"].get("steps", 1) == 1
    assert [one.finding for one in policy.table] == [Finding.ERROR, Finding.CLEAR]


def test_weights_of_a_failed_task_are_audited_too(maker, job):
    sent, after, context = job
    policy = LeakPolicy(maker, RATE, mode="block", n_steps=1)
    GlobalModelFilter().process(shareable(sent), context)
    failed = shareable(after)
    failed.set_return_code("EXECUTION_EXCEPTION")
    assert from_shareable(LeakAuditFilter(policy).process(failed, context)).data == {}


def test_what_is_no_dxo_is_emptied(maker, job):
    policy = LeakPolicy(maker, RATE, mode="block")
    plain = Shareable()
    plain["weights"] = list(job[1].values())
    assert list(LeakAuditFilter(policy).process(plain, job[2])) == ["__headers__"]
    torn = Shareable()
    torn["DXO"], torn["more"] = {"data": 3}, "text"
    assert from_shareable(LeakAuditFilter(policy).process(torn, job[2])).data == {}
    assert "more" not in torn
    assert all(one.is_blocked for one in policy.table)
    assert len(policy.table) == 2


@pytest.mark.parametrize("data", [{}, {"1.weight": "text"}, {"1.weight": None}, {"other": np.ones(3)}])
def test_garbage_is_written_down(maker, job, data):
    for mode in ("report", "block"):
        policy = LeakPolicy(maker, RATE, mode=mode, n_steps=1)
        GlobalModelFilter().process(shareable(job[0]), job[2])
        found = LeakAuditFilter(policy).process(DXO(DataKind.WEIGHTS, data=dict(data)).to_shareable(), job[2])
        (checked,) = policy.table
        assert checked.finding is Finding.ERROR
        assert from_shareable(found).data == (data if mode == "report" else {})


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError(), MemoryError()])
def test_whatever_is_raised_inside_empties_the_result(maker, job, monkeypatch, error):
    policy = LeakPolicy(maker, RATE, mode="block", n_steps=1)
    part, sent = LeakAuditFilter(policy), shareable(job[1])

    def broken(*arguments):
        raise error

    monkeypatch.setattr(part, "_audit", broken)
    if isinstance(error, Exception):
        part.process(sent, job[2])
        assert policy.table.audits[0].is_blocked
    else:
        with pytest.raises(KeyboardInterrupt):
            part.process(sent, job[2])
    assert from_shareable(sent).data == {}
    dxo = DXO(DataKind.WEIGHTS, data={"1.weight": np.ones(3)})
    with pytest.raises(type(error)):
        part.process_dxo(dxo, sent, job[2])
    assert dxo.data == {}


def test_a_policy_that_breaks_empties_the_result(maker, job, monkeypatch):
    policy, sent = LeakPolicy(maker, RATE, mode="block"), shareable(job[1])
    monkeypatch.setattr(policy, "check", lambda *_, **__: 1 / 0)
    assert from_shareable(LeakAuditFilter(policy).process(sent, job[2])).data == {}


def test_an_interrupt_of_the_audit_empties_the_result(maker, job, audit_says):
    audit_says(Verdict.NOT_RECOVERED, is_interrupted=True, is_complete=False)
    policy, sent = LeakPolicy(maker, RATE, mode="block"), shareable(job[1])
    GlobalModelFilter().process(shareable(job[0]), job[2])
    with pytest.raises(KeyboardInterrupt):
        LeakAuditFilter(policy).process(sent, job[2])
    assert from_shareable(sent).data == {}
    assert policy.table.audits[0].finding is Finding.INTERRUPTED


def test_without_the_weights_that_were_sent_nothing_is_concluded(maker, job, audit_says):
    audit_says(Verdict.NOT_RECOVERED)
    policy = LeakPolicy(maker, RATE, mode="block")
    assert from_shareable(LeakAuditFilter(policy).process(shareable(job[1]), job[2])).data == {}
    assert "put a GlobalModelFilter into task_data_filters" in policy.table.audits[0].reason
    itself = LeakPolicy(maker(), RATE, mode="block")
    assert from_shareable(LeakAuditFilter(itself).process(shareable(job[1]), job[2])).data
    GlobalModelFilter().process(shareable(job[0]), job[2])
    GlobalModelFilter().process(DXO(DataKind.METRICS, data={"loss": 1.0}).to_shareable(), job[2])  # of another task
    assert from_shareable(LeakAuditFilter(policy).process(shareable(job[1]), job[2])).data == {}


def test_the_policy_of_a_job_is_named_by_its_path(job, tmp_path):
    file = tmp_path / "policies.py"
    file.write_text(
        "from sparsedl_fl.audit import example\nfrom sparsedl_fl.federation import LeakPolicy\n"
        "policy = LeakPolicy(example.model, 0.05, mode='report', n_steps=1)\nother = 3\n"
        "def make():\n    policy.mode = 'block'\n    return policy\n"
    )
    for name, is_emptied in (("policy", False), ("make", True)):
        part = LeakAuditFilter(f"{file}:{name}")
        assert part.policy == f"{file}:{name}"  # a job is written down by its components' arguments
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeakWarning)
            assert (not results(job, f"{file}:{name}", DataKind.WEIGHTS).data) == is_emptied
    with pytest.raises(TypeError, match="policy must be a LeakPolicy"):
        LeakAuditFilter(f"{file}:other")
