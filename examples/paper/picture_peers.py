"""Pictures behind convolutions, attacked by peers and by us: the same weights, batch and float32 gradient."""

from __future__ import annotations

import base64
import time
import warnings
import zlib
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from paper.data import load_images
from paper.experiments import Experiment
from paper.methods import Budget
from paper.peers import PEERS, Update, peer_version
from paper.pictures import PictureBatch
from sparsedl_fl.audit import audit_model
from sparsedl_fl.metrics import match_batches, psnr
from sparsedl_fl.simulation import client_gradient

__all__ = ["PEER_ROWS", "PeerBatch", "packed", "unpacked"]

SHOWN_UP_TO = 8
"""Larger batches do not keep their pictures in the record."""


@dataclass(frozen=True)
class PeerBatch(PictureBatch):
    """A batch of `PictureBatch`, untrained and in single precision, for peers (see `paper.peers`) and for us."""

    metrics: ClassVar[tuple[str, ...]] = ("psnr", "worst", "right")

    def run(self, method: str, seed: int, data: str | None, budget: Budget) -> dict[str, Any]:
        """Attack the batch of a seed; exact is every picture above ``exact_above``, certified or not.

        ``psnr`` is that of each picture, on the scale [0, 1] after matching, 0 where none was found, and ``worst`` the
        smallest; ``right`` is the share above ``exact_above``; a peer that does not take the network has none of them.
        ``seconds`` are those of the processor.
        """
        images = load_images(self.dataset, data)
        pixels, classes = images.draw(self.batch_size, seed)
        inputs, labels = self._fed(images, pixels), torch.from_numpy(classes)
        model = self._model(images, seed, tuple(inputs.shape[1:]))
        gradients = client_gradient(model, inputs, labels)
        start = time.process_time()
        if method in PEERS:
            update = Update(
                model=model,
                gradients=gradients,
                labels=labels,
                shape=tuple(inputs.shape[1:]),
                dataset=images.dataset,
            )
            found, said = _by_peer(method, update, budget.steps, seed)
        elif method == "activation":
            found, said = _by_audit(model, gradients, inputs[:1])
        else:
            raise ValueError(f"pictures are attacked by activation and {' and '.join(PEERS)}, not by {method!r}")
        record = {"exact": False, "psnr": [], "starts": 0, "seconds": round(time.process_time() - start, 3), **said}
        if found is None:
            return record
        true = images.denormalize(inputs.flatten(1).numpy())
        recovered = images.denormalize(found)
        quality = self.quality(true, recovered)
        pictures = {"true": packed(true), "found": packed(_in_order(true, recovered))}
        return {
            **record,
            "exact": bool((quality > self.exact_above).all()),
            "psnr": [round(float(value), 2) for value in quality],
            "worst": round(float(quality.min()), 2),
            "right": float((quality > self.exact_above).mean()),
            **(pictures if self.batch_size <= SHOWN_UP_TO else {}),
        }

    @staticmethod
    def quality(true: np.ndarray, recovered: np.ndarray) -> np.ndarray:
        """Return the PSNR of each true picture in dB, 0 where none was found."""
        return np.maximum(psnr(true, recovered), 0.0) if len(recovered) else np.zeros(len(true))


def packed(pictures: np.ndarray) -> str:
    """Return pictures in [0, 1], of shape (n, values), as text: bytes, compressed."""
    return base64.b64encode(zlib.compress(np.round(255 * np.clip(pictures, 0, 1)).astype(np.uint8).tobytes())).decode()


def unpacked(text: str, n: int) -> np.ndarray:
    """Return the ``n`` pictures of `packed`, of shape (n, values)."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8).reshape(n, -1) / 255


def _by_audit(model: nn.Module, gradients: Any, example: torch.Tensor) -> tuple[np.ndarray, dict[str, Any]]:
    """Return what our audit finds, of shape (n_found, values), and what it says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        audit = audit_model(model, gradients, example=example, pictures=True)
    row = next(layer for layer in audit.layers if layer.row is not None and layer.row.kind == "Conv2d")
    found = np.empty((0, example.numel())) if row.batch is None else row.batch.inputs
    return found, {"certified": row.n_certified, "status": f"{audit.reason}; {row.reason}"}


def _by_peer(method: str, update: Update, n_steps: int, seed: int) -> tuple[np.ndarray | None, dict[str, Any]]:
    """Return what a peer finds, of shape (n_found, values), and with which release; None where it failed, and how."""
    try:
        found = PEERS[method](update, n_steps, seed).flatten(1).double().numpy()
    except (IndexError, RuntimeError, TypeError, UnboundLocalError) as failure:  # networks that it does not take
        return None, {"status": f"failed: {type(failure).__name__}: {failure}", "peer": peer_version()}
    return found, {"status": "finished", "peer": peer_version()}


def _in_order(true: np.ndarray, recovered: np.ndarray) -> np.ndarray:
    """Return the recovered pictures in the order of the true ones, zeros where there is none."""
    ordered = np.zeros_like(true)
    if len(recovered):
        order = match_batches(true, recovered).order
        ordered[order >= 0] = recovered[order[order >= 0]]
    return ordered


PEER_ROWS: dict[str, Experiment] = {
    **{f"mnist-{b}": PeerBatch(b, 512) for b in (1, 8, 32)},
    **{f"mnist-{b}-chain": PeerBatch(b, 10, network="chain") for b in (1, 8)},
}
"""Of the table of peers: McMahan's network, and the chain of convolutions that R-GAP is made for."""
