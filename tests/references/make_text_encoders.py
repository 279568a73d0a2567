"""Tiny text encoders beyond BERT and what transformers makes of them, frozen as make_models.py does.

    python tests/references/make_text_encoders.py [NAME...]

in the environment of make_models.py. Members of an .npz, each in float64 (.f64) and float32 (.f32):

    ids, types                  (1, T) token ids, and token types where the model has them
    batch_ids, batch_mask       (3, T) padded on the right, and 1 where a token is; outputs batch.*, zero at padding
    long_ids                    (1, T) past windows and exact buckets; outputs long.*
    hidden.N                    (B, T, D) states: 0 = embeddings, N = after layer N
    attentions.0                (1, H, T, T) weights of the first layer
    places                      (1201,) deberta-v3 only: the rows of the distances -600 to 600 in a published table
    logits, pooled              (B, T, V), (B, D), where the model has the head and the pooler; (B, T, 1) of a
                                discriminator

ModernBERT's rows of a batch are computed one by one: in the reference a padding query that may not attend to any key of
its window is NaN, and NaN spreads. Its softmax and rotations are float32 inside even when the model is float64,
and so is DeBERTa's scale of the scores.
"""

import json
import sys

import make_models as base
import numpy as np
import sentencepiece
import tokenizers
import torch
import transformers

TRICKY = [
    *base.TEXTS,
    "e\u0301 a\u0300 \u2167 \u00bd \u2460 \u1e9e \u0130stanbul \u01c5",
    "zero\u200bwidth\u200djoined\ufeff and\u00a0hard\u3000wide",
    "\u0645\u0631\u062d\u0628\u0627 \u05e2\u05d1\u05e8\u05d9\u05ea",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \ud55c\uad6d\uc5b4",
    "\U0001f44d\U0001f3fd \U0001f1eb\U0001f1f7 \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "the <mask> and [MASK], <s> </s> [SEP] <pad>",
]
PAIRS = [("The cat sat.", "It was reading!"), ("once", "upon a time")]


def freeze(name: str, model, rows: list[list[int]], pad: int, types=None, long: list[int] | None = None) -> None:
    """rows: the text, then two shorter ones."""
    ids, (batch_ids, batch_mask) = torch.tensor(rows[:1]), base.padded(rows, pad)
    extra = {} if types is None else {"token_type_ids": torch.tensor([types])}
    long_ids = None if long is None else torch.tensor([long])

    def parts(output) -> dict:
        last = {"hidden": output.hidden_states[-1] if "logits" in output else output.last_hidden_state}
        heads = {"logits": output.get("logits"), "pooled": output.get("pooler_output")}
        for key, value in heads.items():
            last |= {} if value is None else {key: value[..., None] if (key, value.dim()) == ("logits", 2) else value}
        return last

    def outputs(of):
        output = of(
            ids, attention_mask=torch.ones_like(ids), **extra, output_hidden_states=True, output_attentions=True
        )
        named = parts(output) | base.states("", output.hidden_states) | {"attentions.0": output.attentions[0]}
        if of.config.model_type == "modernbert":
            each = [of(torch.tensor([row]), output_hidden_states=True) for row in rows]
            batch = {key: base.side_by_side([parts(one)[key] for one in each]) for key in parts(each[0])}
        else:
            batch = parts(of(batch_ids, attention_mask=batch_mask, output_hidden_states=True))
        named |= {f"batch.{key}": value for key, value in base.masked(batch, batch_mask).items()}
        if long_ids is not None:
            longer = parts(of(long_ids, attention_mask=torch.ones_like(long_ids), output_hidden_states=True))
            named |= {f"long.{key}": value for key, value in longer.items()}
        return named

    members = {"ids": ids, "batch_ids": batch_ids, "batch_mask": batch_mask} | base.both(model, outputs)
    members |= {"types": extra["token_type_ids"]} if extra else {}
    members |= {} if long_ids is None else {"long_ids": long_ids}
    base.save(name, members)


def freeze_tokens(name: str, tokenizer, prompts: list[str]) -> None:
    """Tokens of tricky texts, and ids and types of pairs."""
    pairs = []
    for text, second in PAIRS:
        both = tokenizer(text, second, return_token_type_ids=True)
        pairs.append({"text": text, "second": second, "ids": both["input_ids"], "types": both["token_type_ids"]})
    base.tokens(name, tokenizer, [*TRICKY, *prompts], more={"pairs": pairs, "prompts": prompts})


