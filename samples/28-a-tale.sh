#!/usr/bin/env bash
# A text model goes on with a text, a token at a time: the most probable one, or one that is
# drawn. Each choice can be inspected, and a given text scored.
# Lecture: gpt
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
tale() { attnkit decode --model data/story --dtype float64 "$@"; }

tale "Once upon a time" --emit text

echo
echo "three others, drawn:"
for seed in 1 2 3; do
  tale "Once upon a time" --temperature 1.2 --top-k 20 --seed $seed --stop " One" --emit text
done

echo
echo "where the first tale made its choices:"
tale "Once upon a time there was" --max-tokens 3 --top 3 --steps --emit text 2>&1

echo
echo "which is likelier? log-probabilities of what follows: Every evening the fox"
for end in " looked at the stars." " looked at the key."; do
  tale "Every evening the fox" --score "$end" -f json \
    | jq -r --arg text "$end" '"  \(.tensors.x.data | add * 100 | round / 100) \($text)"'
done
