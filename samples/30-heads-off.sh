#!/usr/bin/env bash
# How does a tale keep its hero? Two heads attend back to the small bear: head 3 of layer 1 to the bear, head 1 of
# layer 2 to its adjective, which only bears have. Without the first the tale is less sure of the bear, without both
# it has forgotten. With what layer 1 found in the tale of a cat, it is the cat that goes on.
# Lecture: interpretability
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT
tale() { attnkit encode --model data/story --dtype float64 "Once upon a time there was a $1" "${@:2}"; }
next() { attnkit decode --model data/story --layer head --top 3 -f table | tail -n 1 | sed 's/^[^ ]* *//'; }

bear="small bear who lived by the sea. Every evening the" cat=${bear/small bear/grey cat}
tale "$bear" --trace "$dir/bear.npz" | next
for head in 1,3 2,1; do
  echo && echo "layer ${head%,*}, head ${head#*,}, at the last token:"
  attnkit show "$dir/bear.npz:decoder.${head%,*}.self.weights" --slice "${head#*,},17,7:9" --precision 2 | tail -n +2
done

heads=decoder.1.self:3,decoder.2.self:1
for off in ${heads//,/ } $heads; do
  echo
  echo "without $off"
  tale "$bear" --ablate "$off" | next
done

echo
echo "with the heads of the cat's tale in layer 1:"
tale "$cat" --trace "$dir/cat.npz" --trace-only '*.heads' -o "$dir/cat-x.npz"
tale "$bear" --patch "decoder.1.self.heads=$dir/cat.npz:decoder.1.self.heads" | next
