"""Models that carry states, and what transformers computed with them, for the tests of these families."""

from typing import NamedTuple

import numpy as np

from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.inputs import layers
from tests.drawing import keep_folders
from tests.places import arrays

LENGTHS = (1, 63, 64, 65, 200)  # of texts that end before, at and after the end of a chunk


class Frozen(NamedTuple):
    """The models of a table of tests/references, and their arrays."""

    table: str

    def __call__(self, name, key):
        return arrays(self.table)[f"{name}/{key}"]

    def opener(self, make_folder):
        """A function of a name and a dtype [float64] that opens a model; make_folder: of pytest."""
        write = keep_folders(make_folder, self.table)
        return lambda name, dtype=np.float64: layers.core_model(open_checkpoint(write(name, dtype)))


def hidden(core, ids, mask=None, *, first=0, **fields):
    """Hidden states of ids (B, T), of which `first` came before; mask (B, first + T), True = a token."""
    if mask is not None:
        fields |= {"mask": mask[:, None], "positions": model.token_positions(mask)[:, first:]}
    return model.run(core, core.config.plan("decoder"), ids, model.Context(**fields))


def logits(core, ids, mask=None):
    return model.head_logits(core, hidden(core, ids, mask))
