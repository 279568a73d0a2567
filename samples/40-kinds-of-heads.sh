#!/usr/bin/env bash
# Which heads bring back what the tale has told? Over 12 tales, head 3 of layer 1 attends most to the tokens that
# followed the same token before (induction): one of the two heads that keep the hero in 30-heads-off.sh. Texts are read
# one at a time, so that a corpus of any length takes the memory of one. By its weights alone this head copies what it
# attends to, as three of layer 0 do; most others lower it.
# Lecture: interpretability
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
python3 data/tales.py --tales 12 | sed 's/<|endoftext|>//' \
  | attnkit encode --model data/story --lines --keep '*.self.weights' -f npz \
  | attnkit heads --sort induction --top 4 -f table
echo
attnkit heads --model data/story --sort copying -f table
