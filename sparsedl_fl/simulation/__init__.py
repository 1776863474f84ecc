"""Clients to audit, and transforms of their gradients before the server gets them.

- `client_gradient` (FedSGD), `fedavg_update`, `dp_sgd_gradient` and `opacus_gradient` are clients.
- `SimulatedClient` holds all settings of a client in one object.
- `ExcludeVars`, `PercentilePrivacy`, `SVTPrivacy` and `RandomK` are filters of a whole update (`UpdateFilter`).
- `quantize`, `sparsify`, `percentile_clip` and `sign`, and `WIRES` by name, are the transforms.
"""

from sparsedl_fl.simulation.clients import (
    client_gradient,
    dp_sgd_gradient,
    fedavg_update,
    fully_connected,
    opacus_gradient,
)
from sparsedl_fl.simulation.simulated import SimulatedClient, SimulatedUpdate
from sparsedl_fl.simulation.update_filters import (
    ExcludeVars,
    PercentilePrivacy,
    RandomK,
    SVTPrivacy,
    UpdateFilter,
)
from sparsedl_fl.simulation.wire import WIRES, percentile_clip, quantize, sign, sparsify

__all__ = [
    "WIRES",
    "ExcludeVars",
    "PercentilePrivacy",
    "RandomK",
    "SVTPrivacy",
    "SimulatedClient",
    "SimulatedUpdate",
    "UpdateFilter",
    "client_gradient",
    "dp_sgd_gradient",
    "fedavg_update",
    "fully_connected",
    "opacus_gradient",
    "percentile_clip",
    "quantize",
    "sign",
    "sparsify",
]
