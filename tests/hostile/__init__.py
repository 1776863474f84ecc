"""Updates as federations send them, each with what leaks of it by the truth.

`networks` x `clients` x `wires` make the cases of `bank`; `judge` holds what an audit says against the truth.
"""
