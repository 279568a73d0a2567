#!/usr/bin/env bash
# The model story: a GPT-2 of 3 layers, 64 wide, that tells the tales of tales.py, made in a few minutes on two cores.
# The same version on the same machine makes the same bytes; another rounds otherwise.
set -euo pipefail
cd "$(dirname "$0")"
python3 tales.py --tales 5000 > tales.txt
attnkit train tales.txt -o story --family gpt2 --tokens bpe:512 --layers 3 --heads 4 --dim 64 --block 128 --batch 16 \
  --lr 3e-3 --schedule cosine --steps 2000 --dtype float16
rm tales.txt story/state.safetensors # the text is made again; without its state a model cannot be resumed, and is small
