"""What the server sees of one linear layer, and of the network behind it.

- `layer_gradient`: `LayerGradient`, a layer's weights and what a client sent; `next_layers` and `network_tail` hold
  what lies behind it, `losses` the client's loss, `of_model`, `tail_of_model` and `running_model` take them from a
  torch module.
- `updates`: states before and after local training; `stored_weights`: one step sent as weights; `formats`: coarse
  numbers.
- `bias_as_input`: the bias as one more input; `smoothed_tail`: kinks smoothed for a descent; `blocks`: products with
  wide matrices; `diagnosis`: why a gradient gives nothing away.
"""
