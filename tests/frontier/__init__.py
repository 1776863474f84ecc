"""The yardstick: about 40 kinds of problems, run before and after every change to a search, constraint or certificate.

    python -m tests.frontier run --out after.json     (make frontier OUT=after.json)
    python -m tests.frontier compare before.json after.json     (make frontier-compare A=before.json B=after.json)
    python -m tests.frontier show after.json

Each line of a record is one problem of one seed: which share of its samples came back exactly, which share was
certified, how many certificates are wrong, CPU seconds of one thread, starts, and the memory taken beyond what the
process had. The kinds are in `tests.frontier.kinds`; records of the code as it was lie in ``records``.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))  # `paper`: the models and clients of the tables
