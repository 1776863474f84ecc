"""From one recovered layer to the others, without a search.

- `backward`: the inputs of the layer before, by least squares; `forward`: those of downstream layers, by running the
  model.
- `replay`: the client run again with what was recovered.
- `patches`: from tokens to pixels; `token_fitting`: a sample with all its tokens fitted to several gradients.
"""
