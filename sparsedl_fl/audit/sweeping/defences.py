"""Settings that a sweep tries: what a federation can turn, and the stock settings of the frameworks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sparsedl_fl.simulation import ExcludeVars, PercentilePrivacy, RandomK, SimulatedClient, SVTPrivacy

__all__ = ["STOCK", "Setting", "default_settings"]


@dataclass(frozen=True)
class Setting:
    """One point of a sweep.

    Attributes
    ----------
    defence : str
        The defence; settings of one defence are in a row, the weakest first.
    name : str
        Its strength, in words.
    client : SimulatedClient
        The client with it.
    """

    defence: str
    name: str
    client: SimulatedClient


def default_settings(batch_size: int = 16, *, most: int = 256) -> list[Setting]:
    """Return the usual ladder of each defence around a batch size.

    Parameters
    ----------
    batch_size : int, default=16
        Records of a client, but where the ladder is about that.
    most : int, default=256
        Largest batch that is tried; not more than there are records.
    """
    quarter, noisy = max(1, batch_size // 4), "noise per record, C = 1"
    trained, momentum = {"n_epochs": 1}, {"n_epochs": 5, "momentum": 0.9}
    adam = {"n_epochs": 1, "optimizer": "adam", "learning_rate": 1e-3}
    ladder: list[tuple[str, str, dict[str, Any]]] = [
        *(("batch size", str(b), {"batch_size": b}) for b in (1, 4, 16, 32, 64, 128, 256) if b <= most),
        *(("local epochs, rate 0.01", str(n), {"n_epochs": n}) for n in (1, 5, 20)),
        *(("local epochs, rate 0.1", str(n), {"n_epochs": n, "learning_rate": 0.1}) for n in (1, 5)),
        *(
            ("mini-batches, 1 epoch", f"of {quarter}, rate {x}", trained | {"mini_batch": quarter, "learning_rate": x})
            for x in (0.01, 0.1)
        ),
        ("optimiser", "SGD, momentum 0.9, 5 epochs", momentum),
        ("optimiser", "the same, weight decay 0.001", momentum | {"weight_decay": 1e-3}),
        ("optimiser", "Adam, 1 epoch, rate 0.001", adam),
        *(("number format", wire, {"wire": wire}) for wire in ("float16", "bfloat16", "int8", "int8 by row", "int4")),
        *(("sparsification", wire, {"wire": wire}) for wire in ("top half", "top tenth")),
        *(("random sparsification", f"{x:.0%} kept", {"update_filter": RandomK(x)}) for x in (0.5, 0.2, 0.1)),
        *(
            ("percentile filter, gamma 0.01", f"lowest {p}% zeroed", trained | {"update_filter": PercentilePrivacy(p)})
            for p in (10, 50, 80, 90)
        ),
        *(
            (noisy, f"sigma {sigma:g}", {"record_clipping": 1.0, "noise_multiplier": sigma})
            for sigma in (0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
        ),
        *(
            ("noise per client, C = 1", f"deviation {noise:g}", {"client_clipping": 1.0, "client_noise": noise})
            for noise in (1e-6, 1e-5, 1e-4, 1e-3)
        ),
        *(("clients in a secure sum", str(n), {"n_clients": n}) for n in (2, 4, 8) if n * batch_size <= most),
    ]
    plain = SimulatedClient(batch_size=batch_size)
    return [Setting(defence, name, replace(plain, **changes)) for defence, name, changes in ladder]


STOCK = [
    Setting("Flower LocalDpMod", "C = 1, deviation 0.001",
            SimulatedClient(n_epochs=1, client_clipping=1.0, client_noise=1e-3)),
    Setting("Flower clipping, fixed or adaptive", "C = 1", SimulatedClient(n_epochs=1, client_clipping=1.0)),
    Setting("Flower clipping, fixed or adaptive", "C = 0.001", SimulatedClient(n_epochs=1, client_clipping=1e-3)),
    Setting("Flower SecAgg+", "4 clients", SimulatedClient(n_epochs=1, n_clients=4)),
    Setting("NVFLARE PercentilePrivacy", "10 and 0.01", SimulatedClient(n_epochs=1, update_filter=PercentilePrivacy())),
    Setting("NVFLARE ExcludeVars", "biases", SimulatedClient(n_epochs=1, update_filter=ExcludeVars("bias"))),
    Setting("NVFLARE SVTPrivacy", "defaults", SimulatedClient(n_epochs=1, update_filter=SVTPrivacy())),
    Setting("NVFLARE quantiser", "float16", SimulatedClient(n_epochs=1, wire="float16")),
    Setting("NVFLARE quantiser", "bfloat16", SimulatedClient(n_epochs=1, wire="bfloat16")),
    Setting("NVFLARE quantiser", "int8", SimulatedClient(n_epochs=1, wire="int8")),
    Setting("NVFLARE quantiser", "int4", SimulatedClient(n_epochs=1, wire="int4")),
    Setting("FLIP noise", "C = 1, sigma 4.8e-5", SimulatedClient(n_epochs=1, client_clipping=1.0, client_noise=4.8e-5)),
    Setting("Opacus noise", "C = 1, sigma 1", SimulatedClient(record_clipping=1.0, noise_multiplier=1.0)),
]  # fmt: skip
"""Defences of frameworks with their default settings (looked up in November 2026)."""
