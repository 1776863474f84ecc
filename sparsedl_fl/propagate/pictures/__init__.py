"""From the features in front of the first linear layer to the pictures that a convolutional model was fed.

- `front`: the model up to that layer, as a function; `sharpening`: the same with its kinks smoothed.
- `counting`: equations against unknowns, before any search.
- `fitting`: Gauss-Newton on features, each picture by itself; `finishing`: its last steps, with the Jacobian formed.
- `layerwise`: through convolutions without pooling, a first guess by one linear system a layer, for the whole batch.
- `determinacy`, `judging`, `replaying`: how well a picture is determined, what is demanded of it, and the proof by
  gradients that were not fitted; `certificate`: the result.
- `slopes`, `lifting`, `joint`: features and the gradients of the front together, for what features leave open.
- `recovery`: all of it; `draws`: random numbers that are the same on every device.
"""

from sparsedl_fl.propagate.pictures.certificate import PictureStatus, RecoveredPictures
from sparsedl_fl.propagate.pictures.counting import EquationCount, count_equations
from sparsedl_fl.propagate.pictures.front import Front
from sparsedl_fl.propagate.pictures.recovery import recover_pictures

__all__ = ["EquationCount", "Front", "PictureStatus", "RecoveredPictures", "count_equations", "recover_pictures"]
