#!/usr/bin/env bash
# The loss: the distribution that should have come, one-hot at the target, beside the one that
# the model gave; their cross-entropy, -log of the probability of the target.
# Lecture: loss
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80

state() { attnkit decode data/je-suis-etudiant.json --table data/words.json --emit logits; }

echo 'expected and actual, for the first two words'
attnkit show data/je-suis-etudiant.json --slice 0:2 -f npy \
  | attnkit decode --table data/words.json | attnkit loss --target 'I am' --steps -f table

echo
echo 'the whole sentence: a loss for each word'
state | attnkit loss --target 'I am a student <eos>' -f table

echo
echo 'two words exchanged: where the target is improbable, the loss is high'
state | attnkit loss --target 'I a am student <eos>' -f table

echo
echo 'label smoothing, 0.1 of the target shared among all six words (the paper, 5.4)'
state | attnkit loss --target 'I am a student <eos>' --smoothing 0.1 --steps -f table | tail -n 8

echo
echo 'knowing nothing: six equal logits, a loss of log 6, a perplexity of 6'
echo '[[0, 0, 0, 0, 0, 0]]' | attnkit loss --target 3 -f table
