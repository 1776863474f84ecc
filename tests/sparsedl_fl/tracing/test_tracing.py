"""What a trace is asked for."""

import pytest
import torch
from torch import nn

from sparsedl_fl.tracing.tracing import trace_model


def test_several_inputs_are_refused_with_what_to_do():
    model = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(TypeError, match="example must be a tensor, one input of the model, got tuple: wrap a model"):
        trace_model(model, (torch.zeros(1, 4), torch.zeros(1, 2)))
