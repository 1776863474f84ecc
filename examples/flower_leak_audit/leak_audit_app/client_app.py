"""The client: one line, the mod, audits what leaves."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from leak_audit_app.task import load_records, make_model, train
from sparsedl_fl.federation import LeakPolicy
from sparsedl_fl.federation.flower import LeakAuditMod

# Outermost: first in the list. mode="block" would keep a leaking update at home.
app = ClientApp(mods=[LeakAuditMod(LeakPolicy(make_model, learning_rate=0.05, n_steps=1, mode="warn"))])


@app.train()
def train_on_own_records(message: Message, context: Context) -> Message:
    """Train the model that the server sent on this client's records."""
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    config = context.run_config
    inputs, labels = load_records(int(context.node_config["partition-id"]), int(config["batch-size"]))
    loss = train(model, inputs, labels, float(config["learning-rate"]))
    metrics = MetricRecord({"num-examples": len(inputs), "loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
