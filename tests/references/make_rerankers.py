"""Rerankers with drawn weights and a tokenizer like Qwen's, and the scores of their libraries, frozen.

    pip install torch==2.13.0 transformers==5.23.0 tokenizers==0.23.3 sentence-transformers==6.2.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_rerankers.py
    pip install transformers==4.57.6 tokenizers==0.22.2   # the last one that mxbai-rerank runs with
    pip install --no-deps mxbai-rerank==0.1.6 batched==0.1.5
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_rerankers.py mxbai

writes in rerankers/ tokenizer.json and rerankers.json: the query and the documents, `models`, the config.json of each
model and the shapes of its tensors (tests/drawing.py draws them by name), and `cases`, each with its model, other
`files` of its folder, the instruction, and in float64 the `scores`, and the `logits` before the function of the model.

Qwen3-Reranker is computed as its model card does, mxbai-rerank v2 by its package, all others by the CrossEncoder of
sentence-transformers. The same bytes come out of every run.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import safetensors.numpy
import tokenizers
import torch
import transformers
from drawn_tables import in_double, save
from make_models import LINES

from attnkit.generation.answer_prompts import PROMPTS
from tests.drawing import draw_tensors

HERE = pathlib.Path(__file__).parent
FOLDER, BERT = HERE / "rerankers", HERE / "models" / "bert-rank"  # of which the cross-encoders have the tokenizer
SIZE = 420
LONGEST = 512
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<think>", "</think>")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QUERY = "where did the hare and the fox sit in the morning?"
DOCUMENTS = [
    "In the morning the two of them sat on the bank and counted the boats.",
    "The café on the corner opens at 7:30 and closes at 22:15.",
    "The river was cold and the hare was thirsty, so the fox went along.",
    "",
    " no yes  <Document>: {query} <|im_end|> 1 0",
    "日本語 🙂",
    "She paid 12 euros for the book, and 3 more for the tea. " * 12,
]
INSTRUCTION = "Find the line of the story that answers the question"
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'system' %}"
    "<|im_start|>system\n{{ message.content }}<|im_end|>\n"
    "{% elif message.role == 'query' %}<|im_start|>user\n<Query>: {{ message.content }}\n"
    "{% elif message.role == 'document' %}<Document>: {{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
STRUCTURED = TEMPLATE.replace("{{ message.content }}", "{{ message.content[0].text }}")
OWN = {
    "qwen": {"tokenizer_class": "Qwen2Tokenizer", "pad_token": SPECIAL[0], "eos_token": SPECIAL[2]},
    "bert": json.loads((BERT / "tokenizer_config.json").read_text()),
}
TRANSFORMER = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
]
IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"
QWEN = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": SIZE, "max_position_embeddings": LONGEST, "tie_word_embeddings": True,
    "bos_token_id": SIZE - 5, "eos_token_id": SIZE - 3, "pad_token_id": SIZE - 5,
}  # fmt: skip
MODELS = {
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 8} | QWEN,
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"} | QWEN,
    "bert": {
        "architectures": ["BertForSequenceClassification"], "model_type": "bert", "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 95,
        "max_position_embeddings": LONGEST, "id2label": {"0": "LABEL_0"}, "pad_token_id": 0,
    },
}  # fmt: skip


def train_tokenizer(path: pathlib.Path) -> None:
    """Byte pairs of Qwen2's pattern, with its special tokens last."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    pattern = tokenizers.pre_tokenizers.Split(tokenizers.Regex(SPLIT), "isolated")
    library.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [pattern, tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    library.normalizer, library.decoder = tokenizers.normalizers.NFC(), tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=SIZE - len(SPECIAL) - len(ADDED),
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator([*LINES, *["yes\nno\nquery document"] * 40], trainer)
    library.add_special_tokens([*SPECIAL])
    library.add_tokens([*ADDED])
    assert library.get_vocab_size() == SIZE and {"yes", "no", "0", "1"} <= {*library.get_vocab()}
    library.save(str(path))


def write_folder(folder: pathlib.Path, model: dict, files: dict) -> None:
    """A folder as it is published: weights, tokenizer, and the files of a case."""
    (folder / "config.json").write_text(json.dumps(model["config"]))
    tensors = draw_tensors(model["config"]["model_type"], model["shapes"])
    tensors = {name: np.asarray(one, np.float64) for name, one in tensors.items()}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    is_bert = model["config"]["model_type"] == "bert"
    (folder / "tokenizer.json").write_bytes(((BERT if is_bert else FOLDER) / "tokenizer.json").read_bytes())
    for name, content in ({"tokenizer_config.json": OWN["bert" if is_bert else "qwen"]} | files).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if name == "config.json":
            content = json.loads(path.read_text()) | content
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def by_model_card(folder: pathlib.Path, instruction: str | None) -> tuple[list[float], list[float]]:
    """Qwen3-Reranker: three parts of ids, and the probabilities of no and yes at the last position."""
    prompt = PROMPTS["qwen3-reranker"]
    before, _, after = prompt.pieces
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    yes, no = (tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))
    prefix, suffix = (tokenizer.encode(one.text, add_special_tokens=False) for one in (before, after))
    task = instruction or prompt.instruction
    pairs = [f"<Instruct>: {task}\n<Query>: {QUERY}\n<Document>: {text}" for text in DOCUMENTS]
    room = LONGEST - len(prefix) - len(suffix)
    inputs = tokenizer(pairs, padding=False, truncation="longest_first", max_length=room, return_attention_mask=False)
    rows = {"input_ids": [prefix + row + suffix for row in inputs["input_ids"]]}
    padded = tokenizer.pad(rows, padding=True, return_tensors="pt")
    with torch.no_grad():
        last = model(**padded).logits[:, -1]
    chosen = torch.stack([last[:, no], last[:, yes]], dim=1)
    return (last[:, yes] - last[:, no]).tolist(), chosen.softmax(dim=1)[:, 1].tolist()


