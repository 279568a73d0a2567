#!/usr/bin/env bash
# The model fr-en: a Marian of 2 + 2 layers, 64 wide, that translates the French of french_english.py, made in a few
# minutes on two cores. The same version on the same machine makes the same bytes; another rounds otherwise.
set -euo pipefail
cd "$(dirname "$0")"
python3 french_english.py --pairs 60000 --words 2:16 --varied > pairs.tsv
attnkit train pairs.tsv -o fr-en --family marian --tokens bpe:300 --layers 2 --heads 4 --dim 64 --hidden 128 \
  --batch 100 --lr 3e-3 --schedule cosine --dropout 0.1 --smoothing 0.1 --valid 2% --steps 2500 --dtype float16
rm pairs.tsv fr-en/state.safetensors # the text is made again; without its state a model cannot be resumed, and is small
