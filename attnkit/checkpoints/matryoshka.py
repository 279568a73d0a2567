"""Whether a folder says that the first numbers of its vectors are vectors too.

Matryoshka representation learning (Kusupati et al. 2022) trains the beginnings of a vector along with the whole.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from attnkit.formats.streams import exists

KEYS = ("matryoshka_dimensions", "matryoshka_dims", "matryoshka_dim", "truncate_dim", "apply_pca")  # of config.json
WORDS = re.compile(  # of a model card; that of sentence-transformers links to an introduction, of every model
    r"(?<!introduction to )(?<!huggingface.co/blog/)matryoshka|\bMRL\b", re.IGNORECASE
)
CARD, LONGEST = "README.md", 1 << 20  # bytes of a model card that are read


def says_matryoshka(folder: str, raw: Mapping[str, Any]) -> bool:
    """Whether config.json or the model card of a folder says so.

    The table of a model2vec is one of principal components (`apply_pca`), which come in the order of their size.

    raw  config.json

    >>> says_matryoshka("", {"matryoshka_dimensions": [32, 64]}), says_matryoshka("", {"truncate_dim": None})
    (True, False)
    """
    return any(raw.get(key) for key in KEYS) or bool(WORDS.search(_read_card(os.path.join(folder, CARD))))


def _read_card(path: str) -> str:
    if not exists(path) or not os.path.isfile(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(LONGEST)
