#!/usr/bin/env bash
# One page of a trace: all heads, the text with what each word attends to, and the alignment of a translation.
# The page is a file that loads nothing, and its numbers are those of the trace.
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

attnkit encode --model data/fr-en "le chat noir dort" \
  | attnkit decode --model data/fr-en --score "the black cat sleeps" --trace "$dir/run.npz" -o "$dir/score.json"
attnkit explore "$dir/run.npz" -o "$dir/page.html" --title "A translation"
echo "open page.html#view=text&layer=3&head=0&token=1 in a browser"
grep -o "default-src 'none'" "$dir/page.html"

echo
echo "what 'the' attends to (layer 1, head 0): in the page, and in the trace"
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
PYTHON
attnkit show "$dir/run.npz:decoder.1.cross.weights" --slice 0,1 --tokens plain
