"""The names that users and outside checks rely on."""

import importlib
import inspect
from pathlib import Path

import pytest

CONTRACT = {
    "sparsedl": ["SparseDictionaryRecovery", "__version__"],
    "sparsedl.surrogates": [
        "L1",
        "LogCosh",
        "NegativeL4",
        "Huber",
        "LogSum",
        "GaussianMoments",
        "Surrogate",
        "check_surrogate",
    ],
    "sparsedl.noisy": ["NoisyEstimate", "estimate_under_noise"],
    "sparsedl.optimizers": [
        "RiemannianAdam",
        "RiemannianSGD",
        "ProjectedGradient",
        "DiminishingSubgradient",
        "ReweightedLeastSquares",
        "MatchingStretchProject",
        "FixedPoint",
        "Optimizer",
    ],
    "sparsedl.rounding": ["KernelRounding", "LinearProgramRounding", "ReweightedRounding", "Rounding"],
    "sparsedl.datasets": ["make_sparse_dictionary"],
    "sparsedl.metrics": ["match_components"],
    "sparsedl.plotting": ["plot_components"],
    "sparsedl_fl": ["GradientInverter", "LayerGradient", "__version__"],
    "sparsedl_fl.activations": [
        "Activation",
        "CELU",
        "ELU",
        "Elementwise",
        "FlatPart",
        "GELU",
        "Hardswish",
        "Hardtanh",
        "Identity",
        "LeakyReLU",
        "Mish",
        "PReLU",
        "ReLU",
        "ReLU6",
        "SELU",
        "SiLU",
        "Sigmoid",
        "Softplus",
        "Tanh",
        "Threshold",
        "check_activation",
        "resolve",
    ],
    "sparsedl_fl.directions": [
        "ActivationDirections",
        "DictionaryDirections",
        "KernelDirections",
        "PriorDirections",
        "Directions",
    ],
    "sparsedl_fl.search": [
        "Alternation",
        "Descent",
        "Projection",
        "Reflection",
        "ScaledReflection",
        "Schedule",
        "SampleCoordinates",
    ],
    "sparsedl_fl.constraints.problem": ["LayerProblem"],
    "sparsedl_fl.constraints": ["ActivationSubspace", "ForwardPass", "DownstreamSubspaces", "Constraint"],
    "sparsedl_fl.certify.hypothesis": ["Hypothesis"],
    "sparsedl_fl.certify.certificate": ["Criterion", "CRITERIA", "certify"],
    "sparsedl_fl.audit": ["AuditResult", "LayerAudit", "Verdict", "audit_model", "default_settings", "sweep"],
    "sparsedl_fl.audit.report": ["as_dict", "schema"],
    "sparsedl_fl.federation": ["LeakPolicy", "RoundTable", "check_update"],
    "sparsedl_fl.models": ["gradients_of_update", "inspect_model", "trace_model"],
    "sparsedl_fl.simulation": [
        "fully_connected",
        "client_gradient",
        "fedavg_update",
        "dp_sgd_gradient",
        "SimulatedClient",
        "WIRES",
    ],
    "sparsedl_fl.metrics": ["match_batches", "psnr"],
    "sparsedl_fl.theory": ["false_rejection_rate", "sparsity_threshold", "success_probability", "expected_samples"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in CONTRACT.items() for name in names])
def test_name_is_public_and_documented(module, name):
    loaded = importlib.import_module(module)
    assert name in loaded.__all__
    assert inspect.getdoc(getattr(loaded, name))


@pytest.mark.parametrize("module", CONTRACT)
def test_all_lists_only_what_exists(module):
    loaded = importlib.import_module(module)
    assert all(isinstance(name, str) and hasattr(loaded, name) for name in loaded.__all__)


def test_one_version():
    import sparsedl
    import sparsedl_fl

    assert sparsedl_fl.__version__ is sparsedl.__version__
    citation = (Path(__file__).parents[1] / "CITATION.cff").read_text()
    assert f"\nversion: {sparsedl.__version__}\n" in citation


def test_signatures():
    from sparsedl import SparseDictionaryRecovery
    from sparsedl_fl import GradientInverter, LayerGradient
    from sparsedl_fl.metrics import psnr

    assert {"n_components", "surrogate", "optimizer", "rounding", "random_state"} <= set(
        inspect.signature(SparseDictionaryRecovery).parameters
    )
    assert {"directions", "random_state"} <= set(inspect.signature(GradientInverter).parameters)
    assert list(inspect.signature(LayerGradient).parameters) == [
        "weight",
        "bias",
        "weight_grad",
        "bias_grad",
        "next_weight_grad",
        "learning_rate",
        "activation",
        "next_weight",
        "behind",
        "rest",
        "rows_per_sample",
        "head",
    ]
    assert list(inspect.signature(LayerGradient.from_model).parameters) == [
        "model",
        "gradients",
        "layer",
        "example",
        "loss",
    ]
    assert list(inspect.signature(LayerGradient.from_update).parameters) == [
        "before",
        "after",
        "learning_rate",
        "layer",
        "n_steps",
        "momentum",
        "weight_decay",
    ]
    assert inspect.signature(psnr).parameters["data_range"].default == 1.0
