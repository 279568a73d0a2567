#!/usr/bin/env bash
# From a decoder's state to a word: linear map, logits as wide as the vocabulary, softmax,
# argmax. The output matrix is the embedding itself, a row for each word.
# Lecture: logits
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80

attnkit embed am --one-hot --vocab data/vocab.txt -f table

echo
echo 'Merci: one state, its logits, their softmax, the same at temperature 2'
merci() { echo '[[-2, 1, 0]]' | attnkit decode --table data/words.json "$@"; }
merci --emit logits -f table
merci --emit probs -f table
merci --emit probs -f table --temperature 2
merci | jq -r '"the probabilities sum to \(.tensors.x.data[0] | add * 1e6 | round / 1e6)"'
merci --emit text

echo
echo 'Je suis étudiant: five states, five words'
attnkit decode data/je-suis-etudiant.json --table data/words.json --top 3 -f table
attnkit decode data/je-suis-etudiant.json --table data/words.json --emit text

echo
echo 'training shifts the target by one: input, then target'
target='[2, 1, 0, 4, 5]'
for ids in "$(jq -c '[6] + .[:-1]' <<< "$target")" "$target"; do
  attnkit embed --ids <(echo "$ids") --one-hot --vocab <(cat data/vocab.txt; echo '<s>') \
    | jq -r '.labels.token | join(" ")'
done
