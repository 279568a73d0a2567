#!/usr/bin/env bash
# Why queries, keys and values are three projections: without them the score of a pair of words is the same
# both ways, and each word attends most to itself. W_Q and W_K of their own let a pair score differently in each
# direction; W_V lets a word hand on something other than what it is found by.
# Lecture: projections
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attnkit embed "robots obey humans" --dim 8 --seed 1 -o "$work/x.npz"

echo 'without projections (W_Q = W_K = I): a symmetric matrix, the largest score of a row on its diagonal'
attnkit attend "$work/x.npz" --emit scores --precision 2 -f table

echo
echo 'with W_Q and W_K from a seed: robots → humans is not humans → robots'
attnkit attend "$work/x.npz" --seed 1 --emit scores --precision 2 -f table

echo
echo 'the largest difference between a score and its mirror image, without and with projections'
for seed in '' '--seed 1'; do
  attnkit attend "$work/x.npz" $seed --emit scores -f json |
    jq '.tensors.x.data[0] as $s | [range(3) as $i | range(3) as $j | $s[$i][$j] - $s[$j][$i]] | max * 100 | round / 100'
done