def prompt_rows(name: str, tokenizer, mask: str) -> list[list[int]]:
    prompts = [f"The cat {mask} on the mat.", f"Once upon a {mask}", "reading"]
    freeze_tokens(name, tokenizer, prompts)
    return [tokenizer(text)["input_ids"] for text in prompts]


# RoBERTa, XLM-RoBERTa, CamemBERT ------------------------------------------------------------------------------------


def byte_pairs(folder, size: int) -> None:
    """vocab.json and merges.txt as RoBERTa's, <mask> last, and the tokenizer.json of the same."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size - 5, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(base.LINES, trainer)
    parts = json.loads(trained.to_str())["model"]
    words = ["<s>", "<pad>", "</s>", "<unk>", *sorted(parts["vocab"], key=parts["vocab"].get), "<mask>"]
    vocab = {word: index for index, word in enumerate(words)}
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in parts["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    merges = [tuple(merge) for merge in parts["merges"]]
    fast = transformers.RobertaTokenizer(vocab=vocab, merges=merges)
    fast.backend_tokenizer.save(str(folder / "tokenizer.json"))


def unigrams(size: int) -> list[tuple[str, float]]:
    """Pieces of a sentencepiece model with their scores, without its special ones."""
    path = base.MODELS / "pieces.model"
    base.sentence_pieces(path, base.LINES, size, "unigram", hard_vocab_limit=False)
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    path.unlink()
    pieces = range(model.get_piece_size())
    return [(model.id_to_piece(index), model.get_score(index)) for index in pieces if not model.is_control(index)]


def roberta(name: str, seed: int) -> None:
    folder = base.folder_of(name)
    byte_pairs(folder, 330)
    model = base.publish(folder, seed, std=0.2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    freeze(name, model, prompt_rows(name, tokenizer, "<mask>"), pad=1)


def xlm_roberta(name: str, seed: int) -> None:
    folder = base.folder_of(name)
    pieces = [piece for piece in unigrams(120) if piece[0] != "<unk>"]
    vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces, ("<mask>", 0.0)]
    fast = transformers.XLMRobertaTokenizer(vocab=vocab)
    fast.backend_tokenizer.save(str(folder / "tokenizer.json"))
    model = base.publish(folder, seed, std=0.2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    freeze(name, model, prompt_rows(name, tokenizer, "<mask>"), pad=1)


def camembert(name: str, seed: int) -> None:
    model = base.publish(base.folder_of(name), seed, std=0.2)
    freeze(name, model, base.draw(seed, 7, 60, 10, 6, 3), pad=1, types=[0] * 6 + [1] * 4)


# DistilBERT ---------------------------------------------------------------------------------------------------------


def distilbert(name: str, seed: int) -> None:
    folder = base.folder_of(name)
    base.word_pieces(folder)
    model = base.publish(folder, seed, std=0.2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    freeze(name, model, prompt_rows(name, tokenizer, "[MASK]"), pad=0)


# ALBERT -------------------------------------------------------------------------------------------------------------


def albert(name: str, seed: int) -> None:
    """albert: one layer three times; albert-groups: two groups of two layers for four layers, and a pooler."""
    folder = base.folder_of(name)
    if name == "albert-groups":
        rows = base.draw(seed, 5, 60, 10, 6, 3)
        freeze(name, base.publish(folder, seed, std=0.2), rows, pad=0, types=[0] * 6 + [1] * 4)
        return
    pieces = [piece for piece in unigrams(120) if piece[0] != "<unk>"]
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    vocab = [*((token, 0.0) for token in special), *pieces]
    fast = transformers.AlbertTokenizer(vocab=vocab)
    fast.backend_tokenizer.save(str(folder / "tokenizer.json"))
    model = base.publish(folder, seed, std=0.2)
    freeze(name, model, prompt_rows(name, transformers.AutoTokenizer.from_pretrained(folder), "[MASK]"), pad=0)


# ELECTRA ------------------------------------------------------------------------------------------------------------


def electra(name: str, seed: int) -> None:
    """electra: a generator, whose embeddings are projected; electra-discriminator: no projection."""
    folder = base.folder_of(name)
    base.word_pieces(folder)
    model = base.publish(folder, seed, std=0.2)
    freeze(name, model, prompt_rows(name, transformers.AutoTokenizer.from_pretrained(folder), "[MASK]"), pad=0)


# MPNet --------------------------------------------------------------------------------------------------------------


def mpnet(name: str, seed: int) -> None:
    folder = base.folder_of(name)
    base.word_pieces(folder)
    words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()[5:]
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *words, "[UNK]", "<mask>"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    fast = transformers.MPNetTokenizer(vocab={piece: index for index, piece in enumerate(pieces)}, do_lower_case=True)
    fast.backend_tokenizer.save(str(folder / "tokenizer.json"))

    def adjust(model, generator):
        bias = model.mpnet.encoder.relative_attention_bias.weight
        bias.data = torch.randn(bias.shape, generator=generator)

    model = base.publish(folder, seed, std=0.2, adjust=adjust)
    rows = prompt_rows(name, transformers.AutoTokenizer.from_pretrained(folder), "<mask>")
    freeze(name, model, rows, pad=1, long=base.draw(seed, 4, 60, 70)[0])


# ModernBERT ---------------------------------------------------------------------------------------------------------


def modernbert(name: str, seed: int) -> None:
    """modernbert: keys as published, layers 0 and 3 global; modernbert-biased: newer keys, all biases."""
    folder = base.folder_of(name)
    rows = base.draw(seed, 5, 60, 14, 11, 3)
    if name == "modernbert":
        modernbert_tokenizer(folder)
        rows = prompt_rows(name, transformers.AutoTokenizer.from_pretrained(folder), "[MASK]")
    model = base.publish(folder, seed, std=0.2)
    freeze(name, model, rows, pad=3, long=base.draw(seed, 5, 60, 70)[0])


def modernbert_tokenizer(folder) -> None:
    """Byte-level BPE with BERT's special tokens."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.normalizer, model.decoder = tokenizers.normalizers.NFC(), tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    options = {"vocab_size": 320, "initial_alphabet": alphabet, "special_tokens": special, "show_progress": False}
    model.train_from_iterator(base.LINES, tokenizers.trainers.BpeTrainer(**options))
    model.add_special_tokens([tokenizers.AddedToken("[MASK]", lstrip=True, normalized=False)])
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    model.save(str(folder / "tokenizer.json"))


