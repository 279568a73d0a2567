#!/usr/bin/env bash
# How is a word that no dictionary has pronounced? A GRU reads its letters, and leaves one vector; a
# second GRU begins with that vector and writes phonemes (Cho et al. 2014). The package g2p-en has the
# trained weights in a file of its own; here they become the folder of a `seq2seq` model.
# The model: pip install --no-deps g2p-en
# Lecture: recurrence
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

where='import importlib.util as u, sys; found = u.find_spec("g2p_en")
print(*found.submodule_search_locations) if found else sys.exit("no g2p-en here: pip install --no-deps g2p-en")'
package=$(python3 -c "$where")
python3 data/make_g2p.py "$package" "$dir/weights.npz" "$dir/g2p"
attnkit show "$dir/weights.npz" -q -o "$dir/g2p/model.safetensors"
attnkit show "$dir/g2p" --facts | sed "1,/^──/d; \$d"

echo
for word in activationist zyzzyva attnkit; do
  echo "$word: $(attnkit decode --model "$dir/g2p" "$word" --max-tokens 20 --emit text)"
done

echo
echo "What else might be said?"
attnkit decode --model "$dir/g2p" attnkit --beam 4 --best 4 --max-tokens 20 -f table

echo
echo "Which of its 256 numbers does the encoder keep as it reads? The update gate: near 1, it keeps."
attnkit encode --model "$dir/g2p" attnkit --trace "$dir/run.npz" -o "$dir/x.npz"
attnkit show "$dir/run.npz" --name encoder.0.rnn.update_gate --slice :,:40 --heatmap
