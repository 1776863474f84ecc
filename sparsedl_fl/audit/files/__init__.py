"""Models and updates as users have them on disk; safe formats only.

- `programs.py`: models and losses that a user's own code makes; whatever that raises is said in a sentence.
- `unpacking.py`: how large a file unpacks, judged before anything of it is unpacked.
- `containers.py`: what is in a file, as names and tensors.
- `entries.py`: which part of that fits a model, under which names.
- `sent.py`: the model's weights, and what a client sent as gradients.
- `records.py`: a client's records, an example of the model's input, and a vocabulary.
"""

from sparsedl_fl.audit.files.containers import load_tensors
from sparsedl_fl.audit.files.programs import check_fixed, load_object
from sparsedl_fl.audit.files.records import load_example, load_records, load_vocabulary
from sparsedl_fl.audit.files.sent import KINDS, Update, load_model, load_update

__all__ = [
    "KINDS",
    "Update",
    "check_fixed",
    "load_example",
    "load_model",
    "load_object",
    "load_records",
    "load_tensors",
    "load_update",
    "load_vocabulary",
]
