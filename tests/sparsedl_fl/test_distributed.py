"""Rounds of an inverter's starts on a real local cluster of two worker processes."""

import distributed
import numpy as np
import pytest
import torch
from joblib import parallel_config

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.simulation import client_gradient, fully_connected


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("has_next_layer", [True, False])
def test_dask_gives_the_serial_result(has_next_layer):
    model = fully_connected(100, width=450, n_hidden=2, random_state=0)
    batch = torch.randn(40, 100, generator=torch.Generator().manual_seed(0))
    given = LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(40) % 10))
    given = given if has_next_layer else LayerGradient(given.weight, given.bias, given.weight_grad, given.bias_grad)
    inverter = GradientInverter(random_state=0)
    serial = inverter.fit(given).inputs_
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        assert len(client.scheduler_info(n_workers=-1)["workers"]) == 2
        with parallel_config("dask", n_jobs=2):
            spread = inverter.fit(given).inputs_
    np.testing.assert_array_equal(spread, serial)
