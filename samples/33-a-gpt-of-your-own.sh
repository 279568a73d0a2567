#!/usr/bin/env bash
# A GPT from nothing but a text file: the loss falls, the model learns the first lines of a tale by
# heart and continues them. A run that was ended goes on with the same bits.
# Lecture: gpt
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
head -n 8 data/lighthouse.txt > "$work/tale.txt"
cd "$work"

recipe=(--layers 1 --heads 4 --dim 64 --lr 0.01 --warmup 20 --valid 0)
losses() { jq -r 'select(.loss) | "step \(.step)  loss \(.loss * 10 | round / 10)"'; }

echo 'training: the mean loss of each 50 steps'
attnkit train -q tale.txt -o gpt "${recipe[@]}" --schedule cosine --steps 200 --every 50 | losses

echo
echo 'what it says'
attnkit decode --model gpt "The lamp did not" --max-tokens 45 --emit text

echo
echo 'how it was made'
attnkit history gpt | tail -n 1

echo
echo 'a run of 20 steps that goes on to 30, and one of 30: the same bits'
attnkit train -q tale.txt -o parts "${recipe[@]}" --steps 20 > /dev/null
attnkit train -q tale.txt --resume parts --steps 30 > /dev/null
attnkit train -q tale.txt -o whole "${recipe[@]}" --steps 30 > /dev/null
cmp parts/model.safetensors whole/model.safetensors && cmp parts/state.safetensors whole/state.safetensors && echo equal
