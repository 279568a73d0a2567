#!/usr/bin/env bash
# The gates of an LSTM over the tokens of a sentence: what each unit lets in, keeps and shows. By hand: one unit
# whose forget gate is open (σ(10)) counts the tokens that its input gate lets in.
# Lecture: recurrence
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

attnkit embed "The quick brown fox jumps over the lazy dog" --dim 8 --dtype float64 \
  | attnkit rnn --cell lstm --hidden 8 --seed 1 --keep gates,cell -o "$dir/gates.npz"
echo "the forget gate: near 1, a unit keeps its cell state"
attnkit show "$dir/gates.npz:forget_gate" --heatmap
echo
echo "the cell state"
attnkit show "$dir/gates.npz:cell" --precision 2

echo
echo "a unit that counts: i and f always open, g = tanh(10 x) is 1 at each 1"
cat > "$dir/counter.json" <<'END'
{"weight_ih_l0": [[0], [0], [10], [0]], "weight_hh_l0": [[0], [0], [0], [0]],
 "bias_ih_l0": [10, 10, 0, 10], "bias_hh_l0": [0, 0, 0, 0]}
END
echo '[[1], [0], [1], [1], [0]]' \
  | attnkit rnn --cell lstm --params "$dir/counter.json" --keep cell -f json \
  | jq -c '.tensors.cell.data | map(.[0] * 100 | round / 100)'

echo
echo "cut after two tokens and continued from its state: the same bits"
attnkit embed "a b c d e" --dim 4 -o "$dir/text.npy" -q
attnkit rnn "$dir/text.npy" --cell gru --hidden 3 -o "$dir/whole.npy"
attnkit show "$dir/text.npy" --slice :2 -f npy | attnkit rnn --cell gru --hidden 3 --state-out "$dir/state.npz" -o "$dir/first.npy"
attnkit show "$dir/text.npy" --slice 2: -f npy | attnkit rnn --cell gru --hidden 3 --state-in "$dir/state.npz" -o "$dir/rest.npy"
attnkit show "$dir/whole.npy" --slice 2: -f npy | attnkit diff - "$dir/rest.npy" -q && echo "no difference"
