"""What the server sees of one linear layer and of the network after it.

- `layer_gradient`: `LayerGradient`, a layer's weights and what a client sent; `next_layers` and `network_tail` hold
  what comes after the layer, `losses` the client's loss; `of_model`, `tail_of_model` and `running_model` take them from
  a torch module.
- `updates`: states before and after local training; `stored_weights`: one step sent as weights; `formats`: coarse
  number formats and their quantisation steps.
- `bias_as_input`: the bias as one more input; `smoothed_tail`: a network tail with smoothed kinks; `blocks`: products
  with wide matrices; `diagnosis`: why nothing can be recovered from a gradient.
"""
