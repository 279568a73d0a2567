#!/usr/bin/env bash
# Attention as a picture: a heat map of the weights as text, all heads side by side, and the
# same maps as a figure in SVG, on one scale from 0 to 1.
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

attnkit embed "The cat sat on the mat" --dim 8 --dtype float64 | attnkit posenc | attnkit mask --causal \
  | attnkit attend --heads 2 --seed 1 --keep weights --only weights -o "$dir/weights.npz"

attnkit show "$dir/weights.npz" --heatmap
echo
attnkit show "$dir/weights.npz" --heads
echo
attnkit show "$dir/weights.npz" --heatmap --range 0,1 --title "Two heads" -o "$dir/weights.svg"
python3 - "$dir/weights.svg" <<'END'
import sys
import xml.etree.ElementTree as tree

picture = tree.parse(sys.argv[1]).getroot()
texts = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}text")]
words = [word for word in ("Two heads", "query", "key", "cat", "head 1", "masked") if word in texts]
print("saved as", picture.tag.split("}")[1], "with", ", ".join(words))
END
