"""Run the job in NVFLARE's simulator: two sites, three rounds.

python run.py --reports reports
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def main(arguments=None):
    """Build the job, run it, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reports", type=Path, default=Path("reports"), help="where reports go (default: reports)")
    options = parser.parse_args(arguments)
    # The sites are processes of their own: they find the task and the folder here.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    os.environ["LEAK_REPORTS"] = str(options.reports.resolve())
    sys.path.insert(0, str(HERE))
    from leak_audit_task import FedAvgOfModel, OneStep
    from nvflare.job_config.api import FedJob
    from nvflare.job_config.defs import FilterType

    from sparsedl_fl.federation.nvflare import GlobalModelFilter, LeakAuditFilter

    job = FedJob(name="leak_audit")
    job.to_server(FedAvgOfModel(num_clients=2, num_rounds=3, persistor_id=""))
    for site in ("site-1", "site-2"):
        job.to(OneStep(), site, tasks=["train"])
        job.to(GlobalModelFilter(), site, tasks=["train"], filter_type=FilterType.TASK_DATA)
        job.to(
            LeakAuditFilter("leak_audit_task:make_policy"), site, tasks=["train"], filter_type=FilterType.TASK_RESULT
        )
    job.simulator_run(tempfile.mkdtemp(), threads=2)
    for path in sorted(options.reports.glob("round-*/*.json")):
        report = json.loads(path.read_text())
        print(f"{path.parent.name}, {path.stem}: {report['verdict']}: {report['reason']}")


if __name__ == "__main__":
    main()
