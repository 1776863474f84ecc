"""One step of an adaptive optimiser: an audit of the weights after it."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn.functional import cross_entropy

from paper.audited import compared
from paper.data import load_images
from paper.experiments import Experiment
from paper.methods import Budget
from sparsedl_fl import GradientInverter
from sparsedl_fl.audit.first_step import audit_first_step
from sparsedl_fl.simulation import fully_connected

__all__ = ["FIRST_STEP_ROWS", "FirstStepBatch"]

OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


@dataclass(frozen=True)
class FirstStepBatch(Experiment):
    """MNIST behind two hidden layers, after one step; the batch size is not given.

    Attributes
    ----------
    optimizer : str
        A name in `OPTIMIZERS`, with PyTorch's constants; "adamw" has a weight decay of 0.01.
    learning_rate : float
        Of the client.
    """

    metrics: ClassVar[tuple[str, ...]] = ("psnr", "share", "error_ratio")
    optimizer: str = "adam"
    learning_rate: float = 1e-3

    def run(self, method: str, seed: int, data: str | None, budget: Budget) -> dict[str, Any]:
        """Audit the step of a seed; exact is every record certified, or likely at 0.9 and more.

        ``share`` is that of records certified; ``error_ratio`` is true over expected error of these.
        """
        images = load_images("mnist", data)
        pixels, classes = images.draw(self.batch_size, seed)
        inputs, labels = images.normalize(pixels), torch.from_numpy(classes)
        model = fully_connected(inputs.shape[1], width=self.width, n_hidden=2, random_state=seed)
        before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        decay = 0.01 if self.optimizer == "adamw" else 0.0
        steps = OPTIMIZERS[self.optimizer](model.parameters(), lr=self.learning_rate, weight_decay=decay)
        cross_entropy(model(inputs), labels).backward()
        steps.step()
        after = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(before)
        client = {"learning_rate": self.learning_rate, "optimizer": self.optimizer, "weight_decay": decay}
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            audit = audit_first_step(
                model, after, **client, inverter=GradientInverter(random_state=0), example=inputs[:1]
            )
        record = {"starts": 0, "seconds": round(time.perf_counter() - start, 3), "status": audit.reason}
        likely = [sample for sample in audit["0"].likely if sample.correlation >= 0.9]
        record |= compared(audit["0"].samples, inputs, images)
        return record | {"exact": self.batch_size in (record["certified"], len(likely))}


FIRST_STEP_ROWS: dict[str, Experiment] = {
    **{f"8x200-adam-{rate:g}": FirstStepBatch(8, 200, learning_rate=rate) for rate in (1e-2, 1e-3, 3e-4, 1e-4)},
    "8x200-adamw-0.001": FirstStepBatch(8, 200, optimizer="adamw"),
    "8x200-rmsprop-0.01": FirstStepBatch(8, 200, optimizer="rmsprop", learning_rate=0.01),
    "8x200-adagrad-0.01": FirstStepBatch(8, 200, optimizer="adagrad", learning_rate=0.01),
    "16x200-adam-0.001": FirstStepBatch(16, 200),
}
"""Of the table of first steps: batch and width, optimiser and learning rate."""
