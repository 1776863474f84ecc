"""Every table and figure of the two papers as rows of experiments, with the papers' numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paper.alone import HEAD_ROWS, REST_ROWS
from paper.any_activation import ACTIVATION_ROWS, QUANTISED_ROWS, SPAN_ROWS
from paper.clients import DPSGD, FEDAVG_SETTINGS, FedAvg, FedSGD, Wired
from paper.experiments import (
    Experiment,
    FailureTrials,
    FeatureBatch,
    ImageBatch,
    LayerBatch,
    TableBatch,
)
from paper.filtered import FILTERED_ROWS
from paper.first_steps import FIRST_STEP_ROWS
from paper.honesty import CalibratedBatch, HostileBatch
from paper.membership import MEMBERSHIP_ROWS
from paper.methods import OURS
from paper.peeled import PEELING_ROWS
from paper.picture_peers import PEER_ROWS
from paper.pictures import PICTURE_ROWS
from paper.raw import CROWDED_ROWS, RawImages, RawRows
from paper.summed import SUMMED_ROWS
from paper.tabular_peers import TABULAR_PEER_ROWS
from paper.text import TEXT_ROWS
from paper.tokens import TOKEN_ROWS
from paper.trained import TRAINED_ROWS
from paper.withheld import WITHHELD_ROWS
from tests.hostile.problems import TWISTS

__all__ = ["TABLES", "Table"]

N_HIDDEN = 5
"""Hidden layers of SPEAR's six-layer network; SPEAR++ has three."""

SIZES = ("20x200", "25x200", "30x200", "65x1000", "100x1000", "150x1000", "100x4000", "150x4000", "210x4000")
"""Of SPEAR++, Tables 1 and 2."""

BEFORE_HEAD = ((60, 200), (90, 200), (110, 200), (250, 1000), (330, 1000), (500, 1000))
"""Sizes of batches in front of a classifier's head, whose zeros alone end at a quarter of the width."""

NOISY = 25.0
"""Mean PSNR in dB above which a batch counts as recovered under DP noise or FedAvg, as in SPEAR++."""


@dataclass(frozen=True)
class Table:
    """One table or figure.

    Attributes
    ----------
    title : str
        What it shows, and where in the paper.
    rows : mapping of str to Experiment
        By what ``--rows`` calls them.
    methods : tuple of str
        Names in `METHODS` that run unless ``--directions`` says otherwise.
    n_batches : int
        Batches a row and method; the papers take 100.
    """

    title: str
    rows: Mapping[str, Experiment]
    methods: tuple[str, ...] = OURS
    n_batches: int = 100


def _sizes(*sizes: str) -> dict[str, Experiment]:
    """Return CIFAR-10 batches behind three hidden layers, by size: ``"20x200"`` is b = 20, m = 200."""
    return {size: ImageBatch(*map(int, size.split("x"))) for size in sizes}


def _noise_rows() -> dict[str, Experiment]:
    """Return the rows of SPEAR, Table 9: clipping norms and noise levels."""
    rows: dict[str, Experiment] = {}
    for noise_std in (0.0, 5e-6, 1e-5, 5e-5, 1e-4):
        for clipping in (1.0, 1.25, 1.5, 1.75, 2.0):
            client = DPSGD(clipping, noise_std)
            rows[f"C{clipping:g}-s{noise_std:g}"] = ImageBatch(
                20, 200, "tinyimagenet", N_HIDDEN, client=client, exact_above=NOISY if noise_std else 90.0
            )
    return rows


def _update(n_epochs: int, mini_batch: int | None, learning_rate: float) -> ImageBatch:
    """Return a row of SPEAR, Tables 10 and 11."""
    client = FedAvg(n_epochs, mini_batch, learning_rate)
    return ImageBatch(20, 200, "tinyimagenet", N_HIDDEN, client=client, exact_above=NOISY)


