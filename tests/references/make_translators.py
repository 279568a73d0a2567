"""Tiny encoder-decoders with BART's tensors and what transformers makes of them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_translators.py

writes translators.json, each model's config.json and generation_config.json, the shapes of its tensors as transformers
saves them, and the texts that it generates; and translators.npz, what it computes in eager attention. The weights are
those of tests/drawing.py, which draws them by name, so no file holds them. Members of the .npz begin with the name of
the model:

    source, ids                (1, S) and (1, T) tokens of a source and of a target
    batch.source, batch.mask   (3, 9) sources padded on the right, and 1 where a token is; batch.ids (3, 5) targets
    encoder.N, decoder.N       (1, S, D) and (1, T, D) states in float64: 0 = embeddings, N = after layer N; the last
                               ones are after the norm at the end, if there is one
    logits, batch.logits       (.., T, V) in float64 (.f64) and float32 (.f32), or the labels of a classifier (.., C)

In the float64 model every part is computed in float64: see make_decoders.py. It writes besides a whole small model of
NLLB beside its tokenizer, in tests/transcripts/inputs/nllb, and nllb.json, what transformers translates by it.
"""

import json
import pathlib
import tempfile

import numpy as np
import safetensors.numpy
import torch
import transformers
from make_decoders import in_double, write_weights

HERE = pathlib.Path(__file__).parent
VOCAB = 67
SIZES = {
    "vocab_size": VOCAB,
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_layers": 3,
    "decoder_attention_heads": 3,
    "decoder_ffn_dim": 29,
    "max_position_embeddings": 23,
}
TEXT, LABELS = "ForConditionalGeneration", "ForSequenceClassification"
MODELS = {  # name -> family, kind of model, configuration
    "bart": ("Bart", TEXT, SIZES),
    "bart-untied": (
        "Bart",
        TEXT,
        SIZES | {"scale_embedding": True, "activation_function": "relu", "tie_word_embeddings": False},
    ),
    "bart-bare": ("Bart", "Model", SIZES),
    "bart-labels": ("Bart", LABELS, SIZES | {"id2label": {0: "no", 1: "maybe", 2: "yes"}}),
    "mbart": ("MBart", TEXT, SIZES | {"scale_embedding": True, "decoder_start_token_id": 61}),
    "m2m_100": ("M2M100", TEXT, SIZES),
    "m2m_100-padding": ("M2M100", TEXT, SIZES | {"pad_token_id": 5, "scale_embedding": False}),
}
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


def save(kind: type, values: dict, folder: pathlib.Path) -> tuple[dict, dict]:
    """Save a model with drawn weights; its configuration and the shapes of its tensors."""
    model = kind(kind.config_class(**values))
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    shapes = {key: list(tensor.shape) for key, tensor in sorted(safetensors.numpy.load_file(path).items())}
    write_weights(folder, "bart", shapes, np.float32)
    config = json.loads((folder / "config.json").read_text())
    return {key: one for key, one in config.items() if key != "transformers_version"}, shapes


def inputs(name: str, padding: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(name))
    batch, mask = rng.integers(6, VOCAB, (3, 9)), np.ones((3, 9), np.int64)
    ends = {"source": rng.integers(6, VOCAB, (1, 11)), "ids": rng.integers(6, VOCAB, (1, 8))}
    for row, count in enumerate((9, 5, 7)):
        batch[row, count - 1] = 2
        batch[row, count:], mask[row, count:] = padding, 0
    ends["source"][:, -1] = 2
    return ends | {"batch.source": batch, "batch.mask": mask, "batch.ids": rng.integers(6, VOCAB, (3, 5))}


def compute(kind: type, folder: pathlib.Path, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """What a model computes of a source and a target."""
    precision = torch.float64 if dtype == "f64" else torch.float32
    model = kind.from_pretrained(folder, attn_implementation="eager", dtype=precision).eval()
    given = {key: torch.tensor(one) for key, one in given.items()}
    targets = {} if kind.__name__.endswith(LABELS) else {"decoder_input_ids": given["ids"]}
    more = {} if kind.__name__.endswith(LABELS) else {"decoder_input_ids": given["batch.ids"]}
    with torch.no_grad():
        one = model(given["source"], output_hidden_states=True, **targets)
        batch = model(given["batch.source"], attention_mask=given["batch.mask"], **more)
    name = "logits" if hasattr(one, "logits") else "last_hidden_state"
    found = {f"logits.{dtype}": getattr(one, name), f"batch.logits.{dtype}": getattr(batch, name)}
    if dtype == "f64":
        for stack in ("encoder", "decoder"):
            found |= {f"{stack}.{at}": state for at, state in enumerate(getattr(one, f"{stack}_hidden_states"))}
    return {key: tensor.numpy() for key, tensor in found.items()}


def generate(kind: type, folder: pathlib.Path, source: np.ndarray) -> list[dict]:
    """The tokens that are generated of a source, with each of the options."""
    model = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64).eval()
    texts = []
    for options in TEXTS:
        ids = model.generate(torch.tensor(source), max_new_tokens=NEW, do_sample=False, **options)
        texts.append({"options": options, "ids": ids[0].tolist()})
    return texts


def write_nllb() -> None:
    """A model for the tokenizer that make_languages.py wrote, with its files, and some translations."""
    folder = HERE.parent / "transcripts" / "inputs" / "nllb"
    kind = transformers.M2M100ForConditionalGeneration
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 2}
    config, _ = save(kind, {"vocab_size": 116, "max_position_embeddings": 64, **sizes, **heads}, folder)
    written = {"config": config, "tokenizer_config": {"tokenizer_class": "NllbTokenizer"}}
    for name, values in written.items():
        (folder / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")
    (folder / "generation_config.json").unlink()
    model, rows = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64).eval(), []
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


def main() -> None:
    table, arrays = {}, {}
    for name, (family, what, values) in MODELS.items():
        kind = getattr(transformers, family + what)
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            config, shapes = save(kind, values, folder)
            given = inputs(name, config["pad_token_id"])
            found = compute(kind, folder, given, "f32")
            write_weights(folder, "bart", shapes, np.float64)
            with in_double():
                found |= compute(kind, folder, given, "f64")
                texts = generate(kind, folder, given["source"]) if what == TEXT else []
            written = folder / "generation_config.json"
            begins = json.loads(written.read_text()) if written.exists() else {}
        for text in texts:
            print(name, text)
        begins.pop("transformers_version", None)
        table[name] = {"config": config, "generation": begins, "shapes": shapes, "texts": texts}
        arrays |= {f"{name}/{key}": one for key, one in (given | found).items()}
    (HERE / "translators.json").write_text(json.dumps(table, indent=1) + "\n")
    np.savez_compressed(HERE / "translators.npz", **arrays)


if __name__ == "__main__":
    write_nllb()
    main()
