"""Run the notebooks from top to bottom, each in an empty folder, and store what they print and draw.

python examples/notebooks/run.py [NAME ...]
"""

import sys
import tempfile
import time
from pathlib import Path

import nbclient
import nbformat

HERE = Path(__file__).parent


def run(path):
    """Return the notebook with the outputs of this run, and without traces of when and on what it ran."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(
            notebook, timeout=300, record_timing=False, coalesce_streams=True, resources={"metadata": {"path": folder}}
        ).execute()
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


if __name__ == "__main__":
    for path in [HERE / f"{name}.ipynb" for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        start = time.perf_counter()
        nbformat.write(run(path), path)
        print(f"{path.name}: {time.perf_counter() - start:.0f} s")
