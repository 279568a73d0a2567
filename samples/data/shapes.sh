#!/usr/bin/env bash
# The model shapes: a ViT of 2 layers, 48 wide, that tells the circles, squares and triangles of shapes.py apart, made
# in a minute on two cores. The same version on the same machine makes the same bytes; another rounds otherwise.
set -euo pipefail
cd "$(dirname "$0")"
python3 shapes.py pictures 2000
attnkit train pictures -o shapes --family vit --size 16 --layers 2 --heads 4 --dim 48 --batch 32 --lr 2e-3 \
  --schedule cosine --valid 10% --steps 3000 --every 300 --dtype float16
rm -r pictures shapes/state.safetensors # pictures are drawn again; without its state a model cannot be resumed, and is small
