"""What clients and server share: the model, the data, and local training."""

import torch
from sklearn.datasets import load_digits
from torch import nn


def make_model():
    """Return a classifier of 8 x 8 digits."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)
    )


def load_records(partition, batch_size):
    """Return the records of one client."""
    digits = load_digits()
    part = slice(partition * batch_size, (partition + 1) * batch_size)
    inputs = torch.tensor(digits.images[part, None] / 16, dtype=torch.float32)
    return inputs, torch.tensor(digits.target[part])


def train(model, inputs, labels, learning_rate):
    """Take one local step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return float(loss)
