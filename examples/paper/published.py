"""The numbers that the two papers print, beside which ours are shown."""

from __future__ import annotations

__all__ = ["PUBLISHED"]


def _read(text: str, metric: str = "psnr") -> dict[tuple[str, str], dict[str, float]]:
    """Read lines of row, method, metric and accuracy in percent."""
    quoted = {}
    for line in text.strip().splitlines():
        row, method, value, accuracy = line.split()
        quoted[row, method] = {metric: float(value), "accuracy": float(accuracy)}
    return quoted


_RADAM = _read(
    """
    20x200 l1-radam 120.98 95
    25x200 l1-radam 96.02 77
    30x200 l1-radam 41.70 25
    65x1000 l1-radam 125.18 100
    100x1000 l1-radam 69.31 41
    150x1000 l1-radam 10.42 0
    100x4000 l1-radam 124.24 100
    150x4000 l1-radam 120.86 100
    210x4000 l1-radam 45.34 7
    """
)

PUBLISHED = {
    "spearpp-table1": _RADAM
    | _read(
        """
        20x200 logcosh-radam 121.50 98
        25x200 logcosh-radam 106.50 86
        30x200 logcosh-radam 30.70 12
        65x1000 logcosh-radam 54.98 27
        100x1000 logcosh-radam 18.76 0
        150x1000 logcosh-radam 12.24 0
        100x4000 logcosh-radam 93.63 92
        150x4000 logcosh-radam 32.63 0
        210x4000 logcosh-radam 13.80 0
        15x200 l4-radam 83.02 62
        20x200 l4-radam 14.29 0
        """
    ),
    "spearpp-table2": _RADAM
    | _read(
        """
        20x200 l1-pgd 41.53 25
        25x200 l1-pgd 19.01 0
        30x200 l1-pgd 14.71 0
        65x1000 l1-pgd 93.91 93
        100x1000 l1-pgd 23.41 0
        150x1000 l1-pgd 12.06 0
        100x4000 l1-pgd 105.61 100
        150x4000 l1-pgd 104.46 100
        210x4000 l1-pgd 88.36 77
        """
    ),
    "spearpp-table3": _read(
        """
        20x200-s0.0001 l1-radam 31.90 75
        150x4000-s1e-06 l1-radam 55.45 88
        150x4000-s1e-07 l1-radam 55.45 88
        """
    ),
    "spearpp-table4": _read(
        """
        20x200-e3-b5 l1-radam 67.81 75
        150x4000-e15-b30 l1-radam 63.71 92
        """
    ),
    "spear-table1": _read(
        """
        imagenet_256 kernel 124.2 100
        """
    ),
    "spear-table3": _read(
        """
        mnist kernel 99.1 99
        cifar10 kernel 106.6 99
        tinyimagenet kernel 110.7 99
        imagenet_224 kernel 125.4 99
        imagenet_720 kernel 125.6 99
        """
    ),
    "spear-table4": _read(
        """
        layer1 kernel 1.06e-6 100
        layer2 kernel 1.33e-6 100
        layer3 kernel 1.67e-6 100
        layer4 kernel 2.80e-6 99
        layer5 kernel 3.04e-6 83
        """,
        metric="mae",
    ),
    "spear-table5": _read(
        """
        50x400 prior 124.5 100
        100x2000 prior 81.5 60
        """
    ),
    "spear-table8": _read(
        """
        one-class kernel 127.7 98
        """
    ),
    "spear-table9": _read(
        """
        C1-s0 kernel 118.2 100
        C1.25-s0 kernel 118.1 100
        C1.5-s0 kernel 118.5 100
        C1.75-s0 kernel 118.7 100
        C2-s0 kernel 118.0 100
        C1-s5e-06 kernel 38.6 99
        C1.25-s5e-06 kernel 40.4 98
        C1.5-s5e-06 kernel 41.9 98
        C1.75-s5e-06 kernel 42.2 97
        C2-s5e-06 kernel 42.0 96
        C1-s1e-05 kernel 38.2 99
        C1.25-s1e-05 kernel 40.0 98
        C1.5-s1e-05 kernel 38.5 99
        C1.75-s1e-05 kernel 39.2 99
        C2-s1e-05 kernel 39.6 99
        C1-s5e-05 kernel 32.3 97
        C1.25-s5e-05 kernel 33.5 98
        C1.5-s5e-05 kernel 34.4 99
        C1.75-s5e-05 kernel 34.6 100
        C2-s5e-05 kernel 34.1 100
        C1-s0.0001 kernel 29.7 98
        C1.25-s0.0001 kernel 29.3 97
        C1.5-s0.0001 kernel 29.9 99
        C1.75-s0.0001 kernel 29.4 98
        C2-s0.0001 kernel 28.7 95
        """
    ),
    "spear-table10": _read(
        """
        e1-b20 kernel 97.8 97
        e5-b20 kernel 103.9 100
        e10-b20 kernel 106.7 99
        e20-b20 kernel 108.9 98
        e50-b20 kernel 104.9 90
        e20-b5 kernel 106.7 97
        """
    ),
    "spear-table11": _read(
        """
        r0.1 kernel 119.3 95
        r0.01 kernel 103.9 100
        r0.001 kernel 85.5 100
        """
    ),
    "spear-table2": {("adult", "kernel"): {"categories": 1.0, "mae": 20.4, "accuracy": 100.0}},
    "spear-table6": {("vgg16", "kernel"): {"similarity": 0.984}},
}
"""By table, then by row and method: the metric, and the accuracy in percent."""
