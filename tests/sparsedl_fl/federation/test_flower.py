"""Flower's own objects in one process: ClientApp, mods, strategies of both APIs, and a grid that runs the clients."""

import pickle
import warnings
from copy import deepcopy

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.server.strategy import FedAvg as OldFedAvg
from flwr.serverapp.strategy import FedAvg

from sparsedl_fl.audit import Verdict
from sparsedl_fl.federation import LeakPolicy, LeakWarning
from sparsedl_fl.federation.flower import LeakAuditMod, LeakAuditStrategy

RATE = 0.05
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("flower_task")]


def client_app(maker, train, mods=()):
    app = ClientApp(mods=list(mods))

    @app.train()
    def run(message, context):
        model = maker()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(model, seed=context.node_id)
        metrics = MetricRecord({"num-examples": 8, "loss": 1.0})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def look(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 8, "loss": 1.0})}), reply_to=message)

    return app


class Grid:
    """Runs every message on its client at once."""

    def __init__(self, app, nodes=(1, 2)):
        self.app, self.nodes = app, list(nodes)

    def get_node_ids(self):
        return self.nodes

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            context = Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
            replies.append(self.app(message, context))
        return replies


def message_of(model, kind="train"):
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "config": ConfigRecord({"server-round": 4})})
    return Message(content, dst_node_id=5, message_type=kind)


def context():
    return Context(run_id=1, node_id=5, node_config={}, state=RecordDict(), run_config={})


@pytest.mark.parametrize("mode", ["report", "warn", "block"])
def test_the_mod_audits_what_leaves(maker, train, mode):
    policy = LeakPolicy(maker, RATE, mode=mode, n_steps=1)
    app = client_app(maker, train, [LeakAuditMod(policy)])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        reply = app(message_of(maker()), context())
    checked = policy.table.audits[0]
    assert checked.result.verdict is Verdict.RECOVERED
    assert (checked.client, checked.server_round) == ("5", 4)
    assert reply.has_error() == (mode == "block")
    if mode == "block":
        assert "blocked by the leak audit" in reply.error.reason
    assert any(issubclass(w.category, LeakWarning) for w in said) == (mode != "report")


def test_messages_that_are_not_for_training_pass(maker, train):
    policy = LeakPolicy(maker, RATE, mode="block", n_steps=1)
    reply = client_app(maker, train, [LeakAuditMod(policy)])(message_of(maker(), "evaluate"), context())
    assert not reply.has_error()
    assert len(policy.table) == 0


def test_weights_that_were_not_sent_do_not_leave_unseen(maker, train):
    """The server sends its wishes alone, and the client has a model of its own."""
    policy = LeakPolicy(maker, RATE, mode="block", n_steps=1)
    message = Message(RecordDict({"config": ConfigRecord({"server-round": 1})}), dst_node_id=5, message_type="train")

    def next_one(message, context):
        model = maker()
        train(model)
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)

    with pytest.warns(LeakWarning, match="blocked"):
        reply = LeakAuditMod(policy)(message, context(), next_one)
    assert reply.has_error()


def test_outermost_it_sees_the_noise_and_inside_it_says_so(maker, train):
    noise = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    outer = LeakPolicy(maker, RATE, mode="report", n_steps=1, batch_size=8, max_seconds=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LeakWarning)
        client_app(maker, train, [LeakAuditMod(outer), noise])(message_of(maker()), context())
    assert outer.table.audits[0].result.verdict is not Verdict.RECOVERED
    inner = LeakPolicy(maker, RATE, mode="report", n_steps=1)
    with pytest.warns(LeakWarning, match="not the outermost mod: LocalDpMod"):
        client_app(maker, train, [noise, LeakAuditMod(inner)])(message_of(maker()), context())
    assert inner.table.audits[0].result.verdict is Verdict.RECOVERED


