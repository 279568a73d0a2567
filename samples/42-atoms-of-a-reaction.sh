#!/usr/bin/env bash
# Which atoms of the reactants are those of the product? A model that learned to guess masked tokens of
# reactions answers in one of its heads: layer 10, head 5. Its tokenizer is a regular expression,
# of which, with the model's vocabulary, jq makes a tokenizer.json.
# The model: pip install --no-deps rxnmapper
# Lecture: interpretability
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

where='import importlib.util as u, sys; found = u.find_spec("rxnmapper")
print(*found.submodule_search_locations) if found else sys.exit("no rxnmapper here: pip install --no-deps rxnmapper")'
model=$(python3 -c "$where")/models/transformers/albert_heads_8_uspto_all_1310k

jq -nR '[inputs] | with_entries({key: .value, value: .key}) | {
  version: "1.0", added_tokens: [],
  model: {type: "WordLevel", vocab: ., unk_token: "[UNK]"},
  pre_tokenizer: {type: "Split", behavior: "Isolated", invert: false,
    pattern: {Regex: "\\[[^\\]]+\\]|Br?|Cl?|>>?|%[0-9]{2}|."}},
  post_processor: {type: "TemplateProcessing", pair: [],
    single: [{SpecialToken: {id: "[CLS]", type_id: 0}}, {Sequence: {id: "A", type_id: 0}},
      {SpecialToken: {id: "[SEP]", type_id: 0}}],
    special_tokens: {"[CLS]": {id: "[CLS]", ids: [.["[CLS]"]], tokens: ["[CLS]"]},
      "[SEP]": {id: "[SEP]", ids: [.["[SEP]"]], tokens: ["[SEP]"]}}}
}' "$model/vocab.txt" > "$dir/smiles.json"

attnkit encode --model "$model" --tokenizer "$dir/smiles.json" "CC(C)S.Fc1cccnc1F>>CC(C)Sc1ncccc1F" \
  --dtype float64 --trace "$dir/run.npz" --trace-only encoder.10.self.weights -o "$dir/x.npz"

echo "a row for each token of the product, a column for each of the reactants"
attnkit show "$dir/run.npz:encoder.10.self.weights" --slice 5,19:34,1:18 --heatmap
echo
echo "each atom of the product, and the atom of the reactants that it attends to most, by their places"
attnkit show "$dir/run.npz:encoder.10.self.weights" --slice 5,19:34,1:18 -f json \
  | jq -r '.labels as {$query, $key} | def atom: test("[A-Za-z]");
    .tensors[].data | to_entries[] | select($query[.key] | atom) | [.key,
      (.value | to_entries | map(select($key[.key] | atom)) | max_by(.value).key)]
    | "\($query[.[0]]) \(.[0]) <- \($key[.[1]]) \(.[1])"' \
  | paste - - - - - -
