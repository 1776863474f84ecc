"""Rounds of starts on a real local cluster of two worker processes."""

import distributed
import numpy as np
import pytest
from joblib import parallel_config

from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_dask_gives_the_serial_result():
    X, _, _ = make_sparse_dictionary(300, 40, sparsity=0.6, random_state=0)
    sdr = SparseDictionaryRecovery(n_starts=384, random_state=0)
    serial = sdr.fit(X).components_
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        assert len(client.scheduler_info(n_workers=-1)["workers"]) == 2
        with parallel_config("dask", n_jobs=2):
            spread = sdr.fit(X).components_
    np.testing.assert_array_equal(spread, serial)
