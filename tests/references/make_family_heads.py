"""Heads of text encoders beyond BERT, and what transformers makes of them, frozen.

    python tests/references/make_family_heads.py
    python tests/references/make_family_heads.py answers

in the environments of make_heads.py, from the root of the repository. A model is a folder of models/ whose head is
another one, with random weights: tests/generation/family_heads.py puts the two together. The script writes

family_heads.npz    NAME:head:TENSOR of each head; NAME:N.f64 and .f32, the logits of the N-th text or pair; of
                    questions (T, 2), the starts and the ends
family_heads.json   for each NAME its `base`, the `prefix` of its tensors that stay, what changes in its `config`, and
                    its `texts`: `ids`, and `types` where the model reads them; `labels` of a text as the pipeline
                    returns them; for each aggregation strategy the spans [label, score, start, end]; with `answers` the
                    five best [answer, score, start, end]

ModernBERT's base is without padding, as in make_text_encoders.py. The same bytes come out of every run.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers

sys.path.insert(0, "tests/generation")
from family_heads import REFERENCES, build_folder, head_folder

TEXTS = [
    "The cat sat upon a mat reading every day; a café was there!",
    "once: 日本語 reading-books,  don't sit \u2167 \u0130stanbul",
    "e\u0301 zero\u200bwidth \U0001f44d\U0001f3fd <s> [SEP]",
]
PAIRS = [("The cat sat.", "on the mat?"), ("once upon a time", "there was a café… 日本")]
QUESTIONS = [
    ("what was the cat reading?", "Once upon a time the cat sat on a mat, reading the book every day."),
    ("where?", "the café 日本語 was there;  the cat's mat e\u0301 \U0001f44d"),
]
STRATEGIES = ("none", "simple", "first", "average", "max")
TASKS = {"sequence": "SequenceClassification", "token": "TokenClassification", "question": "QuestionAnswering"}
LABELS = {
    "sequence": ["NEGATIVE", "NEUTRAL", "POSITIVE"],
    "token": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
    "question": ["LABEL_0", "LABEL_1"],
}
FAMILIES = {  # name -> base, prefix, name of the classes of transformers
    "roberta": ("roberta", "roberta.", "Roberta"),
    "xlm-roberta": ("xlm-roberta", "roberta.", "XLMRoberta"),
    "camembert": ("xlm-roberta", "roberta.", "Camembert"),
    "distilbert": ("distilbert", "distilbert.", "DistilBert"),
    "albert": ("albert", "albert.", "Albert"),
    "electra": ("electra", "electra.", "Electra"),
    "mpnet": ("mpnet", "mpnet.", "MPNet"),
    "modernbert": ("modernbert", "model.", "ModernBert"),
    "deberta": ("deberta-v3", "deberta.", "DebertaV2"),
}
MORE = {  # what else changes in config.json
    "xlm-roberta-sequence": {"problem_type": "multi_label_classification"},
    "camembert-sequence": {"problem_type": "regression", "id2label": {"0": "stars"}},
    "distilbert-sequence": {"id2label": {"0": "LABEL_0"}},
    "electra-sequence": {"problem_type": "multi_label_classification"},
    "modernbert-sequence": {"classifier_pooling": "cls"},
    "modernbert-mean": {"classifier_pooling": "mean"},
    "modernbert-token": {"classifier_bias": True},
    "modernbert-question": {"classifier_activation": "relu", "norm_bias": False},
    "deberta-sequence": {"pooler_hidden_act": "tanh"},
}


def models() -> dict[str, tuple[str, str]]:
    """NAME -> family, task."""
    names = {f"{family}-{task}": (family, task) for family in FAMILIES for task in TASKS}
    return names | {"modernbert-mean": ("modernbert", "sequence"), "camembert-words": ("camembert", "words")}


def make(name: str, family: str, task: str, seed: int) -> tuple[dict, dict]:
    """What the JSON says of a model, and the tensors of its head."""
    base, prefix, kind = FAMILIES[family]
    kind = getattr(transformers, f"{kind}For{TASKS.get(task, 'MaskedLM')}")
    labels = {str(number): label for number, label in enumerate(LABELS.get(task, []))}
    config = {"architectures": [kind.__name__], "model_type": kind.config_class.model_type}
    config |= {"id2label": labels} if task in ("sequence", "token") else {}
    config |= MORE.get(name, {})
    config |= {"label2id": {label: int(number) for number, label in config.get("id2label", {}).items()}}
    with tempfile.TemporaryDirectory() as folder:
        build_folder(pathlib.Path(folder) / name, base, prefix, config, {})
        model = kind.from_pretrained(pathlib.Path(folder) / name, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    head = {}
    for key, tensor in sorted(model.state_dict().items()):
        if not key.startswith(prefix) or ".pooler." in key:
            scale = key.endswith("norm.weight")
            noise = torch.randn(tensor.shape, generator=generator)
            head[key] = (1 + 0.3 * noise if scale else 0.4 * noise).numpy()
    if task == "words":  # the weight is that of the embeddings
        head = {key: array for key, array in head.items() if key != "lm_head.decoder.weight"}
        head = {key: array for key, array in head.items() if key != "lm_head.decoder.bias"}
    return {"base": base, "prefix": prefix, "config": config}, head


def read_back(folder: pathlib.Path, name: str):
    """The model of a folder, all of whose tensors are used, and its tokenizer."""
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    model, report = getattr(transformers, kind).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), (name, report)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if name.startswith("distilbert"):  # the folder names the tokenizer of BERT
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    if name.startswith("albert"):  # transformers 5 leaves out the types, which the models were trained with
        tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return model.eval(), tokenizer


def logits(model, inputs) -> dict[str, np.ndarray]:
    """The logits of a text in both dtypes."""
    found = {}
    for suffix, dtype in (("f32", torch.float32), ("f64", torch.float64)):
        with torch.no_grad():
            result = model.to(dtype)(**inputs)
        parts = [result.start_logits, result.end_logits] if "start_logits" in result else None
        found[suffix] = (torch.stack(parts, -1) if parts else result.logits)[0].numpy()
    model.to(torch.float32)
    return found


def freeze(name: str, task: str, folder: pathlib.Path) -> tuple[list[dict], dict[str, np.ndarray]]:
    model, tokenizer = read_back(folder, name)
    texts = {"question": QUESTIONS, "words": [("The cat <mask> on the mat.",)], "token": [(one,) for one in TEXTS]}
    rows, members = [], {}
    for number, text in enumerate(texts.get(task, [*[(one,) for one in TEXTS], *PAIRS])):
        inputs = tokenizer(*text, return_tensors="pt")
        row = {"text": text, "ids": inputs["input_ids"][0].tolist()}
        row |= {"types": inputs["token_type_ids"][0].tolist()} if "token_type_ids" in inputs else {}
        members |= {f"{name}:{number}.{key}": value for key, value in logits(model, inputs).items()}
        if task == "sequence" and len(text) == 1:
            pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
            row["labels"] = {one["label"]: one["score"] for one in pipe(text[0], top_k=None)}
        if task == "token":
            pipe = transformers.pipeline("token-classification", model=model, tokenizer=tokenizer)
            for strategy in STRATEGIES:
                row[strategy] = [
                    [span.get("entity_group", span.get("entity")), float(span["score"]), span["start"], span["end"]]
                    for span in pipe(text[0], aggregation_strategy=strategy)
                ]
        rows.append(row)
    return rows, members


def write(frozen: dict) -> None:
    """A line for each text."""
    parts = []
    for name, one in frozen.items():
        about = json.dumps({key: value for key, value in one.items() if key != "texts"}, ensure_ascii=False)
        texts = ",\n".join(json.dumps(row, ensure_ascii=False) for row in one["texts"])
        parts.append(f'{json.dumps(name)}: {about[:-1]}, "texts": [\n{texts}]}}')
    (REFERENCES / "family_heads.json").write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


def main() -> None:
    frozen, members = {}, {}
    for seed, (name, (family, task)) in enumerate(models().items(), 101):
        frozen[name], head = make(name, family, task, seed)
        with tempfile.TemporaryDirectory() as folder:
            one = frozen[name]
            path = build_folder(pathlib.Path(folder) / name, one["base"], one["prefix"], one["config"], head)
            one["texts"], outputs = freeze(name, task, path)
        members |= {f"{name}:head:{key}": array for key, array in head.items()} | outputs
    np.savez_compressed(REFERENCES / "family_heads.npz", **members)
    write(frozen)


def answers() -> None:
    frozen = json.loads((REFERENCES / "family_heads.json").read_text())
    for name, (_, task) in models().items():
        if task == "question":
            with tempfile.TemporaryDirectory() as folder:
                model, tokenizer = read_back(head_folder(pathlib.Path(folder) / name, name), name)
            pipe = transformers.pipeline("question-answering", model=model, tokenizer=tokenizer)
            for row in frozen[name]["texts"]:
                found = pipe(question=row["text"][0], context=row["text"][1], top_k=5)
                row["answers"] = [[one["answer"], float(one["score"]), one["start"], one["end"]] for one in found]
    write(frozen)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    answers() if sys.argv[1:] == ["answers"] else main()
