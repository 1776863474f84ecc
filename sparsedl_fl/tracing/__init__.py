"""Run a torch module once, and see what its linear layers do.

- `recording`: every operation of a forward pass; `tracing`: the order of the layers, by numbers; `uses` and
  `following`: what a run shows of each, and what comes after it.
- `naming`: parameters by name, as wrappers change them; `finite`: NaN and infinity; `embeddings`: tables of token ids.
- `example_inputs` and `described_inputs`: inputs that are made up, or described by a user.
"""
