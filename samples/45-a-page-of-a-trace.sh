#!/usr/bin/env bash
# One page of a trace: all heads, the text with what each word attends to, the alignment of a translation, the words of
# each layer, and how each weight is computed.
# The page is a file that loads nothing, and its numbers are those of the trace.
# Lecture: interpretability
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

attnkit encode --model data/fr-en "le chat noir dort" \
  | attnkit decode --model data/fr-en --score "the black cat sleeps" --trace "$dir/run.npz" -o "$dir/score.json"
attnkit explore "$dir/run.npz" --model data/fr-en -o "$dir/page.html" --title "A translation"
echo "open page.html#view=text&layer=3&head=0&token=1 in a browser, or #view=lens, or #view=stages&layer=3&token=1"
grep -o "default-src 'none'" "$dir/page.html"

echo
echo "in the page: what 'the' attends to (layer 1, head 0)"
python3 - "$dir/page.html" <<'PYTHON'
import base64, json, re, sys, zlib
from array import array
text = open(sys.argv[1], encoding="utf-8").read()
page = json.loads(re.search(r'id="payload">(.*?)</script>', text)[1])
trace = page["traces"][0]
layer = trace["attention"][3]
weights = array("f", zlib.decompress(base64.b64decode(layer["map"]["values"])))
heads, queries, keys = layer["shape"]
row = weights[1 * keys : 2 * keys]
print(layer["name"], *(f"{word} {weight:.4f}" for word, weight in zip(trace["labels"]["source"], row)))

lens = trace["lens"]
ids, probabilities = (array(kind, zlib.decompress(base64.b64decode(lens[name]))) for name, kind in (("ids", "I"), ("probabilities", "f")))
layers, tokens, top = lens["shape"]
print("the word after 'the' in the state of each layer:")
for number, layer in enumerate(lens["layers"]):
    at = (number * tokens + 1) * top
    print(f"{layer:<10} {lens['words'][ids[at]]:<10} {probabilities[at]:.4f}")
PYTHON

echo
echo "in the trace, and of lens"
attnkit show "$dir/run.npz:decoder.1.cross.weights" --slice 0,1 --tokens plain
attnkit lens "$dir/run.npz" --model data/fr-en --position 1 --top 1 -f table
