#!/usr/bin/env bash
# ULMFiT (Howard and Ruder 2018) in small: a language model of an LSTM reads reviews without labels, and is
# then fine-tuned to tell kind ones from unkind ones by thirty labelled lines, which name some of the words.
# The same classifier that begins with random weights learns those words alone.
# Lecture: transfer
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 data/reviews.py 4000 1 > "$work/reviews.txt"
python3 data/reviews.py 60 2 labels > "$work/labels.tsv"
cd "$work"

echo 'reviews without labels, and with them'
head -n 2 reviews.txt labels.tsv

echo
echo 'pre-training: the language model reads 4000 reviews'
size=(--family lstm --layers 1 --dim 64)
attnkit train -q reviews.txt -o reader "${size[@]}" --tokens bpe:420 --batch 16 --block 32 --lr 0.01 \
  --schedule cosine --warmup 50 --steps 500 --every 250 |
  jq -r 'select(.loss) | "step \(.step)  held-out loss \(.held_out_loss * 10 | round / 10)"'

learn() { # thirty lines are learned, thirty are held out; the mean accuracy of three seeds, to 5 %
  for seed in 0 1 2; do
    rm -rf classifier
    attnkit train -q labels.tsv -o classifier --classify "$@" --batch 10 --valid 50% --lr 0.01 --steps 120 \
      --every 120 --seed "$seed"
  done | jq -rs 'map(.accuracy // empty) | add / length * 20 | round * 5 | "\(.) % of the labels held out"'
}
fine_tuning=(--schedule slanted_triangular --layer-decay 0.4 --unfreeze-every 20)

echo
echo 'the classifier from random weights'
learn "${size[@]}" --tokens reader
echo 'the classifier from the language model'
learn --from reader "${fine_tuning[@]}"

echo
echo 'words that no labelled line names'
for review in "the soup is superb" "the soup is mouldy"; do
  word=${review##* }
  echo "$word: in $(grep -c "$word" labels.tsv || true) labelled lines"
  attnkit decode --model classifier "$review" -f json | jq -r '.labels.label[.tensors.next.data]'
done