@pytest.mark.parametrize("mode", ["report", "block"])
def test_an_error_inside_does_not_break_a_training(maker, train, mode):
    def broken():
        raise RuntimeError("gone")

    mod = LeakAuditMod(LeakPolicy(broken, RATE, mode=mode))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)
        reply = client_app(maker, train, [mod])(message_of(maker()), context())
    assert reply.has_error() == (mode == "block")


def test_other_arrays_may_travel_with_the_model(maker, train):
    policy = LeakPolicy(maker, RATE, mode="report", n_steps=1)

    def next_one(message, context):
        model = maker()
        train(model)
        extra = ArrayRecord({"control": __import__("flwr").app.Array(np.zeros(3))})
        content = RecordDict({"variates": extra, "arrays": ArrayRecord(model.state_dict())})
        return Message(content, reply_to=message)

    LeakAuditMod(policy)(message_of(maker()), context(), next_one)
    assert policy.table.audits[0].result.verdict is Verdict.RECOVERED


def test_the_strategy_audits_every_client_in_every_round(maker, train, tmp_path):
    policy = LeakPolicy(maker, RATE, mode="report", n_steps=1, out=tmp_path)
    strategy = LeakAuditStrategy(FedAvg(min_available_nodes=2, min_train_nodes=2, min_evaluate_nodes=2), policy)
    result = strategy.start(Grid(client_app(maker, train)), ArrayRecord(maker().state_dict()), num_rounds=2)
    assert {(c.client, c.server_round) for c in strategy.table} == {("1", 1), ("2", 1), ("1", 2), ("2", 2)}
    assert all(checked.result.verdict is Verdict.RECOVERED for checked in strategy.table)
    assert result.arrays is not None
    assert (tmp_path / "round-002" / "client-1.html").is_file()
    assert "| 2 | RECOVERED" in (tmp_path / "rounds.md").read_text()


def test_the_strategy_leaves_out_what_it_blocks(maker, train):
    policy = LeakPolicy(maker, RATE, mode="block", n_steps=1)
    strategy = LeakAuditStrategy(FedAvg(min_available_nodes=2, min_train_nodes=2, min_evaluate_nodes=2), policy)
    start = ArrayRecord(maker().state_dict())
    grid = Grid(client_app(maker, train))
    messages = strategy.configure_train(1, start, ConfigRecord(), grid)
    with pytest.warns(LeakWarning, match="blocked"):
        arrays, _ = strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert arrays is None


def test_a_secure_sum_is_audited_as_one_batch(maker, train):
    policy = LeakPolicy(maker, RATE, mode="report", n_steps=1)
    inside = FedAvg(min_available_nodes=2, min_train_nodes=2, min_evaluate_nodes=2)
    strategy = LeakAuditStrategy(inside, policy, secure_sum=True)
    strategy.start(Grid(client_app(maker, train)), ArrayRecord(maker().state_dict()), num_rounds=1)
    (checked,) = strategy.table
    assert checked.client == "all clients"
    assert checked.result.batch_size == 16
    assert checked.result.verdict is Verdict.RECOVERED


class Proxy:
    def __init__(self, cid):
        self.cid = cid


@pytest.mark.parametrize("secure_sum", [False, True])
def test_the_api_with_parameters(maker, train, secure_sum):
    policy = LeakPolicy(maker, RATE, mode="report", n_steps=1)
    strategy = LeakAuditStrategy(OldFedAvg(), policy, secure_sum=secure_sum)
    start = ndarrays_to_parameters([tensor.numpy() for tensor in maker().state_dict().values()])

    class Manager:
        def num_available(self):
            return 2

        def sample(self, **_):
            return [Proxy("a"), Proxy("b")]

    sent = strategy.configure_fit(1, start, Manager())
    results = []
    for number, (proxy, _) in enumerate(sent):
        model = maker()
        train(model, seed=number)
        weights = ndarrays_to_parameters([tensor.numpy() for tensor in model.state_dict().values()])
        results.append((proxy, FitRes(Status(Code.OK, ""), weights, 8, {})))
    found, _ = strategy.aggregate_fit(1, results, [])
    assert found is not None
    names = [checked.client for checked in strategy.table]
    assert names == (["all clients"] if secure_sum else ["a", "b"])
    assert all(checked.result.verdict is Verdict.RECOVERED for checked in strategy.table)


