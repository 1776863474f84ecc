"""The server: any strategy, wrapped in the audit."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from leak_audit_app.task import make_model
from sparsedl_fl.federation import LeakPolicy
from sparsedl_fl.federation.flower import LeakAuditStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and write a report for each client and round."""
    config = context.run_config
    policy = LeakPolicy(
        make_model, learning_rate=float(config["learning-rate"]), n_steps=1, mode="report", out=str(config["reports"])
    )
    strategy = LeakAuditStrategy(FedAvg(fraction_evaluate=0.0, min_available_nodes=2, min_train_nodes=2), policy)
    strategy.start(grid, ArrayRecord(make_model().state_dict()), num_rounds=int(config["num-server-rounds"]))
    print(strategy.table.to_table())
