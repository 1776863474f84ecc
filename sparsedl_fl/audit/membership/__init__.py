"""Whether given records were trained on, from a model's weights before and after any number of local steps of SGD.

- `members` tests records; `Membership` is what it returns; `testing.py`.
- `make_canaries` draws records that a client can add to its own, to see whether they are found; `canaries.py`.
- `layer_change.py`: the layer whose inputs stay the same in training, its inputs for each record, and how it changed.
- `row_space.py`: the directions of that change above its noise, and how near an input lies to them.
- `hidden_changes.py`: the changes of a record that they would not show.
- `strangers.py`: how near records lie that were not trained on.
"""

from sparsedl_fl.audit.membership.canaries import make_canaries
from sparsedl_fl.audit.membership.testing import Membership, members

__all__ = ["Membership", "make_canaries", "members"]
