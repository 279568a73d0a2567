"""Tiny BERTs with heads that give labels, and what transformers makes of them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6
    python tests/references/make_heads.py
    pip install transformers==4.57.6 tokenizers==0.22.2   # the last one with a pipeline that answers questions
    python tests/references/make_heads.py answers

writes for each model the weights and the tokenizer of models/bert-TASK beside its settings, and heads.json: of every
text the logits of the model read back from its folder, in float64 (`logits`), and what the pipeline of the task
returns: `labels` of a text; for each aggregation strategy the spans of a text; with `answers`, answers.json, the best
answers to questions. The same bytes come out of every run.
"""

import json
import sys

import numpy as np
import torch
import transformers

if sys.argv[1:] != ["answers"]:
    from make_models import TEXTS, both, folder_of, publish, word_pieces, write_json

from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("bert-sequence", "bert-topics", "bert-rank", "bert-score", "bert-token", "bert-question")
STRATEGIES = ("none", "simple", "first", "average", "max")
SENTENCES = ["The cat sat upon a mat reading every day; a café was there!", "once: 日本語 reading-books, don't sit"]
PAIRS = [("the cat sat", "on the mat?"), ("once upon a time", "there was a café…")]
QUESTIONS = [
    ("what was the cat reading?", "Once upon a time the cat sat on a mat, reading the book every day."),
    ("where?", "the café 日本語 was there; the cat's mat"),
]
LONG = "Once upon a time the cat sat on a mat, reading the book every day; a café was there! " * 6
QUESTIONS_OF_WINDOWS = [("where?", LONG), ("was a " * 12, LONG)]  # the model reads 64 tokens at once


def make(name: str, seed: int):
    """Publish one model; return it with its tokenizer."""
    folder = folder_of(name)
    word_pieces(folder)
    return publish(folder, seed, std=0.25), transformers.AutoTokenizer.from_pretrained(folder)


def logits(model, tokenizer, *texts: str) -> dict:
    """The logits of a text or a pair, in float64."""
    inputs = tokenizer(*texts, return_tensors="pt")

    def outputs(of):
        result = of(**inputs)
        parts = [result.start_logits, result.end_logits] if "start_logits" in result else None
        return {"logits": (torch.stack(parts, -1) if parts else result.logits)[0]}

    return {"logits": both(model, outputs)["logits.f64"].tolist()}


def plain(value):
    return float(value) if isinstance(value, np.floating) else int(value) if isinstance(value, np.integer) else value


def main() -> None:
    frozen = {}
    texts = [*TEXTS, *SENTENCES]
    for seed, name in enumerate(NAMES, 41):
        model, tokenizer = make(name, seed)
        rows = [{"text": text} | logits(model, tokenizer, text) for text in texts]
        if name == "bert-token":
            pipe = transformers.pipeline("token-classification", model=model, tokenizer=tokenizer)
            for row in rows:
                for strategy in STRATEGIES:
                    spans = pipe(row["text"], aggregation_strategy=strategy)
                    row[strategy] = [{key: plain(value) for key, value in span.items()} for span in spans]
        elif name == "bert-question":
            rows = []
        else:
            pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
            for row in rows:
                row["labels"] = pipe(row["text"], top_k=None)
        pairs = PAIRS if name != "bert-question" else QUESTIONS
        more = [{"text": a, "pair": b} | logits(model, tokenizer, a, b) for a, b in pairs]
        frozen[name] = {"texts": rows, "pairs": more}
    write_json(HERE / "heads.json", frozen)


def answers() -> None:
    model = transformers.BertForQuestionAnswering.from_pretrained(HERE / "models/bert-question").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(HERE / "models/bert-question")
    pipe = transformers.pipeline("question-answering", model=model, tokenizer=tokenizer)
    rows = [
        {
            "question": question,
            "text": text,
            "best": [pipe(question=question, context=text, top_k=top) for top in (1, 5)],
        }
        for question, text in QUESTIONS + QUESTIONS_OF_WINDOWS
    ]
    (HERE / "answers.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    answers() if sys.argv[1:] == ["answers"] else main()
