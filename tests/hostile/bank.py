"""The bank: kinds of networks x clients x wires, each audited as an ordinary user would, and judged by the truth.

    python -m tests.hostile.bank [--only WORD ...] [--seed 0] [--jobs 1] [--out bank.md]

Every network is audited with one honest step sent as it is, with `N_CLIENTS` other clients, and with `N_WIRES` other
wires; which of them, goes round, so that each client and each wire meets many networks. Results are kept as JSON lines
beside the table, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from joblib import Parallel, delayed

from sparsedl_fl.audit import AuditResult, audit_model
from tests.hostile.clients import CLIENTS, Sent
from tests.hostile.judge import Judgement, judged
from tests.hostile.networks import NETWORKS, Network
from tests.hostile.tables import written
from tests.hostile.wires import WIRES

__all__ = ["Case", "cases", "run_case"]

PLAIN_CLIENT, PLAIN_WIRE = "one step", "gradient"

N_CLIENTS, N_WIRES = 4, 4

EXTRA = (
    ("perceptron", "beyond half", "int8"),
    ("perceptron", "several steps", "float16 weights"),
    ("dropout", "several steps", "gradient"),
    ("LeNet", "beyond half", "float32 weights"),
    ("VGG, dropout", "one record", "int8"),
    ("transformer", "padding", "gradient"),
    ("transformer", "padding", "float16 weights"),
    ("transformer", "Adam", "gradient"),
    ("BERT", "padding", "gradient"),
    ("BERT", "padding", "small noise"),
    ("LSTM", "padding", "top tenth"),
    ("LSTM", "beyond half", "gradient"),
    ("regression", "one record", "gradient"),
    ("logistic regression", "one record", "gradient"),
    ("logistic regression", "one record", "float32 weights"),
    ("group norm, pooling", "beyond half", "gradient"),
    ("zero head", "one class", "gradient"),
    ("zero head", "one class", "float32 weights"),
    ("BERT", "one class", "top tenth"),
)  # fmt: skip
"""Cases that have to be there whatever the others are."""


@dataclass(frozen=True)
class Case:
    """One update of a federation.

    Attributes
    ----------
    network, client, wire : str
        Kinds, by their names in `NETWORKS`, `CLIENTS` and `WIRES`.
    seed : int, default=0
        Of weights, records and noise; others make relatives.
    """

    network: str
    client: str
    wire: str
    seed: int = 0

    @property
    def name(self) -> str:
        """All three."""
        return f"{self.network} / {self.client} / {self.wire}"

    def made(self) -> tuple[torch.nn.Module, Sent]:
        """Return the model that the server sent out and what arrives there, drawn from the case's name and seed."""
        network, wire = NETWORKS[self.network], WIRES[self.wire]
        rng = np.random.default_rng(self.seed + crc32(self.name.encode()))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + crc32(self.network.encode()))
            model = network.build().train(network.training)
            wire.prepare(model)
            sent = CLIENTS[self.client].run(network, model, rng)
        parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}
        gradients = wire.change(sent.gradients, parameters, rng)
        return model, Sent(gradients, sent.learning_rate, sent.example, sent.truth)

    def audit(self, **options: Any) -> tuple[AuditResult, Judgement]:
        """Audit as an ordinary user would, and hold the result against the truth."""
        network, (model, sent) = NETWORKS[self.network], self.made()
        told = {"example": sent.example, "loss": network.told, "learning_rate": sent.learning_rate}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = audit_model(model, sent.gradients, **{**told, **options})
            return result, judged(result, sent.truth, _table(network, sent))


def _table(network: Network, sent: Sent) -> torch.Tensor | None:
    """Return what arrived of the embedding that the token ids index; of one that is the head too, nothing is plain."""
    return sent.gradients.get(f"{network.table}.weight") if network.table and not network.is_tied else None


def cases(seed: int = 0) -> list[Case]:
    """Return all cases, by network."""
    found: dict[Case, None] = {}
    clients, wires = cycle(CLIENTS), cycle(WIRES)
    for name, network in NETWORKS.items():
        suited = [client for client in CLIENTS if client != PLAIN_CLIENT and CLIENTS[client].suits(network)]
        found[Case(name, PLAIN_CLIENT, PLAIN_WIRE, seed)] = None
        for client in islice((client for client in clients if client in suited), N_CLIENTS):
            found[Case(name, client, PLAIN_WIRE, seed)] = None
        for wire in islice((wire for wire in wires if wire != PLAIN_WIRE), N_WIRES):
            found[Case(name, PLAIN_CLIENT, wire, seed)] = None
    found |= dict.fromkeys(Case(*parts, seed) for parts in EXTRA)
    return sorted(found, key=lambda case: list(NETWORKS).index(case.network))


def run_case(case: Case) -> dict[str, Any]:
    """Return the judgement of a case as plain data, with what was raised and the seconds of processor time."""
    start = time.process_time()
    record: dict[str, Any] = {**asdict(case), "refusal": "", "traceback": ""}
    try:
        record |= asdict(case.audit()[1])
    except (TypeError, ValueError) as error:
        record |= asdict(Judgement(verdict="refused")) | {"refusal": f"{error}", "where": traceback.format_exc()}
    except Exception:
        record |= asdict(Judgement(verdict="raised")) | {"traceback": traceback.format_exc()}
    return record | {"seconds": round(time.process_time() - start, 1)}


def _known(path: Path) -> dict[Case, dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return {_case_of(record): record for record in found}


def _case_of(record: dict[str, Any]) -> Case:
    return Case(record["network"], record["client"], record["wire"], record["seed"])


def _records(wanted: Sequence[Case], path: Path, n_jobs: int) -> Iterator[dict[str, Any]]:
    """Yield the records of cases in their order, those that are kept first looked up, then made and kept."""
    known = _known(path)
    missing = [case for case in wanted if case not in known]
    made = Parallel(n_jobs=n_jobs, return_as="generator")(delayed(run_case)(case) for case in missing)
    for case, record in zip(missing, made, strict=True):
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        known[case] = record
        print(f"{case.name}: {record['verdict']}, {record['seconds']:.1f} s", flush=True)
    for case in wanted:
        yield known[case]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bank; return 1 if anything in it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.bank", description="Audit the bank of updates.")
    parser.add_argument("--only", nargs="+", metavar="WORD", default=[], help="cases whose name has all of these")
    parser.add_argument("--seed", type=int, default=0, help="of weights, records and noise (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("bank.md"), help="where the table goes; results are kept "
                        "beside it, with the ending .jsonl, and not made again (default: bank.md)")  # fmt: skip
    options = parser.parse_args(arguments)
    wanted = [case for case in cases(options.seed) if all(word.lower() in case.name.lower() for word in options.only)]
    records = list(_records(wanted, options.out.with_suffix(".jsonl"), options.jobs))
    text, is_right = written(records)
    options.out.write_text(text, encoding="utf-8")
    print(text)
    return int(not is_right)


if __name__ == "__main__":
    raise SystemExit(main())