def by_mxbai(folder: pathlib.Path, instruction: str | None) -> tuple[list[float], list[float]]:
    """The package mxbai-rerank: the difference of the logits of 1 and 0."""
    from mxbai_rerank import MxbaiRerankV2

    reranker = MxbaiRerankV2(str(folder), device=None, torch_dtype=torch.float64, max_length=LONGEST)
    inputs = reranker.prepare_inputs([QUERY] * len(DOCUMENTS), DOCUMENTS, instruction=instruction)
    with torch.no_grad():
        logits = reranker.forward(**inputs).logits.tolist()
    assert np.allclose(
        logits, reranker.predict([QUERY] * len(DOCUMENTS), DOCUMENTS, instruction=instruction), rtol=1e-6
    )
    return logits, logits


def by_sentence_transformers(folder: pathlib.Path, instruction: str | None) -> tuple[list[float], list[float]]:
    """The CrossEncoder, with its own function and without."""
    import sentence_transformers

    reranker = sentence_transformers.CrossEncoder(str(folder), device="cpu").double()
    pairs = [(QUERY, text) for text in DOCUMENTS]
    functions = (torch.nn.Identity(), None)
    found = [reranker.predict(pairs, activation_fn=one, prompt=instruction, batch_size=1) for one in functions]
    ranked = [row["corpus_id"] for row in reranker.rank(QUERY, DOCUMENTS, prompt=instruction, batch_size=1)]
    assert len({*found[1].tolist()}) < len(DOCUMENTS) or ranked == np.argsort(-found[0], kind="stable").tolist()
    return found[0].tolist(), found[1].tolist()


def score_files(true: int, false: int | None, template: str, **settings) -> dict:
    """The files of a LogitScore beside a model."""
    score = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    modules = [*TRANSFORMER, {"idx": 1, "name": "1", "path": "1_LogitScore", "type": score}]
    message = {"method": "forward", "method_output_name": "logits", "format": "flat"}
    if template is STRUCTURED:
        message["format"] = "structured"
    config = {
        "transformer_task": "text-generation",
        "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}, "message": message},
        "module_output_name": "causal_logits",
    }
    return {
        "modules.json": modules,
        "1_LogitScore/config.json": {"true_token_id": true, "false_token_id": false},
        "chat_template.jinja": template,
        "sentence_bert_config.json": config,
        "config_sentence_transformers.json": {"model_type": "CrossEncoder", **settings},
    }


