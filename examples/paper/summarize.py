"""Print a Markdown table of frontier results: python examples/paper/summarize.py results/frontier_*.jsonl."""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from scipy.stats import binomtest


def main(paths):
    groups = defaultdict(list)
    for path in paths:
        for line in Path(path).read_text().splitlines():
            row = json.loads(line)
            groups[row["width"], row["batch_size"], row["views"]].append(row)
    print(
        "| b | m | views | exact | 95 % interval | certified | median seconds | median starts | worst PSNR if exact |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for (width, batch_size, views), rows in sorted(groups.items()):
        exact = [row for row in rows if row["exact"]]
        interval = binomtest(len(exact), len(rows)).proportion_ci(method="exact")
        print(
            f"| {batch_size} | {width} | {'one layer' if views == 'one' else 'next layer too'} "
            f"| {len(exact)} of {len(rows)} | {interval.low:.0%} to {interval.high:.0%} "
            f"| {sum(row['certified'] == batch_size for row in rows)} | {median(row['seconds'] for row in rows):.1f} "
            f"| {median(row['starts'] for row in rows):.0f} "
            f"| {min((row['worst_psnr'] for row in exact), default=float('nan')):.0f} |"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
