"""From one recovered layer to the others.

- `backward`: the inputs of the layer before, without a search; `forward`: what known inputs feed every layer.
- `replay`: the client run again with what was recovered.
- `patches`: from tokens to pixels; `token_fitting`: all tokens of a sample fitted to several gradients at once.
"""
