"""Batches with more inputs than their features have dimensions: 64 patients with 13 numbers each.

The gradient of such a layer has the rank of the inputs, not that of the batch, and the columns of ``D`` do not lie in
its column space: the papers' searches and our own need ``b <= n``. But the next layer's gradient spans the activations,
which are independent: ``phi(W x + bias)`` of a true input lies in a space of ``b`` dimensions out of ``m``. That makes
``m - b`` equations for the few numbers that an input is made of; the fewer features, the more inputs come back.

- `problem`: when a batch is crowded, and what is known of it.
- `columns`: the next layer's column of an input found takes one dimension from the span, so that the others show.
- `search`: starts, descents and deflation, until all are there.
- `assembly`: from inputs to a batch with its certificate.
"""

from sparsedl_fl.crowded.assembly import crowded_batch
from sparsedl_fl.crowded.problem import CrowdedProblem
from sparsedl_fl.crowded.search import CrowdedSearch, Found

__all__ = ["CrowdedProblem", "CrowdedSearch", "Found", "crowded_batch"]
