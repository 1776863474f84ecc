"""Run a torch module once, and trace what its linear layers compute.

- `recording`: every operation of a forward pass; `tracing`: the layers in their order, found by comparing numbers;
  `uses` and `following`: each layer, and what comes after it.
- `naming`: parameters by name, without prefixes of wrappers; `finite`: NaN and infinity; `embeddings`: tables of token
  ids.
- `example_inputs` and `described_inputs`: made-up inputs, and inputs as a user describes them.
"""
