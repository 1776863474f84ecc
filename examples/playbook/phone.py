"""A phone's convolutional network on handwritten digits, those of scikit-learn.

`write` puts the weights that the phone was given and the gradient that it sends into a folder:
python examples/playbook/phone.py FOLDER N_RECORDS
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from sparsedl_fl.audit.example import convolutional, records
from sparsedl_fl.simulation import client_gradient

model = convolutional
"""Two convolutions, then linear layers with 100 and 10 outputs."""


def write(folder, n_records):
    """Write weights and update."""
    torch.manual_seed(0)
    network = model()
    inputs, labels = records()
    sent = client_gradient(network, inputs[:n_records], labels[:n_records])
    save_file(network.state_dict(), Path(folder, "before.safetensors"))
    save_file(sent, Path(folder, "update.safetensors"))


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]))
