"""Every array record of every reply in Flower is looked at, and what is garbage harms nobody else."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common import Code, FitRes, Parameters, Status, ndarrays_to_parameters
from flwr.server.strategy import FedAvg as OldFedAvg
from flwr.serverapp.strategy import FedAvg

from sparsedl_fl.audit import Verdict
from sparsedl_fl.federation import Finding, LeakPolicy
from sparsedl_fl.federation.flower import LeakAuditMod, LeakAuditStrategy

RATE = 0.05
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::sparsedl_fl.federation.LeakWarning"),
    pytest.mark.usefixtures("flower_task"),
]
CONTEXT = Context(run_id=1, node_id=5, node_config={}, state=RecordDict(), run_config={})
METRICS = MetricRecord({"num-examples": 8, "loss": 1.0})
EXTRA = ArrayRecord({"control": Array(np.zeros(3))})


def arrays_of(model):
    return ArrayRecord(model.state_dict())


def message(model, kind="train", **records):
    return Message(RecordDict({"arrays": arrays_of(model)} | records), dst_node_id=5, message_type=kind)


@pytest.fixture
def trained(maker, train):
    model = maker()
    train(model)
    return arrays_of(model)


def sent_back(policy, asked, **records):
    """Return what leaves of a reply with these records."""
    return LeakAuditMod(policy)(asked, CONTEXT, lambda asked, _: Message(RecordDict(records), reply_to=asked))


def test_a_second_record_that_leaks_holds_the_reply(maker, trained, monkeypatch):
    """The first one is the model as it came: green by what is told here."""
    from sparsedl_fl.federation import outcome

    check = outcome.check_update
    green = type("Green", (), {"verdict": Verdict.NOT_RECOVERED, "is_complete": True, "is_interrupted": False,
                               "context": {}, "reason": "", "best": None})()  # fmt: skip
    monkeypatch.setattr(
        outcome,
        "check_update",
        lambda model, before, after, **options: (
            green if np.array_equal(before["1.weight"], after["1.weight"]) else check(model, before, after, **options)
        ),
    )
    policy = LeakPolicy(maker, RATE, mode="block", n_steps=1)
    start = arrays_of(maker())
    reply = sent_back(policy, message(maker()), arrays=start, more=trained, metrics=METRICS)
    assert reply.has_error()
    assert "array record 'more': RECOVERED" in reply.error.reason
    assert [one.record for one in policy.table] == ["arrays", "more"]
    assert [one.is_blocked for one in policy.table] == [False, True]
    assert not sent_back(policy, message(maker()), arrays=start, metrics=METRICS).has_error()


@pytest.mark.parametrize("mode", ["report", "block"])
def test_arrays_that_do_not_fit_are_named_and_held(maker, trained, audit_says, mode):
    calls = audit_says(Verdict.NOT_RECOVERED)
    policy = LeakPolicy(maker, RATE, mode=mode)
    reply = sent_back(policy, message(maker()), variates=EXTRA, arrays=trained)
    assert len(calls) == 2  # the check itself finds what does not fit
    assert [one.record for one in policy.table] == ["arrays", "variates"]
    assert not reply.has_error()


@pytest.mark.parametrize("mode", ["report", "block"])
@pytest.mark.parametrize("out_of_range", ["hold", "release"])
def test_arrays_that_do_not_fit_are_held_by_their_name(maker, mode, out_of_range):
    policy = LeakPolicy(maker, RATE, mode=mode, optimizer="adam", out_of_range=out_of_range)
    reply = sent_back(policy, message(maker()), variates=EXTRA, arrays=arrays_of(maker()))
    assert [one.finding for one in policy.table] == [Finding.OUT_OF_RANGE, Finding.ERROR]
    assert reply.has_error() == (mode == "block")
    if mode == "block":
        assert "array record 'variates': error: the audit failed: ValueError: after" in reply.error.reason
        assert "'control'" in reply.error.reason


def test_an_empty_record_beside_another_holds_nothing_and_alone_is_told(maker, trained, audit_says):
    audit_says(Verdict.NOT_RECOVERED)
    policy = LeakPolicy(maker, RATE, mode="block")
    assert not sent_back(policy, message(maker()), arrays=trained, nothing=ArrayRecord()).has_error()
    assert len(policy.table) == 1


@pytest.mark.parametrize("records", [{"arrays": ArrayRecord()}, {"metrics": METRICS}, {}])
def test_a_training_without_arrays_is_held(maker, records):
    policy = LeakPolicy(maker, RATE, mode="block", n_steps=1, out_of_range="release")
    reply = sent_back(policy, message(maker()), **records)
    assert reply.has_error()
    assert "holds no arrays" in reply.error.reason


@pytest.mark.parametrize("kind", ["evaluate", "query", "train.local", "query.weights"])
def test_arrays_in_replies_of_every_kind_are_looked_at(maker, trained, kind):
    policy = LeakPolicy(maker, RATE, mode="block", n_steps=1)
    assert not sent_back(policy, message(maker(), "evaluate"), metrics=METRICS).has_error()
    assert len(policy.table) == 0
    reply = sent_back(policy, message(maker(), kind), arrays=trained, metrics=METRICS)
    assert "RECOVERED" in reply.error.reason
    asked = Message(RecordDict(), dst_node_id=5, message_type=kind)
    assert "before holds no arrays" in sent_back(policy, asked, arrays=trained).error.reason


def test_what_is_not_looked_at_is_named(maker, trained):
    policy = LeakPolicy(maker, RATE, mode="report", n_steps=1)
    sent_back(policy, message(maker()), arrays=trained, metrics=METRICS, notes=ConfigRecord({"key": b"bytes"}))
    assert policy.table.audits[0].not_looked_at == ("metrics 'metrics'", "config 'notes'")
    assert "Not looked at: metrics 'metrics', config 'notes'." in policy.table.of_round(0)


def test_a_round_that_is_no_number_is_no_matter(maker, trained):
    policy = LeakPolicy(maker, RATE, mode="report", n_steps=1)
    sent_back(policy, message(maker(), config=ConfigRecord({"round": "first"})), arrays=trained)
    assert policy.table.audits[0].server_round == 0


def test_arrays_by_number_are_in_the_order_of_the_numbers(maker, trained):
    weights = list(trained.to_torch_state_dict().values())
    record = ArrayRecord({str(k): Array(weights[k].numpy()) for k in reversed(range(len(weights)))})
    policy = LeakPolicy(maker, RATE, mode="report", n_steps=1)
    sent_back(policy, message(maker()), arrays=record)
    assert policy.table.audits[0].result.verdict is Verdict.RECOVERED


def test_an_interrupt_ends_the_client_and_nothing_leaves(maker, trained, audit_says):
    audit_says(Verdict.NOT_RECOVERED, is_interrupted=True, is_complete=False)
    policy = LeakPolicy(maker, RATE, mode="block")
    with pytest.raises(KeyboardInterrupt):
        sent_back(policy, message(maker()), arrays=trained)
    assert policy.table.audits[0].is_blocked


def garbage():
    """Return what a client may send in the place of weights."""
    torn = ArrayRecord({"1.weight": Array(dtype="float32", shape=(100, 64), stype="numpy.ndarray", data=b"torn")})
    text = ArrayRecord({"1.weight": Array(np.array(["a"]))})
    return [
        RecordDict(),
        RecordDict({"arrays": ArrayRecord()}),
        RecordDict({"arrays": torn, "metrics": METRICS}),
        RecordDict({"arrays": text, "metrics": METRICS}),
        RecordDict({"arrays": EXTRA, "metrics": METRICS}),
    ]


@pytest.mark.parametrize("mode", ["report", "block"])
def test_the_strategy_writes_garbage_down_and_takes_the_others(maker, trained, monkeypatch, mode):
    class Inside(FedAvg):
        taken = None

        def aggregate_train(self, server_round, replies):
            self.taken = list(replies)
            return None, None

    from sparsedl_fl.federation import outcome

    asked = message(maker())
    good = Message(RecordDict({"arrays": trained, "metrics": METRICS}), reply_to=asked)
    bad = [Message(content, reply_to=asked) for content in garbage()]
    nan = {name: tensor * np.nan for name, tensor in trained.to_torch_state_dict().items()}
    ints = {name: tensor.to(torch.int64) for name, tensor in trained.to_torch_state_dict().items()}
    bad += [Message(RecordDict({"arrays": ArrayRecord(state)}), reply_to=asked) for state in (nan, ints)]
    failed = Message(Error(1, "out of memory"), reply_to=asked)
    inside, policy = Inside(), LeakPolicy(maker, RATE, mode=mode, n_steps=1, optimizer="sgd")
    strategy = LeakAuditStrategy(inside, policy)
    monkeypatch.setattr(outcome, "_not_finite", lambda result: "")
    monkeypatch.setattr(policy, "_is_held", lambda finding: finding is Finding.ERROR)  # the good one shall leave
    strategy._sent = {1: maker().state_dict()}
    strategy.aggregate_train(1, [*bad, good, failed])
    assert inside.taken == ([*bad, good, failed] if mode == "report" else [good, failed])
    assert [one.finding for one in policy.table] == [Finding.ERROR] * len(bad) + [Finding.LEAK]


@pytest.mark.parametrize("mode", ["report", "block"])
def test_the_api_with_parameters_too(maker, trained, mode):
    class Inside(OldFedAvg):
        taken = None

        def aggregate_fit(self, server_round, results, failures):
            self.taken = [client.cid for client, _ in results]
            return None, {}

    class Proxy:
        def __init__(self, cid):
            self.cid = cid

    good = [tensor.numpy() for tensor in trained.to_torch_state_dict().values()]
    sets = {
        "torn": Parameters([b"torn"], "numpy.ndarray"),
        "empty": Parameters([], "numpy.ndarray"),
        "none": None,
        "few": ndarrays_to_parameters(good[:2]),
        "words": ndarrays_to_parameters([np.array(["a"])] * len(good)),
        "shapes": ndarrays_to_parameters([array.T for array in good]),
        "nan": ndarrays_to_parameters([array * np.nan for array in good]),
        "leaky": ndarrays_to_parameters(good),
    }
    inside, policy = Inside(), LeakPolicy(maker, RATE, mode=mode, n_steps=1)
    strategy = LeakAuditStrategy(inside, policy)
    strategy._sent = {1: [tensor.numpy() for tensor in maker().state_dict().values()]}
    strategy.aggregate_fit(
        1, [(Proxy(cid), FitRes(Status(Code.OK, ""), part, 8, {})) for cid, part in sets.items()], []
    )
    assert inside.taken == (list(sets) if mode == "report" else [])
    assert [one.client for one in policy.table if one.finding is Finding.ERROR] == list(sets)[:-1]


@pytest.mark.parametrize("api", ["train", "fit"])
@pytest.mark.parametrize("verdict", [Verdict.OUT_OF_RANGE, Verdict.NOT_RECOVERED, Verdict.PARTLY])
def test_a_secure_sum_is_held_likewise(maker, trained, audit_says, api, verdict):
    audit_says(verdict)
    summed = trained if api == "train" else Parameters([b"torn"], "numpy.ndarray")
    inside = type("Inside", (), {f"aggregate_{api}": lambda self, *_: (summed, "metrics")})()
    policy = LeakPolicy(maker, RATE, mode="block")
    strategy = LeakAuditStrategy(inside, policy, secure_sum=True)
    strategy._sent = {1: maker().state_dict()}
    arguments = ([],) if api == "train" else ([], [])
    found = getattr(strategy, f"aggregate_{api}")(1, *arguments)
    is_held = api == "fit" or verdict is not Verdict.NOT_RECOVERED
    assert found == ((None, "metrics") if is_held else (summed, "metrics"))
    getattr(strategy, f"aggregate_{api}")(2, *arguments)
    assert "nothing was sent out by this strategy in round 2" in policy.table.audits[-1].reason
    assert policy.table.audits[-1].is_blocked
