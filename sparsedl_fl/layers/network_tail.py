"""The network tail: everything between a layer's outputs and the loss, as the server knows it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from copy import copy, deepcopy
from typing import Any

import torch
from torch import nn

from sparsedl.linalg import normalized
from sparsedl.process import neutral_modes
from sparsedl_fl.layers.losses import LOSSES, Loss, total_loss
from sparsedl_fl.layers.smoothed_tail import Smoothing

__all__ = ["RestOfNetwork", "double_copy"]


def double_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a module on the CPU in double precision, without an intermediate copy in its own precision."""
    copies: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        if type(tensor) not in (nn.Parameter, torch.Tensor) or not tensor.is_floating_point() or not tensor.is_leaf:
            continue
        own = tensor.detach().to("cpu", torch.float64, copy=True)
        is_parameter = isinstance(tensor, nn.Parameter)
        copies[id(tensor)] = nn.Parameter(own, requires_grad=tensor.requires_grad) if is_parameter else own
    return deepcopy(module, copies).cpu().double()


class RestOfNetwork:
    """The network tail of a layer: a module from its outputs to the model's, and the loss.

    It does not mix inputs, so that the gradient at the layer's outputs is a function of one input and its label.

    Parameters
    ----------
    module : torch.nn.Module
        Takes outputs ``z`` of the layer, of shape (n, m), to those of the model, of shape (n, n_outputs), in evaluation
        mode. It is copied.
    loss : {"cross_entropy", "binary_cross_entropy", "mse"} or callable, default=None
        ``loss(outputs, labels)`` of tensors of shape (n, n_outputs) and (n,) of int, a sum or a mean over the inputs,
        as torch's modules are. None is cross-entropy, the binary one for a single output.

    Raises
    ------
    TypeError
        If the module is no module, or the loss no loss.
    ValueError
        If the loss has no such name, or the module mixes inputs or returns anything but one row an input.
    """

    @neutral_modes(gradients=True)
    def __init__(self, module: nn.Module, loss: str | Loss | None = None) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
        if isinstance(loss, str) and loss not in LOSSES:
            raise ValueError(f"loss must be one of {sorted(LOSSES)}, a callable or None, got {loss!r}")
        if not (loss is None or isinstance(loss, str) or callable(loss)):
            raise TypeError(f"loss must be a name, a callable or None, got {type(loss).__name__}")
        self.loss, self._deviations, self.units = loss, (), None
        self._modules = {torch.float64: double_copy(module).eval().requires_grad_(False)}

    @classmethod
    def of_head(cls, loss: str | Loss | None = None) -> RestOfNetwork:
        """Return the tail of a model's last layer: the loss alone."""
        return cls(nn.Identity(), loss)

    @property
    def is_loss_alone(self) -> bool:
        """Whether the tail is the loss alone: the layer is the model's last."""
        return isinstance(self._modules[torch.float64], nn.Identity)

    @property
    def n_bytes(self) -> int:
        """Bytes of its parameters."""
        return sum(tensor.nbytes for module in self._modules.values() for tensor in module.parameters())

    def smoothed(self, deviations: Sequence[float]) -> RestOfNetwork:
        """Return the tail with smoothed kinks, each in turn by a deviation (see `Smoothing`)."""
        return self._with(_deviations=tuple(deviations))

    def in_units(self, units: torch.Tensor) -> RestOfNetwork:
        """Return the tail of a layer whose outputs are scaled, ``units * z``, for units of shape (m,)."""
        return self._with(units=units.double())

    def _with(self, **changes: Any) -> RestOfNetwork:
        found = copy(self)
        vars(found).update(changes)
        return found

    def in_own_units(self, gradients: torch.Tensor) -> torch.Tensor:
        """Return gradients of shape (..., m), or the like, for the unscaled outputs that the tail takes."""
        return gradients if self.units is None else gradients * self.units

    def spreads(self, preactivations: torch.Tensor) -> tuple[float, ...]:
        """Return the standard deviation of the inputs of each function with a kink, at rows of shape (n, m)."""
        with Smoothing() as seen:
            self.outputs(preactivations)
        return tuple(seen.spreads)

    def check(self, width: int) -> None:
        """Raise ``ValueError`` where the module does not map ``width`` numbers to one row for each input."""
        generator = torch.Generator().manual_seed(0)
        z = torch.randn((3, width), generator=generator, dtype=torch.float64)
        try:
            outputs, alone = self.outputs(z), self.outputs(z[1:2])
        except Exception as error:  # a module may raise anything on numbers that it was not made for
            raise ValueError(f"rest does not take outputs of shape (n, {width}): {error}") from error
        if outputs.ndim != 2 or len(outputs) != len(z):
            raise ValueError(f"rest must return one row for each input, got {tuple(outputs.shape)} for {len(z)}")
        if not torch.allclose(outputs[1:2], alone, rtol=1e-6, atol=1e-9):
            raise ValueError("rest mixes the inputs of a batch (batch normalisation in training mode?)")
        try:
            self.directions(z, 0)
        except Exception as error:  # and so may a loss
            raise ValueError(
                f"loss does not take outputs {tuple(outputs.shape)} in double precision: {error}"
            ) from error

    def n_labels(self, width: int) -> int:
        """Return the number of labels for a layer of that width: one for each output, two for a single output."""
        n_outputs = self.outputs(torch.zeros((1, width), dtype=torch.float64)).shape[1]
        return max(2, n_outputs)

    def label_terms(self, width: int) -> torch.Tensor | None:
        """Return the gradient of each label less that of the first, where it is the same at all inputs, else None.

        Its shape is (n_labels, width). It is the same for a classifier's last layer with cross-entropy, with labels
        smoothed or not, and with squared errors.
        """
        if not self.is_loss_alone:
            return None
        n_labels = self.n_labels(width)
        points = torch.randn((2, 1, width), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        found = [self.gradients_for(z.expand(n_labels, -1), torch.arange(n_labels)) for z in points]
        here, there = (gradients - gradients[:1] for gradients in found)
        return here if torch.allclose(here, there, rtol=0, atol=1e-12 * float(here.abs().max())) else None

    def outputs(self, preactivations: torch.Tensor) -> torch.Tensor:
        """Return the model's outputs, in the precision of the pre-activations."""
        dtype = preactivations.dtype
        if dtype not in self._modules:
            self._modules[dtype] = deepcopy(self._modules[torch.float64]).to(dtype)
        if self.units is not None:
            preactivations = preactivations / self.units.to(dtype)
        with Smoothing(self._deviations) if self._deviations else nullcontext():
            return self._modules[dtype](preactivations)

    def gradients(self, preactivations: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the loss at each row, of shape (n, m), up to a common factor, differentiable again.

        Parameters
        ----------
        preactivations : torch.Tensor of shape (n, m)
            They require a gradient.
        labels : torch.Tensor of shape (n,) of int
        """
        if len(preactivations) == 0:  # torch's normalisations divide by the number of rows
            return preactivations * 0.0
        total = total_loss(self.loss, self.outputs(preactivations), labels)
        (found,) = torch.autograd.grad(total, preactivations, create_graph=True, materialize_grads=True)
        # A mean over nothing, where the loss ignores all labels: no gradient.
        return torch.zeros_like(found) if total.isnan() else found

    def gradients_for(self, preactivations: torch.Tensor, labels: int | torch.Tensor) -> torch.Tensor:
        """Return the gradient at each row for one label, or one each, of shape (n, m)."""
        with torch.enable_grad():
            z = preactivations.detach().requires_grad_()
            return self.gradients(z, torch.as_tensor(labels).expand(len(z))).detach()

    def with_doubt(
        self, preactivations: torch.Tensor, labels: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """Return the label of each row, its gradient, and the gradient's change by rounding of unit size.

        The labels are those given, or the one with least gradient for each row.

        Where a network is nearly certain of a label, the gradient at that output is the difference of two numbers near
        one. Its rounding is a share of one and not of the difference, and appears only in the client's gradient.

        Returns
        -------
        tuple of torch.Tensor of shape (n,) of int, (n, m) and (n, m), or None
            None where the outputs are not one for each label.
        """
        with torch.enable_grad():
            z = preactivations.detach().requires_grad_()
            outputs = self.outputs(z)
            if outputs.shape[1] != self.n_labels(z.shape[1]):
                return None
            if labels is None:
                every = torch.arange(outputs.shape[1])
                left = [self._at_outputs(outputs.detach(), label.expand(len(z))) for label in every]
                sizes = torch.stack([gradient.norm(dim=1) for gradient in left])
                labels = torch.where(sizes > 0, sizes, torch.inf).argmin(dim=0)
            # At the opposite outputs, where the network is certain of other labels, the gradient is not small.
            whole = self._at_outputs(-outputs.detach(), labels).abs().amax(dim=1)
            own = (outputs.gather(1, labels[:, None])[:, 0] * whole).sum()
            (change,) = torch.autograd.grad(own, z, retain_graph=True, materialize_grads=True)
            return labels, self.gradients(z, labels).detach(), change

    def _at_outputs(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the loss at the model's outputs."""
        outputs = outputs.clone().requires_grad_()
        total = total_loss(self.loss, outputs, labels)
        (found,) = torch.autograd.grad(total, outputs, materialize_grads=True)
        return found.nan_to_num(nan=0.0)

    def directions(self, preactivations: torch.Tensor, label: int) -> torch.Tensor:
        """Return the gradient at each row for a label, as unit rows."""
        return normalized(self.gradients_for(preactivations, label), dim=1)

    def __repr__(self) -> str:
        return f"RestOfNetwork({self._modules[torch.float64]!r}, loss={self.loss!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_modules": {torch.float64: self._modules[torch.float64]}}
