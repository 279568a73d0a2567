#!/usr/bin/env bash
# A translator in a second: two lines of text, a GRU that reads letters into states, and a second GRU that attends to
# them and writes letters. It knows those two words and nothing else: a word that it has not seen comes out as some
# mixture of what it has.
# Lecture: alignment
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
printf 'merci\tthanks\nbonjour\thello\n' > pairs.tsv

attnkit train -q pairs.tsv -o translator --family seq2seq --cell gru --dim 16 --hidden 32 --valid 0 \
  --steps 150 --every 50 --warmup 0 --lr 0.02 | jq -r 'select(.loss).loss | if . < 0.05 then "the loss is below 0.05" else . end' | tail -n 1

for word in merci bonjour; do
  printf '%s → ' $word
  attnkit decode --model translator $word --emit text
done
