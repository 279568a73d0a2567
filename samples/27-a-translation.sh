#!/usr/bin/env bash
# Translation is a pipe: the encoder's record goes to the decoder. The model was trained on a
# small grammar of French (data/french_english.py) and has never seen these sentences.
# Lecture: layers
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

attnkit encode --model data/fr-en "je suis étudiant" | attnkit decode --model data/fr-en --beam 4 --emit text

echo
echo "line by line:"
printf '%s\n' "elle porte un chapeau rouge" "le petit chat noir dort dans le jardin" \
  | attnkit encode --model data/fr-en --lines | attnkit decode --model data/fr-en --beam 4 --emit text

echo
echo "the three best of four beams, by their mean log-probability a token:"
attnkit encode --model data/fr-en "le petit chat noir dort dans le jardin" --dtype float64 -o "$dir/encoded.npz"
attnkit decode --model data/fr-en --beam 4 --best 3 -f table < "$dir/encoded.npz"

echo
echo "what each English token saw of the French ones:"
attnkit decode --model data/fr-en --score "the small black cat sleeps in the garden" \
  --trace "$dir/run.npz" --trace-only '*.cross.weights' < "$dir/encoded.npz" > "$dir/scored.npz"
attnkit show "$dir/run.npz:decoder.1.cross.weights" --slice 0 --heatmap

echo
echo "It knows the words of its grammar and no others: of merci beaucoup it makes a sentence of those."
