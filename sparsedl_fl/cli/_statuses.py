"""Exit statuses of the commands."""

from __future__ import annotations

__all__ = ["BAD_USAGE", "INTERRUPTED"]

BAD_USAGE = 2
"""Exit status, as argparse has it; 1 means that something was recovered, and nothing else."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
