#!/usr/bin/env bash
# The figure that made the case for attention: a GRU encoder-decoder (2014), the same with additive attention (2015) and
# a Transformer (2017), of about as many parameters, learn the same French-English pairs, first those of 2 to 10 words,
# then those of up to 45, and translate sentences that they have not seen: BLEU by their length. Then the time of a
# training step by the length of its sentences, with as many words in every batch.
#
#     bash road-to-attention.sh [FOLDER [STEPS [PAIRS [TESTED [TIMED [WORDS]]]]]]
#
# writes FOLDER (road) with the three models, their translations, results.json and bleu.svg, in about 10 minutes on two
# cores. The seeds: 1 and 2 of the pairs, 3 of the tested ones, 0 of the models; the same version on the same
# machine makes the same translations. Needs attnkit[text,score] and jq.
set -euo pipefail
grammar=$(realpath "$(dirname "$0")/french_english.py")
folder=${1:-road} steps=${2:-2000} pairs=${3:-60000} tested=${4:-500} timed=${5:-5} batch=${6:-1600}
mkdir -p "$folder"
cd "$folder"

python3 "$grammar" --pairs "$pairs" --words 2:10 --seed 1 > short.tsv
python3 "$grammar" --pairs "$pairs" --words 2:45 --seed 2 | cat short.tsv - > all.tsv
python3 "$grammar" --pairs "$tested" --words 2:45 --seed 3 --held-out > tested.tsv
cut -f1 tested.tsv > french.txt
cut -f2 tested.tsv > english.txt

models=(gru attention transformer)
declare -A sizes=(
  [gru]='--family seq2seq --cell gru --attention none --dim 128 --hidden 160'
  [attention]='--family seq2seq --cell gru --attention additive --dim 128 --hidden 144'
  [transformer]='--family transformer --layers 2 --heads 4 --dim 96 --hidden 256'
)

for model in "${models[@]}"; do
  learn="attnkit train -q --batch 32 --lr 2e-3 --warmup $(((steps + 19) / 20)) --valid 0.5% --steps $steps --every $(((steps + 9) / 10))"
  $learn short.tsv -o "$model-short" ${sizes[$model]} --tokens bpe:700 > "$model.jsonl"
  $learn all.tsv -o "$model" --from "$model-short" --schedule cosine >> "$model.jsonl"
  attnkit decode --model "$model" --lines --emit text --max-tokens 100 < french.txt > "$model.txt"
  attnkit score "$model.txt" --references english.txt --source french.txt --by length:10 -f json > "$model.json"
done

# The milliseconds of a step: sentences of 10, 20, 40 and 80 words, WORDS (1600) in every batch; the best of five means,
# of TIMED (5) steps each.
for words in 10 20 40 80; do
  python3 "$grammar" --pairs "$batch" --words "$words:$words" --seed 4 > "$words.tsv"
  for model in "${models[@]}"; do
    attnkit train -q "$words.tsv" -o timed --from "$model" --batch $((batch / words)) --valid 0 --warmup 0 --steps $((5 * timed)) --every $timed \
      | jq -s "[.[].seconds // empty] | [range(1; length) as \$at | 1000 / $timed * (.[\$at] - .[\$at - 1])] | min | round"
    rm -r timed
  done | jq -cs .
  rm "$words.tsv"
done > milliseconds.json

jq -n --argjson steps "$steps" --slurpfile scores <(cat "${models[@]/%/.json}") --slurpfile times milliseconds.json \
  --slurpfile reports <(for model in "${models[@]}"; do jq -cs . "$model.jsonl"; done) '
  def tensor($axes): {dtype: "float32", shape: [length, (.[0] | arrays | length)], axes: $axes, data: .};
  {tensors: {
    x: [$scores[].tensors.bleu_by_length.data] | transpose | tensor(["length", "model"]),
    parameters: [$reports[] | last.parameters] | tensor(["model"]),
    seconds: [$reports[] | [.[] | select(.step == $steps).seconds] | add] | tensor(["model"]),
    milliseconds: $times | tensor(["words", "model"])},
  labels: {length: $scores[0].labels.length, words: ["10", "20", "40", "80"],
    model: ["GRU", "GRU + attention", "Transformer"]}}' > results.json
attnkit show results.json --curves --range 0,100 --title "BLEU by sentence length" -o bleu.svg
attnkit show results.json --name x,parameters,seconds,milliseconds --precision 1 -f table
