"""Texts of a batch, with their tokens in order, from the gradients of the layers that are fed tokens.

- `recover_text` does it, and returns a `Text` with each `Sentence`; `recovering.py`, `finding.py`.
- `front.py`: the model up to these layers, which it is run for on each candidate.
- `layer_space.py`: the row space of their gradients; `pairs.py`: which token lies in it at which position.
- `contexts.py`: whole sentences, held against a layer behind an attention; `assignment.py`: the search for them.
- `replaying.py`: the client run again.
- `reach_of_text` says before any training whether the order of tokens shows; `reach.py`.
"""

from sparsedl_fl.audit.text.finding import Sentence, Text
from sparsedl_fl.audit.text.reach import TextReach, reach_of_text
from sparsedl_fl.audit.text.recovering import recover_text, text_of

__all__ = ["Sentence", "Text", "TextReach", "reach_of_text", "recover_text", "text_of"]