# DeBERTa ------------------------------------------------------------------------------------------------------------


def deberta(name: str, seed: int) -> None:
    """deberta-v3: as version 3 is published; deberta-v2: positions of all kinds, projections and rows of their own."""
    folder = base.folder_of(name)
    rows, types = base.draw(seed, 5, 60, 10, 6, 3), None
    if name == "deberta-v2":
        types = [0] * 6 + [1] * 4
    else:
        deberta_tokenizer(folder)
        rows = prompt_rows(name, transformers.AutoTokenizer.from_pretrained(folder), "[MASK]")
    model = base.publish(folder, seed, std=0.2)
    freeze(name, model, rows, pad=0, types=types, long=base.draw(seed, 5, 60, 45)[0])
    if name == "deberta-v3":
        from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

        places = make_log_bucket_position(torch.arange(-600, 601), 256, 512).long() + 256
        with np.load(base.MODELS / f"{name}.npz") as members:
            base.save(name, dict(members) | {"places": places.clamp(0, 511)})


def deberta_tokenizer(folder) -> None:
    pieces = [piece for piece in unigrams(120) if piece[0] != "<unk>"]
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    vocab = [*((token, 0.0) for token in special), *pieces]
    fast = transformers.DebertaV2Tokenizer(vocab=vocab)
    fast.backend_tokenizer.save(str(folder / "tokenizer.json"))


MAKERS = {  # each with its seed
    "roberta": (roberta, 31),
    "xlm-roberta": (xlm_roberta, 32),
    "camembert": (camembert, 33),
    "distilbert": (distilbert, 34),
    "albert": (albert, 35),
    "albert-groups": (albert, 36),
    "electra": (electra, 37),
    "electra-discriminator": (electra, 38),
    "mpnet": (mpnet, 39),
    "modernbert": (modernbert, 40),
    "modernbert-biased": (modernbert, 41),
    "deberta-v3": (deberta, 42),
    "deberta-v2": (deberta, 43),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in sys.argv[1:] or MAKERS:
        make, seed = MAKERS[name]
        make(name, seed)
