"""NVFLARE's own DXO, Shareable and context, in one process."""

import warnings

import numpy as np
import pytest
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContextManager
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy

from sparsedl_fl.audit import Verdict
from sparsedl_fl.federation import LeakPolicy, LeakWarning
from sparsedl_fl.federation.nvflare import GlobalModelFilter, LeakAuditFilter

RATE = 0.05
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


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


def test_other_kinds_and_failed_tasks_pass(maker, job):
    policy = LeakPolicy(maker, RATE, mode="block")
    metrics = DXO(DataKind.METRICS, data={"loss": 1.0}).to_shareable()
    assert from_shareable(LeakAuditFilter(policy).process(metrics, job[2])).data == {"loss": 1.0}
    failed = shareable(job[1])
    failed.set_header(ReservedKey.RC if hasattr(ReservedKey, "RC") else "__rc__", "EXECUTION_EXCEPTION")
    failed.set_return_code("EXECUTION_EXCEPTION")
    assert LeakAuditFilter(policy).process(failed, job[2]) is failed
    assert len(policy.table) == 0


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
