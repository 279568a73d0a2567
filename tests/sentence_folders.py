"""Tiny folders of sentence-transformers and model2vec, written as their models are published.

Base models and weights of modules are drawn by name; the tokenizer is that of bert-sentences with its first words.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from tests.drawing import draw_tensor, write_model
from tests.places import MODELS

VOCAB = 67  # as the drawn models have
POOLING, DENSE = "sentence_transformers.models.Pooling", "sentence_transformers.models.Dense"
NORMALIZE = ("sentence_transformers.models.Normalize", None, {})  # whose folder is often absent
NEWER_NORMALIZE = "sentence_transformers.base.modules.normalize.Normalize"
LAYER_NORM = "sentence_transformers.sentence_transformer.modules.layer_norm.LayerNorm"
IDENTITY = "torch.nn.modules.linear.Identity"
OLD_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


class Folder(NamedTuple):
    """A folder: its base model, and the type, the config.json and the tensors of each further module.

    base     the kind and the name of a drawn model; None: none, but a table
    prompts  config_sentence_transformers.json
    card     the text of README.md
    ends     whether the tokenizer adds its end token alone, and pads on the left, as for a decoder
    """

    base: tuple[str, str] | None
    modules: tuple[tuple[str, dict[str, Any] | None, dict[str, tuple[int, ...]]], ...] = ()
    prompts: Mapping[str, Any] = MappingProxyType({})
    card: str = ""
    ends: bool = False


def old_pooling(mode: str, width: int = 24) -> tuple[str, dict[str, Any], dict]:
    """A Pooling by the keys of older versions."""
    flags = {f"pooling_mode_{name}": name.startswith(mode) for name in OLD_MODES}
    return POOLING, {"word_embedding_dimension": width, **flags, "include_prompt": True}, {}


def dense(rows: int, columns: int, bias: bool = True, **config: Any) -> tuple[str, dict[str, Any], dict]:
    """A Dense layer of sizes (in, out)."""
    tensors: dict[str, tuple[int, ...]] = {"linear.weight": (columns, rows)}
    tensors |= {"linear.bias": (columns,)} if bias else {}
    tensors |= {"residual.weight": (columns, rows)} if config.get("use_residual") and rows != columns else {}
    return DENSE, {"in_features": rows, "out_features": columns, "bias": bias, **config}, tensors


RETRIEVAL = "Given a web search query, retrieve relevant passages that answer the query"
FOLDERS = {
    "nomic": Folder(("embedders", "nomic_bert"), (old_pooling("mean_tokens"),), card="# trained with Matryoshka"),
    "gemma": Folder(  # EmbeddingGemma
        ("embedders", "embeddinggemma"),
        (
            old_pooling("mean_tokens"),
            dense(24, 31, False, activation_function=IDENTITY),
            dense(31, 24, False, activation_function=IDENTITY),
            NORMALIZE,
        ),
        {
            "prompts": {"query": "task: search result | query: ", "document": "title: none | text: "},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    ),
    "qwen": Folder(  # Qwen3-Embedding
        ("decoders", "qwen3"),
        (old_pooling("lasttoken"), NORMALIZE),
        {"prompts": {"query": f"Instruct: {RETRIEVAL}\nQuery:", "document": ""}, "default_prompt_name": None},
        ends=True,
    ),
    "harrier": Folder(  # a causal Gemma 3, whose queries alone have an instruction
        ("decoders", "gemma3"),
        (old_pooling("lasttoken"), NORMALIZE),
        {"prompts": {"web_search_query": f"Instruct: {RETRIEVAL}\nQuery: "}},
        ends=True,
    ),
    "bge": Folder(("embedders", "gte"), (old_pooling("cls_token"), NORMALIZE)),
    "every": Folder(  # all kinds of modules
        ("embedders", "jina_embeddings_v3"),
        (
            (POOLING, {"embedding_dimension": 24, "pooling_mode": ["mean", "cls"], "include_prompt": False}, {}),
            dense(48, 10, use_residual=True),
            dense(10, 10, activation_function="torch.nn.modules.activation.ReLU", use_residual=True),
            (LAYER_NORM, {"dimension": 10}, {"norm.weight": (10,), "norm.bias": (10,)}),
            (NEWER_NORMALIZE, {"module_input_name": "sentence_embedding"}, {}),
        ),
        {"prompts": {"query": "search: ", "document": "text: "}, "default_prompt_name": "document", "truncate_dim": 6},
    ),
    "tokens": Folder(  # modules that read the vector of each token, before the mean of all
        ("embedders", "eurobert"),
        (
            dense(24, 8, module_input_name="token_embeddings"),
            (NEWER_NORMALIZE, {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}, {}),
            old_pooling("mean_tokens", 8),
        ),
    ),
    "static": Folder(None, (NORMALIZE,)),
}


def tokenizer_json(ends: bool = False, most: int | None = None) -> dict[str, Any]:
    """The tokenizer of bert-sentences with its first words; most: tokens, as its truncation states."""
    document = json.loads((MODELS / "bert-sentences" / "tokenizer.json").read_text())
    vocab = document["model"]["vocab"]
    document["model"]["vocab"] = {word: id for word, id in vocab.items() if id < VOCAB}
    document["truncation"] = document["truncation"] | {"max_length": most} if most else None
    document["padding"] = None
    if ends:
        last = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
        document["post_processor"] |= {"single": last, "pair": last}
    return document


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def write_tokenizer(folder: Path, ends: bool = False, most: int | None = None) -> None:
    write_json(folder / "tokenizer.json", tokenizer_json(ends, most))
    words = {"unk_token": "[UNK]", "pad_token": "[PAD]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    words |= {"eos_token": "[SEP]", "padding_side": "left"} if ends else {"cls_token": "[CLS]"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 40, **words}
    write_json(folder / "tokenizer_config.json", settings)


def write_sentences(name: str, folder: Path, dtype: type = np.float32) -> Path:
    """Write a folder of the table."""
    base, modules, prompts, card, ends = FOLDERS[name]
    folder.mkdir(exist_ok=True)
    first = "sentence_transformers.models.Transformer"
    if base is None:
        first = "sentence_transformers.models.StaticEmbedding"
        table = draw_tensor("embedding.weight", (VOCAB, 12), 0).astype(dtype)
        safetensors.numpy.save_file({"embedding.weight": table}, folder / "model.safetensors")
        write_json(folder / "tokenizer.json", tokenizer_json(most=9))
    else:
        write_model(base[1], folder, dtype, base[0])
        write_tokenizer(folder, ends)
    write_modules(folder, first, modules, dtype)
    if prompts:
        write_json(folder / "config_sentence_transformers.json", dict(prompts))
    if card:
        (folder / "README.md").write_text(card)
    return folder


def write_modules(folder: Path, first: str, modules: Any, dtype: type) -> None:
    """Write modules.json, and the folder of each module after the first."""
    entries = [{"idx": 0, "name": "0", "path": "", "type": first}]
    for number, (kind, config, shapes) in enumerate(modules, start=1):
        place = f"{number}_{kind.rpartition('.')[2]}"
        entries.append({"idx": number, "name": str(number), "path": place, "type": kind})
        if config is not None:
            write_json(folder / place / "config.json", config)
        if shapes:
            tensors = {key: draw_tensor(f"{place}/{key}", shape, 1).astype(dtype) for key, shape in shapes.items()}
            safetensors.numpy.save_file(tensors, folder / place / "model.safetensors")
    write_json(folder / "modules.json", entries)


MODEL2VEC = {  # name -> its config.json, and whether its table is quantized, mapped and weighted
    "potion": ({"model_type": "model2vec", "normalize": True, "apply_pca": 12, "seq_length": 1000000}, False, False),
    "potion-mapped": ({"normalize": False, "apply_pca": None, "max_length": 6}, False, True),
    "potion-int8": ({"model_type": "model2vec", "normalize": True, "apply_pca": 12}, True, False),
}


def write_model2vec(name: str, folder: Path) -> Path:
    """Write a folder as model2vec saves it."""
    config, is_int8, is_mapped = MODEL2VEC[name]
    folder.mkdir(exist_ok=True)
    table = draw_tensor("embeddings", (20 if is_mapped else VOCAB, 12), 0)
    tensors = {"embeddings": (table * 40).astype(np.int8) if is_int8 else table}
    if is_mapped:  # several ids share a row, each with a weight of its own
        tensors["mapping"] = (np.arange(VOCAB) * 7 % 20).astype(np.int64)
        tensors["weights"] = 1 + np.abs(draw_tensor("weights", (VOCAB,), 0))
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    write_json(folder / "tokenizer.json", tokenizer_json())
    write_json(folder / "config.json", config)
    entries = [{"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}]
    normalize = {"idx": 1, "name": "1", "path": "1_Normalize", "type": "sentence_transformers.models.Normalize"}
    write_json(folder / "modules.json", [*entries, *[normalize] * config["normalize"]])
    return folder


MARKED = {"[Q] ": VOCAB - 2, "[D] ": VOCAB - 1}  # tokens that end with a space, in place of the last words
LATE = {  # name -> base, its modules, and files with their content
    "pylate": (
        ("embedders", "nomic_bert"),
        (("pylate.models.Dense.Dense", *dense(24, 8, False, activation_function=IDENTITY)[1:]),),
        {
            "config_sentence_transformers.json": {
                "model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 12,
                "document_length": 14, "do_query_expansion": True, "attend_to_expansion_tokens": False,
                "skiplist_words": ["a", "the", "."], "prompts": {}, "similarity_fn_name": "MaxSim",
            },
        },
    ),
    "pylate-residual": (  # two layers, the second with a residual; fills that are attended to
        ("embedders", "eurobert"),
        (("pylate.models.Dense.Dense", *dense(24, 8, False, activation_function=IDENTITY)[1:]),
         ("pylate.models.Dense.Dense", *dense(8, 6, False, activation_function=IDENTITY, use_residual=True)[1:])),
        {
            "config_sentence_transformers.json": {
                "model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 16,
                "document_length": 20, "attend_to_expansion_tokens": True, "skiplist_words": [], "prompts": {},
            },
        },
    ),
    "pylate-plain": (  # queries that are not filled up
        ("embedders", "gte"),
        (("pylate.models.Dense.Dense", *dense(24, 8, False, activation_function=IDENTITY)[1:]),),
        {
            "config_sentence_transformers.json": {
                "model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 12,
                "document_length": 14, "do_query_expansion": False, "skiplist_words": ["b"], "prompts": {},
            },
        },
    ),
    "native": (  # MultiVectorEncoder of sentence-transformers
        ("embedders", "jina_embeddings_v3"),
        (dense(24, 8, False, activation_function=IDENTITY, module_input_name="token_embeddings"),
         ("sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
          {"skiplist_words": ["the", "on"], "skiplist_tasks": ["document"], "keep_only_token_ids": None}, {}),
         (NEWER_NORMALIZE, {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}, {})),
        {
            "config_sentence_transformers.json": {
                "model_type": "MultiVectorEncoder", "prompts": {"query": "[Q] ", "document": "[D] "},
                "default_prompt_name": None, "similarity_fn_name": "maxsim",
            },
            "sentence_bert_config.json": {
                "document_length": 14,
                "query_expansion": {"strategy": "min", "attend": False, "length": 9, "token": None},
            },
        },
    ),
}  # fmt: skip


def marked_tokenizer(normalized: bool = False) -> dict[str, Any]:
    """The tokenizer with [Q] and [D] as added tokens in place of the last words."""
    document = tokenizer_json()
    document["model"]["vocab"] = {word: id for word, id in document["model"]["vocab"].items() if id < VOCAB - 2}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized, "special": False}
    document["added_tokens"] += [{"id": id, "content": word, **plain} for word, id in MARKED.items()]
    return document


def write_late(name: str, folder: Path, dtype: type = np.float32) -> Path:
    """Write the folder of a model of late interaction."""
    base, modules, files = LATE[name]
    folder.mkdir(exist_ok=True)
    write_model(base[1], folder, dtype, base[0])
    write_tokenizer(folder)
    write_json(folder / "tokenizer.json", marked_tokenizer())
    first = "sentence_transformers.models.Transformer"
    first = "sentence_transformers.base.modules.transformer.Transformer" if name == "native" else first
    write_modules(folder, first, modules, dtype)
    for path, content in files.items():
        write_json(folder / path, content)
    return folder


def write_stanford(folder: Path, dtype: type = np.float32) -> Path:
    """Write a folder of ColBERT's own code: a BERT with a `linear.weight` beside it, and artifact.metadata."""
    folder.mkdir(exist_ok=True)
    for path in (MODELS / "bert-sentences").iterdir():
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    write_json(folder / "config.json", config)
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors = {f"bert.{key.removeprefix('bert.')}": one.astype(dtype) for key, one in tensors.items()}
    tensors["linear.weight"] = draw_tensor("linear.weight", (8, config["hidden_size"]), 1).astype(dtype)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {"query_token_id": "book", "doc_token_id": "cat", "query_maxlen": 10, "doc_maxlen": 13}
    write_json(folder / "artifact.metadata", settings | {"attend_to_mask_tokens": False, "mask_punctuation": True})
    return folder
