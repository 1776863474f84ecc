"""The tables and figures of SPEAR and SPEAR++, and ours: run again, summarised, and drawn.

    python examples/paper/run.py spearpp-table1

Where things are: `tables` says what a table holds, `experiments` how a row is drawn and measured, `clients` what a
client sends, `methods` which attacks are compared, `published` what the papers print; `runner` runs, `summary` and
`figures` show; `models` are the networks.
"""
