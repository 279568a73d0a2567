#!/usr/bin/env bash
# A GPT that knows one sentence, in a second: its tokens are the eight words of the fox. After "the" two words may
# follow, quick or lazy, and what stands before decides.
# Lecture: gpt
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo 'the quick brown fox jumps over the lazy dog' > fox.txt

attnkit train -q fox.txt -o fox --tokens words --layers 1 --heads 2 --dim 32 --valid 0 \
  --steps 100 --lr 0.01 --warmup 0 --schedule cosine > /dev/null

for text in 'the quick brown' 'the' 'fox jumps over the'; do
  printf '%s → ' "$text"
  attnkit decode --model fox "$text" --max-tokens 1 --emit text
done
