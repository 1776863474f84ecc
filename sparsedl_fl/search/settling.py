"""The final fits of a search: of samples to all constraints, and of their columns to zeros."""

from __future__ import annotations

import torch

from sparsedl.arrays import as_tensor
from sparsedl.linalg import normalized
from sparsedl_fl.search.exchanged_columns import exchange_columns
from sparsedl_fl.search.state import SearchState

__all__ = ["settle"]


def settle(state: SearchState, generator: torch.Generator) -> None:
    """Fit each sample found by itself and, where the network tail is known, the whole batch at once."""
    knowledge, input_zeros = state.knowledge, state.numerics.input_zeros
    is_whole = knowledge.n_found == knowledge.inputs.shape[1]
    if knowledge.trusts_downstream and is_whole:  # hardly any column has zeros enough, and they would blur it
        knowledge.repeat_downstream()
        return
    if state.sent_back is not None and is_whole:
        exchange_columns(knowledge, state.sent_back)
    if not state.is_flat:
        knowledge.inputs = state.fits.fitted(knowledge.inputs)
    elif input_zeros is not None and input_zeros.settle(state.problem.zeros_of_inputs, knowledge):
        return
    elif state.is_exact and is_whole:
        state.fits.fit_inputs_of_columns(knowledge)
    if not state.is_flat and state.tail is not None and state.is_exact and knowledge.has_all_inputs:
        _fit_together(state, generator)
    knowledge.settle()


def _fit_together(state: SearchState, generator: torch.Generator) -> None:
    """Fit a whole batch at once, and estimate its errors by draws of the noise."""
    knowledge, joint_refinement, left = (
        state.knowledge,
        state.numerics.joint_refinement,
        as_tensor(state.problem.factors.left),
    )
    inputs = state.fits.at_scale(knowledge.inputs)
    together = joint_refinement.together(state.natural, state.last, state.tail, left, inputs)
    if not state.last.at(state.fits.preactivations(together.inputs)).is_inside.all():
        return
    knowledge.inputs = normalized(together.inputs, dim=1)
    # Of a head few rows hold nearly all of the noise: draws of a common size were up to 20 times too small.
    changes = None if state.is_head else joint_refinement.errors(together, generator)
    if changes is not None:
        squares = (changes * knowledge.coordinates.sizes).square().sum(dim=2).mean(dim=0)
        state.errors = (squares / state.problem.layer_gradient.shape[1]).sqrt()
