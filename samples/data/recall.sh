#!/usr/bin/env bash
# The models recall-delta and recall-attention: two layers, 32 wide, that learn the task of recall.py by the same
# recipe, one by the gated delta rule, one by attention; made in a minute on one core. So narrow a model begins with
# larger weights than the usual 0.02. The same version on the same machine makes the same bytes; another rounds otherwise.
set -euo pipefail
cd "$(dirname "$0")"
python3 recall.py 1-4 12000 1 > recall.txt
for kind in delta:qwen3_5_text attention:llama; do
  name=${kind%:*}
  attnkit train -q recall.txt -o blank --family "${kind#*:}" --layers 2 --heads 2 --dim 32 --tokens words --steps 0
  jq '.initializer_range = 0.15 | .tie_word_embeddings = false' blank/config.json > "$name.json"
  attnkit train recall.txt -o "recall-$name" --config "$name.json" --tokens words --batch 16 --lr 3e-3 --warmup 20 \
    --schedule cosine --steps 1200 --dtype float16
  rm -r blank "$name.json" "recall-$name/state.safetensors"
done
rm recall.txt # it is made again; without its state a model cannot be resumed, and is small