class Secure:
    """Three clients and a server that talk as SecAgg+ has it, with Flower's own workflow and mod."""

    def __init__(self, maker, train, mods, rate):
        from flwr.client import NumPyClient
        from flwr.client.mod import secaggplus_mod

        class Client(NumPyClient):
            def __init__(self, seed):
                self.seed = seed

            def fit(self, parameters, config):
                model = maker()
                model.load_state_dict(dict(zip(model.state_dict(), map(torch.as_tensor, parameters), strict=True)))
                train(model, seed=self.seed, optimizer=torch.optim.SGD(model.parameters(), lr=rate))
                return [tensor.numpy() for tensor in model.state_dict().values()], 8, {}

        known = {"masking": secaggplus_mod}
        self.app = ClientApp(
            client_fn=lambda where: Client(where.node_id).to_client(), mods=[known.get(mod, mod) for mod in mods]
        )
        self.contexts = {
            node: Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
            for node in (1, 2, 3)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        return [self.app(deepcopy(message), self.contexts[message.metadata.dst_node_id]) for message in messages]

    def run(self, strategy, start):
        from flwr.compat.common import recorddict_compat
        from flwr.server import LegacyContext, ServerConfig
        from flwr.server.client_manager import SimpleClientManager
        from flwr.server.compat.grid_client_proxy import GridClientProxy
        from flwr.server.workflow import SecAggPlusWorkflow
        from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

        manager = SimpleClientManager()
        for node in self.contexts:
            manager.register(GridClientProxy(node, self, 1))
        inside = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
        server = LegacyContext(inside, config=ServerConfig(num_rounds=1), strategy=strategy, client_manager=manager)
        server.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
        arrays = ndarrays_to_parameters([tensor.numpy() for tensor in start.state_dict().values()])
        server.state.array_records[MAIN_PARAMS_RECORD] = recorddict_compat.parameters_to_arrayrecord(arrays, True)
        SecAggPlusWorkflow(3, 2, max_weight=8)(self, server)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["outside", "inside"])
def test_secure_aggregation_with_flowers_own_protocol(maker, train, place):
    rate = 5.0  # the protocol rounds weights to multiples of 4e-6: with small steps that hides what they say
    policy = LeakPolicy(maker, rate, mode="report", n_steps=1)
    audit = LeakAuditMod(policy)
    network = Secure(maker, train, [audit, "masking"] if place == "outside" else ["masking", audit], rate)
    server = LeakPolicy(maker, rate, mode="report", n_steps=1)
    inside = OldFedAvg(fraction_fit=1.0, min_fit_clients=3, min_available_clients=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)
        network.run(LeakAuditStrategy(inside, server, secure_sum=True), maker())
    (checked,) = server.table
    assert (checked.client, checked.result.batch_size) == ("all clients", 24)
    assert checked.result.verdict in (Verdict.RECOVERED, Verdict.PARTLY)
    assert len(policy.table) == 3  # messages about keys are no updates
    if place == "outside":
        assert all("secure aggregation masks them" in one.error for one in policy.table)
    else:
        assert all(one.result.verdict is Verdict.RECOVERED for one in policy.table)


def test_what_is_no_policy_is_refused():
    with pytest.raises(TypeError, match="policy must be a LeakPolicy"):
        LeakAuditMod("block")


def test_what_the_strategy_inside_knows_is_there(maker):
    strategy = LeakAuditStrategy(FedAvg(fraction_train=0.25), LeakPolicy(maker, RATE))
    assert strategy.fraction_train == 0.25
    strategy.summary()
    assert torch.is_tensor(pickle.loads(pickle.dumps(torch.ones(1))))
