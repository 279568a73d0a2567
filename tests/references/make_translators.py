"""Tiny encoder-decoders with BART's tensors and what transformers makes of them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_translators.py

completes translators.json, each model's config.json and generation_config.json, the shapes of its tensors, and the
texts that it generates (see drawn_tables.py), and writes translators.npz, what it computes in eager attention. Members
begin with the name of the model:

    source, ids                (1, S) and (1, T) tokens of a source and of a target
    batch.source, batch.mask   (3, 9) sources padded on the right, and 1 where a token is; batch.ids (3, 5) targets
    encoder.N, decoder.N       (1, S, D) and (1, T, D) states in float64: 0 = embeddings, N = after layer N; the last
                               ones are after the norm at the end, if there is one
    logits, batch.logits       (.., T, V) in float64 (.f64) and float32 (.f32), or the labels of a classifier (.., C)

In the float64 model every part is computed in float64: see drawn_tables.py. It writes besides a whole small model of
NLLB beside its tokenizer, in tests/transcripts/inputs/nllb, and nllb.json, what transformers translates by it.
"""

import json
import pathlib

import numpy as np
import torch
import transformers
from drawn_tables import HERE, freeze, load, save

VOCAB = 67
TEXTS = [  # options of generate
    {},
    {"num_beams": 3},
    {"forced_bos_token_id": 62, "num_beams": 4, "length_penalty": 0.6},
    {"no_repeat_ngram_size": 2, "min_new_tokens": 7},
    {"no_repeat_ngram_size": 3, "min_new_tokens": 9, "num_beams": 3},
]
NEW, MORE = 11, {"max_new_tokens": 12, "no_repeat_ngram_size": 2}
TRANSLATIONS = [  # text, its language, and that of the translation
    ("the cat reads a book", "eng_Latn", "fra_Latn"),
    ("the cat reads a book", "deu_Latn", "fra_Latn"),
    ("la gare est près de la rivière", "fra_Latn", "zho_Hans"),
]


def inputs(name: str, row: dict) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(name))
    batch, mask = rng.integers(6, VOCAB, (3, 9)), np.ones((3, 9), np.int64)
    ends = {"source": rng.integers(6, VOCAB, (1, 11)), "ids": rng.integers(6, VOCAB, (1, 8))}
    for at, count in enumerate((9, 5, 7)):
        batch[at, count - 1] = 2
        batch[at, count:], mask[at, count:] = row["config"]["pad_token_id"], 0
    ends["source"][:, -1] = 2
    return ends | {"batch.source": batch, "batch.mask": mask, "batch.ids": rng.integers(6, VOCAB, (3, 5))}


def compute(folder: pathlib.Path, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """What a model computes of a source and a target."""
    model, given = load(folder, dtype), {key: torch.tensor(one) for key, one in given.items()}
    has_labels = type(model).__name__.endswith("Classification")
    targets = {} if has_labels else {"decoder_input_ids": given["ids"]}
    more = {} if has_labels else {"decoder_input_ids": given["batch.ids"]}
    with torch.no_grad():
        one = model(given["source"], output_hidden_states=True, **targets)
        batch = model(given["batch.source"], attention_mask=given["batch.mask"], **more)
    name = "logits" if hasattr(one, "logits") else "last_hidden_state"
    found = {f"logits.{dtype}": getattr(one, name), f"batch.logits.{dtype}": getattr(batch, name)}
    if dtype == "f64":
        for stack in ("encoder", "decoder"):
            found |= {f"{stack}.{at}": state for at, state in enumerate(getattr(one, f"{stack}_hidden_states"))}
    return {key: tensor.numpy() for key, tensor in found.items()}


def generate(folder: pathlib.Path, given: dict[str, np.ndarray], name: str) -> dict:
    """The settings of generation, and the tokens that are generated of a source with each of the options."""
    written = folder / "generation_config.json"
    settings = json.loads(written.read_text()) if written.exists() else {}
    settings.pop("transformers_version", None)
    model, texts = load(folder, "f64"), []
    for options in TEXTS if hasattr(model, "lm_head") else ():
        ids = model.generate(torch.tensor(given["source"]), max_new_tokens=NEW, do_sample=False, **options)
        texts.append({"options": options, "ids": ids[0].tolist()})
    return {"generation": settings, "texts": texts}


def write_nllb() -> None:
    """A model for the tokenizer that make_languages.py wrote, with its files, and some translations."""
    folder = HERE.parent / "transcripts" / "inputs" / "nllb"
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2, "vocab_size": 116}
    kind = {"architectures": ["M2M100ForConditionalGeneration"], "max_position_embeddings": 64}
    config, _ = save(kind | sizes, folder, "bart")
    written = {"config": config, "tokenizer_config": {"tokenizer_class": "NllbTokenizer"}}
    for name, values in written.items():
        (folder / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")
    (folder / "generation_config.json").unlink()
    model, rows = load(folder, "f64"), []
    for text, source, target in TRANSLATIONS:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, src_lang=source)
        first = tokenizer.convert_tokens_to_ids(target)
        given = tokenizer(text, return_tensors="pt")
        for beams in (1, 3):
            ids = model.generate(**given, forced_bos_token_id=first, num_beams=beams, **MORE)[0]
            label = tokenizer(text_target=text)["input_ids"][1:-1]
            loss = model(**given, labels=torch.tensor([[first, *label, 2]])).loss.item()
            row = {"text": text, "source": source, "target": target, "beams": beams, "loss": loss}
            rows.append(row | {"ids": ids.tolist(), "written": tokenizer.decode(ids, skip_special_tokens=True)})
    (HERE / "nllb.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    write_nllb()
    freeze("translators", inputs, compute, generate, "bart")
