"""Findings: what batch size, local steps, quantisation and noise do against these attacks.

Three clients on real data, each swept over the usual settings, ten batches a point: photographs behind a fully
connected network (CIFAR-10), rows of a census (Adult, one-hot), photographs behind a small ResNet, whose features and
labels leak from the last layer. Records are kept, so that the same command goes on after an interruption, and an audit
that is on file is not run again.

    python examples/findings.py --data DATA --out examples/results/findings
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from torch import nn

from paper.data import load_adult, load_images
from paper.models.vision import resnet
from sparsedl_fl.audit import audit_model, default_settings, sweep
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.simulation import client_gradient, fully_connected
from sparsedl_fl.tabular import decode_table


@dataclass(frozen=True)
class Client:
    """A model with its data."""

    title: str
    model: nn.Module
    inputs: torch.Tensor
    labels: torch.Tensor
    encoder: object = None
    table: object = None


def photographs(data: Path, n: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return CIFAR-10, normalised, with its labels."""
    images = load_images("cifar10", str(data))
    x, y = images.pictures[:n], images.labels[:n]
    x = (x / 255.0 - [0.4914, 0.4822, 0.4465]) / [0.2470, 0.2435, 0.2616]
    return torch.tensor(x, dtype=torch.float32).permute(0, 3, 1, 2).contiguous(), torch.tensor(y)


def cifar10(data: Path, small: bool) -> Client:
    """Return photographs behind two hidden layers of 400 units."""
    inputs, labels = photographs(data, 200 if small else None)
    model = fully_connected(3072, width=100 if small else 400, n_hidden=2, random_state=0)
    return Client("CIFAR-10, 3072-400-400-10, ReLU, random weights", model, inputs.flatten(1), labels)


def adult(data: Path, small: bool) -> Client:
    """Return rows of a census behind two hidden layers of 400 units."""
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    table, labels = load_adult(str(data))
    numbers = table.select_dtypes("number").columns.tolist()
    categories = [name for name in table if name not in numbers]
    encoder = ColumnTransformer(
        [("numbers", StandardScaler(), numbers), ("categories", OneHotEncoder(), categories)], sparse_threshold=0
    )
    inputs = torch.tensor(encoder.fit_transform(table), dtype=torch.float32)
    model = fully_connected(inputs.shape[1], width=100 if small else 400, n_hidden=2, n_classes=2, random_state=0)
    title = f"Adult, one-hot, {inputs.shape[1]}-400-400-2, ReLU, random weights"
    return Client(title, model, inputs[:2500], torch.tensor(labels[:2500]), encoder, table[:2500])


def features(data: Path, small: bool) -> Client:
    """Return photographs behind a ResNet with 100 classes, in evaluation mode."""
    inputs, labels = photographs(data, 200 if small else None)
    generator = torch.Generator().manual_seed(0)
    labels = labels * 10 + torch.randint(10, labels.shape, generator=generator)  # ten kinds of each class
    model = resnet(n_classes=100, random_state=0).eval()
    return Client("CIFAR-10 behind a small ResNet, 100 classes: features and labels", model, inputs, labels)


CLIENTS = {"cifar10": cifar10, "adult": adult, "features": features}


def categories_right(client: Client, batch_size: int, n_batches: int) -> tuple[float, float]:
    """Return the share of rows certified, and of the categories that decode to what they were."""
    names = [name for name in client.table if client.table[name].dtype.kind not in "if"]
    found, right = 0, []
    for seed in range(n_batches):
        rows = torch.randperm(len(client.inputs), generator=torch.Generator().manual_seed(seed))[:batch_size]
        x, y = client.inputs[rows], client.labels[rows]
        best = audit_model(client.model, client_gradient(client.model, x, y)).best
        if best is None or best.what != "inputs of the model":
            continue
        order = match_batches(x, best.batch.inputs).order
        certified = best.batch.certified[order] & (order >= 0)
        found += int(certified.sum())
        decoded = decode_table(client.encoder, best.batch.inputs[order[certified]])
        true = client.table.iloc[rows.numpy()[certified]]
        right += [np.mean(decoded[name].astype(str) == true[name].astype(str)) for name in names if certified.any()]
    return found / (batch_size * n_batches), float(np.mean(right)) if right else float("nan")


def main(arguments: list[str] | None = None) -> None:
    """Run the sweeps, and write a table and a picture of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clients", nargs="*", default=list(CLIENTS), help=f"which: {', '.join(CLIENTS)} (default: all)")
    parser.add_argument("--data", type=Path, required=True, help="folder with cifar10.npz and adult*.csv.gz")
    parser.add_argument("--out", type=Path, default=Path("findings"))
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--small", action="store_true", help="small networks and a few settings")
    options = parser.parse_args(arguments)
    matplotlib.use("Agg")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.clients:
        client = CLIENTS[name](options.data, options.small)
        settings = default_settings(8 if options.small else 16, most=200 if options.small else 256)
        if options.small:
            settings = [one for one in settings if one.defence in ("number format", "optimiser")]
        found = sweep(
            client.model,
            client.inputs,
            client.labels,
            settings=settings,
            n_batches=1 if options.small else options.batches,
            max_seconds=1 if options.small else 4,
            n_rounds=0 if options.small or name == "features" else 30,  # a ResNet takes too long to train here
            out=options.out / f"{name}.jsonl",
        )
        text = (
            f"# {client.title}\n\n{found.to_table()}\nCertified and wrong: {sum(row.n_wrong for row in found.rows)}.\n"
        )
        if client.encoder is not None:
            sizes = (4,) if options.small else (4, 16, 32, 48)
            decoded = {b: categories_right(client, b, 1 if options.small else options.batches) for b in sizes}
            text += "\n" + "\n".join(
                f"Batch of {b}: {share:.0%} of the rows certified, {right:.1%} of their categories as they were."
                for b, (share, right) in decoded.items()
            ) + "\n"  # fmt: skip
        (options.out / f"{name}.md").write_text(text, encoding="utf-8")
        found.plot().figure.savefig(options.out / f"{name}.png", dpi=100)
        (options.out / f"{name}.json").write_text(json.dumps(found.to_dict(), indent=1) + "\n", encoding="utf-8")
        print(text)


if __name__ == "__main__":
    main()
