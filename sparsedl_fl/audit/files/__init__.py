"""Models and updates as users have them on disk; safe formats only.

- `programs.py`: models and losses from a user's own code, whose errors become a sentence.
- `unpacking.py`: the unpacked size of a file, checked before it is unpacked.
- `containers.py`: the contents of a file, as names and tensors.
- `entries.py`: which entry of a file fits a model, under which names.
- `sent.py`: the model's weights, and what a client sent as gradients.
- `records.py`: a client's records, an example of the model's input, and a vocabulary.
"""

from sparsedl_fl.audit.files.containers import load_tensors
from sparsedl_fl.audit.files.programs import check_fixed, load_object
from sparsedl_fl.audit.files.records import load_example, load_records, load_vocabulary
from sparsedl_fl.audit.files.sent import KINDS, Update, load_after, load_model, load_sent, load_update

__all__ = [
    "KINDS",
    "Update",
    "check_fixed",
    "load_after",
    "load_example",
    "load_model",
    "load_object",
    "load_records",
    "load_sent",
    "load_tensors",
    "load_update",
    "load_vocabulary",
]