TABLES = {
    "spearpp-table1": Table(
        "SPEAR++ Table 1: surrogates, with Riemannian Adam",
        _sizes("15x200", *SIZES),
        ("logcosh-radam", "l1-radam", "l4-radam", "dictionary", *OURS),
    ),
    "spearpp-table2": Table(
        "SPEAR++ Table 2: optimisers, with l1",
        _sizes(*SIZES),
        ("l1-pgd", "l1-radam", *OURS),
    ),
    "spearpp-table3": Table(
        "SPEAR++ Table 3: DP-SGD with C = 2 and noise s (the paper's s is not legible in our copy)",
        {
            f"{b}x{m}-s{s:g}": ImageBatch(b, m, client=DPSGD(2.0, s), exact_above=NOISY)
            for b, m, s in ((20, 200, 1e-4), (150, 4000, 1e-6), (150, 4000, 1e-7))
        },
        ("l1-radam", "activation"),
    ),
    "spearpp-table4": Table(
        "SPEAR++ Table 4: FedAvg, epochs and mini-batch in the row (the rate is not legible in our copy; 0.01 here)",
        {
            "20x200-e3-b5": ImageBatch(20, 200, client=FedAvg(3, 5, 0.01), exact_above=NOISY),
            "150x4000-e15-b30": ImageBatch(150, 4000, client=FedAvg(15, 30, 0.01), exact_above=NOISY),
        },
        ("l1-radam", "activation"),
    ),
    "frontier": Table(
        "How large a batch comes back: our search",
        _sizes(
            *("20x200", "25x200", "30x200", "40x200", "50x200", "60x200", "66x200"),
            *("80x200", "90x200", "95x200", "98x200"),
            *("65x1000", "100x1000", "150x1000", "200x1000", "250x1000", "300x1000", "330x1000"),
            *("400x1000", "450x1000"),
            *("100x4000", "150x4000", "210x4000", "400x4000", "600x4000", "800x4000", "1500x4000"),
        ),
    ),
    "frontier-raw": Table(
        "Data as they are: pixels that are not centred, features, one-hot rows, networks in training",
        {
            **{
                f"{dataset}-{pixels}-{b}x{m}-{n_steps}": RawImages(b, m, n_steps, dataset, pixels)
                for dataset, pixels in (("cifar10", "unit"), ("cifar10", "symmetric"), ("mnist", "unit"))
                for b, m in ((10, 200), (20, 200), (40, 200), (60, 200), (80, 200))
                for n_steps in (0, 100, 500, 2000)
            },
            **{
                f"cifar10-unit-{b}x1000-{n_steps}": RawImages(b, 1000, n_steps)
                for b in (65, 150)
                for n_steps in (0, 500)
            },
            **{
                f"lenet-{layer}-{b}x{m}-{n_steps}": RawImages(
                    b, m, n_steps, pixels="symmetric", network="lenet", layer=layer
                )
                for layer, m, sizes in (("fc1", 120, (8, 16, 32, 45)), ("fc2", 84, (8, 16)))
                for b in sizes
                for n_steps in (0, 300, 2000)
            },
            **{
                f"vgg-{b}x512-{n_steps}": RawImages(b, 512, n_steps, network="vgg", layer="classifier.0")
                for b in (16, 32)
                for n_steps in (0, 300)
            },
            **{
                f"adult-{b}x400-{n_steps}": RawRows(b, 400, n_steps)
                for b in (8, 16, 32, 64)
                for n_steps in (0, 500, 5000)
            },
        },
        ("activation-next", "activation"),
        n_batches=10,
    ),
    "trained": Table(
        "Trained networks, whose records have gradients of very different sizes (records, width, steps)",
        TRAINED_ROWS,
        ("activation-next",),
        n_batches=10,
    ),
    "before-head": Table(
        "The layer before a classifier's head, one hidden layer: zeros of its gradient and the head's weights",
        {
            **{f"{b}x{m}": ImageBatch(b, m, n_hidden=1) for b, m in BEFORE_HEAD},
            **{f"{b}x200-1000": ImageBatch(b, 200, n_hidden=1, n_steps=1000) for b in (16, 32, 64)},
        },
        ("activation-next",),
        n_batches=10,
    ),
    "crowded": Table(
        "More inputs than their features have dimensions: rows of Adult (about 50 or 60) and of breast cancers (30)",
        CROWDED_ROWS,
        ("activation-next",),
        n_batches=10,
    ),
    "activations": Table(
        "Any activation, with the gradients of the layers behind",
        ACTIVATION_ROWS,
        ("activation-next", "oracle"),
        n_batches=20,
    ),
    "spans": Table(
        "Beyond half the width: the gradients of two and three layers behind (three and four hidden layers)",
        SPAN_ROWS,
        ("activation-next", "oracle"),
        n_batches=10,
    ),
    "quantised": Table(
        "Coarse number formats, with the gradients of the layers behind, b = 16 at 400; exact is 35 dB and more here",
        QUANTISED_ROWS,
        ("activation-next",),
        n_batches=10,
    ),
    "rest": Table(
        "One layer's gradient alone: the rest of the network, as the server knows it (three hidden layers unless said)",
        REST_ROWS,
        ("activation", "oracle"),
        n_batches=10,
    ),
    "head": Table(
        "The inputs of a classifier's last layer, and all labels, from that layer's gradient alone (b, classes)",
        HEAD_ROWS,
        ("activation",),
        n_batches=10,
    ),
    "peeling": Table(
        "A whole network, attacked where there is most room and peeled to the pixels (batch, hidden layers)",
        PEELING_ROWS,
        ("activation",),
        n_batches=10,
    ),
    "pictures": Table(
        "Pictures behind convolutions, by an audit of the whole model from one gradient",
        PICTURE_ROWS,
        ("activation",),
        n_batches=10,
    ),
    "picture-peers": Table(
        "Peers behind convolutions: MNIST, one gradient, untrained; chain is R-GAP's network (seconds of one core)",
        PEER_ROWS,
        ("activation", "breaching", "r-gap"),
        n_batches=3,
    ),
    "tabular-peers": Table(
        "Peers on census rows: Adult, one gradient, untrained, 100-100-2, TabLeak's setting (seconds of one core)",
        TABULAR_PEER_ROWS,
        ("activation", "tableak", "guess"),
        n_batches=3,
    ),
    "filtered": Table(
        "Filtered updates, completed by their low rank: percentiles zeroed and clipped (CIFAR-10, two hidden layers)",
        FILTERED_ROWS,
        ("activation",),
        n_batches=10,
    ),
    "withheld": Table(
        "No bias gradient sent, or adapters (LoRA) alone beside frozen layers and biases (CIFAR-10, two hidden layers)",
        WITHHELD_ROWS,
        ("activation",),
        n_batches=10,
    ),
    "summed": Table(
        "Sums of clients, as secure aggregation shows them, weighted alike or by their numbers of records (CIFAR-10)",
        SUMMED_ROWS,
        ("activation",),
        n_batches=10,
    ),
    "first-steps": Table(
        "One step of Adam and its like, fitted by its low rank: optimiser and learning rate (MNIST, two hidden layers)",
        FIRST_STEP_ROWS,
        ("activation",),
        n_batches=10,
    ),
    "membership": Table(
        "Which records a client trained on, from the model before and after local SGD (records, width, steps)",
        MEMBERSHIP_ROWS,
        ("activation",),
        n_batches=10,
    ),
    "text": Table(
        "Texts, their tokens in order, from an encoder's gradient (sentences, tokens of the longest, number format)",
        TEXT_ROWS,
        ("activation",),
        n_batches=10,
    ),
    "tokens": Table(
        "Tokens of a transformer, as they enter the first block's perceptron (pictures or texts, steps of training)",
        TOKEN_ROWS,
        ("activation-next",),
        n_batches=10,
    ),
    "never-lies": Table(
        "Hostile problems: no certified input is off by more than ten times its uncertainty and 1e-3 of its size",
        {twist.replace(" ", "-"): HostileBatch(0, 0, twist) for twist in TWISTS},
        ("activation",),
        n_batches=50,
    ),
    "calibration": Table(
        "True error over expected error of certified inputs, b = 16 at 200",
        {
            name: CalibratedBatch(16, 200, client=client)
            for name, client in {
                "float32": FedSGD(),
                **{wire.replace(" ", "-"): Wired(wire) for wire in ("float16", "bfloat16", "int8", "int8 by row")},
                "dp-1e-5": DPSGD(2.0, 1e-5),
                "dp-1e-4": DPSGD(2.0, 1e-4),
                "fedavg-e3-b4": FedAvg(3, 4, 0.03),
                "fedavg-e5-b8": FedAvg(5, 8, 0.02),
            }.items()
        },
        ("activation",),
        n_batches=40,
    ),
    "spear-table1": Table(
        "SPEAR Table 1: ImageNet 256 x 256",
        {"imagenet_256": ImageBatch(20, 200, "imagenet_256", N_HIDDEN)},
    ),
    "spear-table2": Table(
        "SPEAR Table 2: Adult",
        {"adult": TableBatch(16, 400)},
    ),
    "spear-table3": Table(
        "SPEAR Tables 3 and 7: data sets",
        {
            name: ImageBatch(20, 200, name, N_HIDDEN)
            for name in ("mnist", "cifar10", "tinyimagenet", "imagenet_224", "imagenet_720")
        },
    ),
    "spear-table4": Table(
        "SPEAR Table 4: the attacked layer",
        {f"layer{layer + 1}": LayerBatch(20, 400, "tinyimagenet", N_HIDDEN, layer) for layer in range(5)},
    ),
    "spear-table5": Table(
        "SPEAR Table 5: behind an optimisation-based attack",
        {size: ImageBatch(*map(int, size.split("x")), "tinyimagenet", N_HIDDEN) for size in ("50x400", "100x2000")},
        ("prior", *OURS),
        n_batches=10,
    ),
    "spear-table6": Table(
        "SPEAR Table 6: features of VGG16 (random weights here)",
        {"vgg16": FeatureBatch(16, 4096)},
        ("activation",),
        n_batches=10,
    ),
    "spear-table8": Table(
        "SPEAR Table 8: batches of one class (TinyImageNet in the paper; CIFAR-10 here)",
        {"one-class": ImageBatch(20, 200, "cifar10", N_HIDDEN, one_class=True)},
    ),
    "spear-table9": Table(
        "SPEAR Table 9: DP-SGD by clipping norm C and noise s",
        _noise_rows(),
        ("activation",),
    ),
    "spear-table10": Table(
        "SPEAR Table 10: FedAvg, epochs and mini-batch in the row, rate 0.01",
        {f"e{e}-b{b}": _update(e, b, 0.01) for e, b in ((1, 20), (5, 20), (10, 20), (20, 20), (50, 20), (20, 5))},
        ("activation",),
    ),
    "spear-table11": Table(
        "SPEAR Table 11: FedAvg, 5 epochs of the whole batch, rate in the row",
        {f"r{rate:g}": _update(5, 20, rate) for rate in (0.1, 0.01, 0.001)},
        ("activation",),
    ),
    "fedavg": Table(
        "FedAvg beyond Tables 10 and 11: epochs, mini-batch and rate in the row",
        {f"e{e}-b{b}-r{r:g}": _update(e, b, r) for e, b, r in FEDAVG_SETTINGS},
        ("activation",),
        n_batches=10,
    ),
    "spear-fig4": Table(
        "SPEAR Fig. 4: draws of kernel sampling, against Lemma 5.2",
        _sizes(*(f"{b}x200" for b in range(4, 13, 2)), *(f"{b}x2000" for b in range(4, 17, 2))),
        ("kernel",),
        n_batches=10,
    ),
    "spear-fig7": Table(
        "SPEAR Fig. 7: during training on MNIST, b = 10",
        {f"step{n}": ImageBatch(10, 200, "mnist", N_HIDDEN, n_steps=n) for n in (0, 100, 300, 1000, 3000)},
        n_batches=10,
    ),
    "spear-fig8": Table(
        "SPEAR Fig. 3 and 8: failures of exhaustive sampling, against Lemma 5.3",
        {f"{b}x{m}": FailureTrials(b, m) for b in (4, 6, 8, 10) for m in range(10, 41, 5)},
        ("exhaustive",),
        n_batches=10,
    ),
}
"""By what ``run.py`` calls them."""
