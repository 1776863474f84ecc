"""A hospital's network on small colour pictures: what a client sends behind a percentile filter.

The pictures are patches of the two photographs that ship with scikit-learn. `write` puts the weights that the client
was given and the gradient that it sends into a folder: python examples/playbook/hospital.py FOLDER N_RECORDS [NOISE]
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from sparsedl_fl.demo import natural_patches
from sparsedl_fl.simulation import client_gradient, percentile_clip


def model():
    """Return the network that the federation trains."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 4)
    )


def write(folder, n_records, noise=0.0):
    """Write weights and update: NVFLARE's PercentilePrivacy with its defaults, then noise of a deviation."""
    torch.manual_seed(0)
    network = model()
    patches, mean, std = natural_patches(n_records, random_state=0)
    records = torch.tensor((patches - mean) / std, dtype=torch.float32).permute(0, 3, 1, 2)
    gradient = client_gradient(network, records, torch.arange(n_records) % 4)
    sent = {name: percentile_clip(tensor, 10.0, 0.01) for name, tensor in gradient.items()}
    sent = {name: tensor + noise * torch.randn_like(tensor) for name, tensor in sent.items()}
    save_file(network.state_dict(), Path(folder, "before.safetensors"))
    save_file(sent, Path(folder, "update.safetensors"))


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:]))
