"""How large a batch comes back from one layer, and with the next layer's gradient: one JSON line a batch.

    python examples/paper/frontier.py --data cifar10.npz --views one --sizes 50x200 60x200 --batches 20 --out results

Runs resume: a batch whose line is in the file is not run again. Data: .npz with bytes ``x`` (n, 32, 32, 3) and ``y``.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.directions import ActivationDirections
from sparsedl_fl.metrics import psnr
from sparsedl_fl.simulation import client_gradient, fully_connected

MEAN, STD = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])


def run(data, batch_size, width, seed, views, max_seconds):
    """Attack one random batch; network, batch and search are drawn from the seed."""
    index = np.random.default_rng(seed).choice(len(data["x"]), batch_size, replace=False)
    pixels = data["x"][index] / 255.0
    inputs = torch.tensor((pixels - MEAN) / STD, dtype=torch.float32).flatten(1)
    model = fully_connected(inputs.shape[1], width=width, random_state=seed)
    gradient = client_gradient(model, inputs, torch.tensor(data["y"][index]))
    given = LayerGradient.from_model(model, gradient)
    search = ActivationDirections(use_next_layer=views == "next", max_seconds=max_seconds)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        inverter = GradientInverter(search, random_state=seed).fit(given)
    seconds = time.perf_counter() - start
    recovered = inverter.inputs_.reshape(-1, 32, 32, 3) * STD + MEAN
    quality = psnr(pixels.reshape(batch_size, -1), recovered.reshape(len(recovered), -1))
    return {
        "batch_size": batch_size,
        "width": width,
        "seed": seed,
        "views": views,
        "exact": bool(quality.mean() > 90),
        "mean_psnr": round(float(quality.mean()), 1),
        "worst_psnr": round(float(quality.min()), 1),
        "certified": int(inverter.recovered_.sum()),
        "matching": inverter.sparsity_matching_,
        "residual": inverter.relative_residual_,
        "starts": inverter.n_starts_,
        "successes": inverter.n_successes_,
        "seconds": round(seconds, 2),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--views", choices=["one", "next"], default="one")
    parser.add_argument("--sizes", nargs="+", default=["50x200"], help="batch size x width")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--max-seconds", type=float, default=300)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--out", default="results")
    options = parser.parse_args(arguments)
    with np.load(options.data, allow_pickle=False) as archive:
        data = {name: archive[name] for name in ("x", "y")}
    path = Path(options.out) / f"frontier_{options.views}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(line["batch_size"], line["width"], line["seed"]) for line in lines}
    for size in options.sizes:
        batch_size, width = map(int, size.split("x"))
        for seed in range(options.first_seed, options.first_seed + options.batches):
            if (batch_size, width, seed) not in done:
                line = run(data, batch_size, width, seed, options.views, options.max_seconds)
                with path.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(line, flush=True)


if __name__ == "__main__":
    main()