def list_cases(yes: int, no: int) -> dict[str, tuple]:
    """A name -> how it is computed, its model, its files and its instruction."""
    other = {"prompts": {"judge": INSTRUCTION}, "default_prompt_name": "judge"}
    limits = {kind: {"tokenizer_config.json": one | {"model_max_length": 90}} for kind, one in OWN.items()}
    stated = {"sentence_transformers": {"activation_fn": IDENTITY}}
    old = {"sbert_ce_default_activation_function": IDENTITY}
    return {
        "qwen3": (by_model_card, "qwen3", {}, None),
        "qwen3-instruction": (by_model_card, "qwen3", {}, INSTRUCTION),
        "mxbai": (by_mxbai, "qwen2", {}, None),
        "mxbai-instruction": (by_mxbai, "qwen2", {}, INSTRUCTION),
        "stated": (by_sentence_transformers, "qwen3", score_files(yes, no, TEMPLATE), None),
        "stated-instruction": (by_sentence_transformers, "qwen3", score_files(yes, no, TEMPLATE), INSTRUCTION),
        "stated-prompt": (by_sentence_transformers, "qwen3", score_files(yes, no, STRUCTURED, **other), None),
        "stated-yes": (
            by_sentence_transformers, "qwen2", score_files(yes, None, TEMPLATE, activation_fn=IDENTITY), None,
        ),
        "stated-cut": (
            by_sentence_transformers, "qwen3", score_files(yes, no, TEMPLATE) | limits["qwen"], None,
        ),
        "cross": (by_sentence_transformers, "bert", {}, None),
        "cross-cut": (by_sentence_transformers, "bert", limits["bert"], None),
        "cross-identity": (by_sentence_transformers, "bert", {"config.json": stated}, None),
        "cross-old": (by_sentence_transformers, "bert", {"config.json": old}, None),
        "cross-settings": (
            by_sentence_transformers, "bert",
            {"config.json": stated, "config_sentence_transformers.json": {"activation_fn": SIGMOID}}, None,
        ),
        "cross-modules": (
            by_sentence_transformers, "bert",
            {
                "config.json": stated,
                "config_sentence_transformers.json": {"model_type": "CrossEncoder", "activation_fn": SIGMOID},
                "modules.json": TRANSFORMER,
                "sentence_bert_config.json": {
                    "transformer_task": "sequence-classification",
                    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
                    "module_output_name": "scores",
                },
            },
            None,
        ),
        "cross-code": (
            by_sentence_transformers, "bert",
            {"config.json": {"sentence_transformers": {"activation_fn": "mine.Scaled"}}}, None,
        ),
    }  # fmt: skip


def start() -> dict:
    """The tokenizer and the models, without cases."""
    FOLDER.mkdir(exist_ok=True)
    train_tokenizer(FOLDER / "tokenizer.json")
    models = {}
    for name, config in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            written, shapes = save(config, pathlib.Path(folder))
        models[name] = {"config": written, "shapes": shapes}
    return {"query": QUERY, "documents": DOCUMENTS, "models": models, "cases": {}}


def main(is_mxbai: bool) -> None:
    path = FOLDER / "rerankers.json"
    frozen = json.loads(path.read_text(encoding="utf-8")) if is_mxbai else start()
    vocabulary = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json")).get_vocab()
    for name, (compute, model, files, instruction) in list_cases(vocabulary["yes"], vocabulary["no"]).items():
        if (compute is by_mxbai) != is_mxbai:
            continue
        with tempfile.TemporaryDirectory() as place:
            write_folder(pathlib.Path(place), frozen["models"][model], files)
            with in_double():
                logits, scores = compute(pathlib.Path(place), instruction)
        row = {"model": model, "files": files, "instruction": instruction, "logits": logits, "scores": scores}
        frozen["cases"][name] = row
    path.write_text(json.dumps(frozen, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    main(sys.argv[1:] == ["mxbai"])
