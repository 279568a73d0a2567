"""The two small trained models of the samples, made again from nothing:

    pip install torch==2.13.0 transformers==5.23.0 tokenizers==0.23.3 sentencepiece==0.2.3
    python samples/data/make_models.py [fr-en] [story]

writes, in a few minutes on two cores and without the network, two folders in the layouts in which such models are
published. The seeds are fixed; another processor or another torch may train other weights.

fr-en   a translation model in the layout of Marian: 2 + 2 layers, 64 wide, 4 heads, float16. It learns French sentences
        of a small grammar, in the present tense, which English says in two ways: `il chante` is `he sings` or, less
        often, `he is singing`. One sentence in ten is never shown in training; how many of those it gets right is said.
story   a text model in the layout of GPT-2: 3 layers, 64 wide, 4 heads, 128 positions, float16. It learns tales of one
        plot and many heroes, places and things, some oftener than others.
"""

import contextlib
import json
import pathlib
import random
import re
import shutil
import sys
import zlib

import sentencepiece
import tokenizers
import torch
import transformers

HERE = pathlib.Path(__file__).parent
END = "<|endoftext|>"

# French and English -------------------------------------------------------------------------------------------------

# je, tu, il, nous, vous, ils; the English verb, with its -s and its -ing (none: it is not said that way)
VERBS = [
    ("mange manges mange mangeons mangez mangent", "eat", "eats", "eating"),
    ("lis lis lit lisons lisez lisent", "read", "reads", "reading"),
    ("vois vois voit voyons voyez voient", "see", "sees", ""),
    ("aime aimes aime aimons aimez aiment", "love", "loves", ""),
    ("cherche cherches cherche cherchons cherchez cherchent", "look for", "looks for", "looking for"),
    ("porte portes porte portons portez portent", "carry", "carries", "carrying"),
]
ALONE = [
    ("dors dors dort dormons dormez dorment", "sleep", "sleeps", "sleeping"),
    ("chante chantes chante chantons chantez chantent", "sing", "sings", "singing"),
    ("cours cours court courons courez courent", "run", "runs", "running"),
]
BEING = ("suis es est sommes êtes sont", "am are is are are are")
HAVING = ("ai as a avons avez ont", "have have has have have have")
# person, French, English; feminine; many
PRONOUNS = [
    (0, "je", "I", False, False),
    (0, "je", "I", True, False),
    (1, "tu", "you", False, False),
    (2, "il", "he", False, False),
    (2, "elle", "she", True, False),
    (3, "nous", "we", False, True),
    (4, "vous", "you", False, True),
    (5, "ils", "they", False, True),
    (5, "elles", "they", True, True),
]
# French, English, feminine
PEOPLE = [
    ("chat", "cat", False),
    ("chien", "dog", False),
    ("fille", "girl", True),
    ("garçon", "boy", False),
    ("oiseau", "bird", False),
    ("sœur", "sister", True),
    ("étudiant", "student", False),
    ("voisine", "neighbour", True),
]
THINGS = [
    ("pomme", "apple", True),
    ("livre", "book", False),
    ("maison", "house", True),
    ("voiture", "car", True),
    ("lettre", "letter", True),
    ("gâteau", "cake", False),
    ("fleur", "flower", True),
    ("chapeau", "hat", False),
]
# masculine, feminine, English; whether it comes before the noun
ADJECTIVES = [
    ("noir", "noire", "black", False),
    ("blanc", "blanche", "white", False),
    ("rouge", "rouge", "red", False),
    ("vert", "verte", "green", False),
    ("petit", "petite", "small", True),
    ("grand", "grande", "big", True),
    ("joli", "jolie", "pretty", True),
]
STATES = [("fatigué", "tired"), ("content", "happy"), ("prêt", "ready"), ("malade", "ill"), ("âgé", "old")]
TRADES = [("étudiant", "étudiante", "student"), ("avocat", "avocate", "lawyer"), ("médecin", "médecin", "doctor")]
PLACES = [
    ("dans le jardin", "in the garden"),
    ("à la maison", "at home"),
    ("sous la pluie", "in the rain"),
    ("à l'école", "at school"),
]
TIMES = [("aujourd'hui", "today"), ("ce soir", "tonight"), ("le dimanche", "on Sundays")]
# what the samples translate: never shown in training
KEPT = {"je suis étudiant", "le petit chat noir dort dans le jardin", "elle porte un chapeau rouge"}


def noun_phrase(rng: random.Random, nouns: list, many: bool) -> tuple[str, str, bool]:
    """A noun with its article and perhaps adjectives, before and after it; whether it is feminine."""
    french, english, feminine = rng.choice(nouns)
    before, after = [], []
    for first in (True, False):
        if rng.random() < (0.25 if first else 0.35):
            masculine, other, meaning, _ = rng.choice([one for one in ADJECTIVES if one[3] == first])
            (before if first else after).append((other if feminine else masculine, meaning))
    definite = rng.random() < 0.6
    if many:
        article = "les" if definite else "des"
    else:
        article = ("la" if feminine else "le") if definite else ("une" if feminine else "un")
    words = [*(one for one, _ in before), french, *(one for one, _ in after)]
    words = [f"{word}x" if many and word.endswith("eau") else f"{word}s" if many else word for word in words]
    meanings = [*(one for _, one in before), *(one for _, one in after), f"{english}s" if many else english]
    indefinite = "" if many else "an" if meanings[0][0] in "aeiou" else "a"
    articles = ["the"] if definite else [indefinite] * (not many)
    return elided(" ".join([article, *words])), " ".join([*articles, *meanings]), feminine


def elided(french: str) -> str:
    """le étudiant is l'étudiant."""
    return re.sub(r"\b(l|j)[eao] (?=[aeiouâêéœ])", r"\1'", french)


def sentence(rng: random.Random) -> tuple[str, list[str]]:
    """A French sentence and the ways to say it in English, the usual one first."""
    if rng.random() < 0.5:
        person, french, english, feminine, many = rng.choice(PRONOUNS)
    else:
        many = rng.random() < 0.3
        french, english, feminine = noun_phrase(rng, PEOPLE, many)
        person = 5 if many else 2
    being = BEING[0].split()[person], BEING[1].split()[person]
    kind = rng.random()
    if kind < 0.15:
        state, meaning = rng.choice(STATES)
        state += "e" * (feminine and not state.endswith("e")) + "s" * many
        said, meant = f"{being[0]} {state}", [f"{being[1]} {meaning}"]
    elif kind < 0.3:
        *trade, meaning = rng.choice(TRADES)
        said = f"{being[0]} {trade[feminine]}{'s' * many}"
        meant = [f"{being[1]} {meaning}s" if many else f"{being[1]} a {meaning}"]
    elif kind < 0.45:
        thing, meaning, _ = noun_phrase(rng, THINGS, rng.random() < 0.25)
        said, meant = f"{HAVING[0].split()[person]} {thing}", [f"{HAVING[1].split()[person]} {meaning}"]
    else:
        takes = kind < 0.75
        verb, plain, third, going = rng.choice(VERBS if takes else ALONE)
        said = verb.split()[person]
        meant = [third if person == 2 else plain, *([f"{being[1]} {going}"] if going else [])]
        if takes:
            thing, meaning, _ = noun_phrase(rng, THINGS, rng.random() < 0.25)
            said, meant = f"{said} {thing}", [f"{one} {meaning}" for one in meant]
    french, ways = elided(f"{french} {said}"), [f"{english} {one}" for one in meant]
    for more, chance in ((PLACES, 0.25), (TIMES, 0.15)):
        if rng.random() < chance:
            where, meaning = rng.choice(more)
            french, ways = f"{french} {where}", [f"{one} {meaning}" for one in ways]
    return french, ways


def is_kept(french: str) -> bool:
    """Whether a sentence is never shown in training."""
    return french in KEPT or zlib.crc32(french.encode()) % 10 == 0


def composed() -> str:
    """Rules for sentencepiece: a letter and an accent that follows it are one letter."""
    accents = {"\u0300": "àèù", "\u0301": "é", "\u0302": "âêîôû", "\u0308": "ëïü", "\u0327": "ç"}
    bare = dict(zip("àèùéâêîôûëïüç", "aeueaeioueiuc", strict=True))
    lines = [
        f"{ord(form(bare[letter])):X} {ord(accent):X}\t{ord(form(letter)):X}"
        for accent, letters in accents.items()
        for letter in letters
        for form in (str.lower, str.upper)
    ]
    return "\n".join([*lines, "2019\t27"]) + "\n"


def translation_vocabulary(folder: pathlib.Path, pairs: list[tuple[str, str]]) -> int:
    """source.spm, target.spm and vocab.json, whose ids are the model's; the number of ids."""
    rules = folder / "rules.tsv"
    rules.write_text(composed(), encoding="utf-8")
    pieces: dict[str, None] = {}
    for name, column in (("source.spm", 0), ("target.spm", 1)):
        # the model remembers the path of its rules, so it is that of a file in the folder itself
        with (folder / name).open("wb") as file, contextlib.chdir(folder):
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter([pair[column] for pair in pairs]),
                model_writer=file,
                vocab_size=(330, 220)[column],
                model_type="bpe",
                normalization_rule_tsv=rules.name,
                bos_id=-1,
                hard_vocab_limit=False,
                num_threads=1,
                minloglevel=2,
            )
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
        pieces |= {model.id_to_piece(index): None for index in range(model.get_piece_size())}
    rules.unlink()
    kept = sorted(piece for piece in pieces if piece not in ("</s>", "<unk>"))
    write_json(folder / "vocab.json", {piece: at for at, piece in enumerate(["</s>", "<unk>", *kept, "<pad>"])})
    settings = {"model_max_length": 512, "source_lang": "fr", "target_lang": "en", "tokenizer_class": "MarianTokenizer"}
    write_json(folder / "tokenizer_config.json", settings)
    return len(kept) + 3


def make_translator(folder: pathlib.Path) -> None:
    """The model fr-en, trained, stored, and tried on sentences it has not seen."""
    rng = random.Random(0)
    size = translation_vocabulary(folder, draw(rng, 8000))
    pad = size - 1
    config = {
        "activation_dropout": 0.0,
        "activation_function": "swish",
        "architectures": ["MarianMTModel"],
        "attention_dropout": 0.0,
        "bad_words_ids": [[pad]],
        "bos_token_id": 0,
        "d_model": 64,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 128,
        "decoder_layers": 2,
        "decoder_start_token_id": pad,
        "decoder_vocab_size": size,
        "dropout": 0.1,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "encoder_layers": 2,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "init_std": 0.05,
        "is_encoder_decoder": True,
        "max_length": 512,
        "max_position_embeddings": 512,
        "model_type": "marian",
        "num_beams": 4,
        "num_hidden_layers": 2,
        "pad_token_id": pad,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "static_position_embeddings": True,
        "torch_dtype": "float16",
        "vocab_size": size,
    }
    generation = {
        "bad_words_ids": [[pad]],
        "bos_token_id": 0,
        "decoder_start_token_id": pad,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "max_length": 512,
        "num_beams": 4,
        "pad_token_id": pad,
    }
    torch.manual_seed(0)
    model = transformers.MarianMTModel(transformers.MarianConfig.from_dict(config))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def batch() -> dict[str, torch.Tensor]:
        pairs = draw(rng, 110)
        texts = tokenizer([french for french, _ in pairs], text_target=[english for _, english in pairs], padding=True)
        given = {name: torch.tensor(texts[name]) for name in ("input_ids", "attention_mask", "labels")}
        labels = given.pop("labels")
        shifted = torch.cat([torch.full_like(labels[:, :1], pad), labels[:, :-1]], 1)
        return given | {"decoder_input_ids": shifted, "wanted": labels}

    train(model, batch, steps=800, rate=3e-3, ignored=pad, smoothing=0.1)
    with torch.no_grad():
        model.model.shared.weight[pad] = 0
    store(model, folder, config, generation)

    model = transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
    unseen = [one for one in (sentence(rng) for _ in range(5000)) if is_kept(one[0])][:300]
    for beams in (1, 4):
        made = []
        for start in range(0, len(unseen), 50):
            given = tokenizer([french for french, _ in unseen[start : start + 50]], padding=True, return_tensors="pt")
            made += tokenizer.batch_decode(model.generate(**given, num_beams=beams), skip_special_tokens=True)
        right = sum(text in ways for text, (_, ways) in zip(made, unseen, strict=True))
        print(f"fr-en: {right} of {len(unseen)} unseen sentences right with {beams} beam{'s' * (beams > 1)}")
        for french in sorted(KEPT):
            ids = model.generate(**tokenizer(french, return_tensors="pt"), num_beams=beams)[0]
            print(f"  {french} -> {tokenizer.decode(ids, skip_special_tokens=True)}")


def draw(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """So many sentences of the training, each with one way to say it, in three of ten the less usual one."""
    found = [sentence(rng) for _ in range(count)]
    return [(french, ways[-1] if rng.random() < 0.3 else ways[0]) for french, ways in found if not is_kept(french)]


# Tales --------------------------------------------------------------------------------------------------------------

HEROES = ["little fox", "old robot", "young girl", "grey cat", "small bear"]
HOMES = ["in a quiet forest", "by the sea", "under a high hill", "in a tall tower", "near the river"]
HABITS = [
    "looked at the stars",
    "walked along the path",
    "counted the clouds",
    "sang an old song",
    "waited for the rain",
]
THINGS_FOUND = ["golden key", "silver bell", "paper boat", "broken lamp", "red kite"]
FINDS = ["under a stone", "in the grass", "behind a door", "between two trees", "at the end of the road"]
OWNERS = ["moon", "wind", "baker", "owl", "queen"]
GIFTS = ["a warm loaf of bread", "a new name", "a map of the world", "a window to the sky", "a very long story"]


def chosen(rng: random.Random, words: list[str]) -> str:
    """One of the words, the earlier ones oftener."""
    return rng.choices(words, weights=[1 / (2 + at) for at in range(len(words))])[0]


def tale(rng: random.Random) -> str:
    """A tale whose hero, thing and owner come back in it."""
    hero, thing, owner = (chosen(rng, words) for words in (HEROES, THINGS_FOUND, OWNERS))
    name = hero.split()[-1]
    return (
        f"Once upon a time there was {'an' if hero[0] == 'o' else 'a'} {hero} who lived {chosen(rng, HOMES)}. "
        f"Every evening the {name} {chosen(rng, HABITS)}. "
        f"One day the {name} found a {thing} {chosen(rng, FINDS)}. "
        f'"Who has lost a {thing}?" asked the {name}. '
        f'"It is mine," said the {owner}. '
        f"So the {name} gave the {thing} to the {owner}, and the {owner} gave the {name} {chosen(rng, GIFTS)}. "
        f"From that day on the {name} and the {owner} were friends."
    )


def make_storyteller(folder: pathlib.Path) -> None:
    """The model story, trained and stored."""
    rng = random.Random(0)
    size = tale_tokenizer(folder, [tale(rng) for _ in range(2000)], 512)
    end = size - 1
    config = {
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.0,
        "bos_token_id": end,
        "embd_pdrop": 0.1,
        "eos_token_id": end,
        "initializer_range": 0.05,
        "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2",
        "n_ctx": 128,
        "n_embd": 64,
        "n_head": 4,
        "n_layer": 3,
        "n_positions": 128,
        "resid_pdrop": 0.1,
        "torch_dtype": "float16",
        "vocab_size": size,
    }
    generation = {"bos_token_id": end, "eos_token_id": end}
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config.from_dict(config))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))

    def batch() -> dict[str, torch.Tensor]:
        rows = []
        for _ in range(32):  # half of them from the middle, so that a text may begin with any sentence
            text = tale(rng)
            starts = [0, *(match.end() for match in re.finditer(r"(?<=[.?\"]) (?=[A-Z\"])", text))]
            rows.append([*tokenizer.encode(text[rng.choice([0, rng.choice(starts)]) :]), end])
        longest = max(map(len, rows))
        assert longest <= 129, f"a tale of {longest} tokens"
        ids = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])
        return {"input_ids": ids[:, :-1].clamp(min=0), "wanted": ids[:, 1:]}

    train(model, batch, steps=800, rate=3e-3, ignored=-100, smoothing=0.0)
    store(model, folder, config, generation)

    model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
    for start in ("Once upon a time", "Every evening the bear"):
        ids = tokenizer(start, return_tensors="pt")
        made = model.generate(**ids, max_new_tokens=100, do_sample=False, pad_token_id=end)[0]
        print(f"story: {len(made)} tokens: {tokenizer.decode(made)}")


def tale_tokenizer(folder: pathlib.Path, texts: list[str], size: int) -> int:
    """tokenizer.json: byte-level pairs, the end of text last; the number of ids."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    model.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size - 1, initial_alphabet=alphabet, show_progress=False)
    model.train_from_iterator(texts, trainer)
    model.add_special_tokens([END])
    model.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"model_max_length": 128, "tokenizer_class": "GPT2Tokenizer"})
    return model.get_vocab_size()


# Both ---------------------------------------------------------------------------------------------------------------


def train(model, batch, steps: int, rate: float, ignored: int, smoothing: float) -> None:
    """Cross-entropy made small by Adam, its rate rising over the first tenth of the steps and falling to 0."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=ignored, label_smoothing=smoothing)
    model.train()
    for step in range(1, steps + 1):
        given = batch()
        wanted = given.pop("wanted")
        loss = loss_of(model(**given, use_cache=False).logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            print(f"  step {step}: loss {loss.item():.3f}", flush=True)


def store(model, folder: pathlib.Path, config: dict, generation: dict) -> None:
    """The weights in float16 as save_pretrained stores them, beside the configuration as it is written above."""
    model.half().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", generation)


def write_json(path: pathlib.Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


MODELS = {"fr-en": make_translator, "story": make_storyteller}

if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)  # the same sums in the same order on any number of cores
    for name in sys.argv[1:] or MODELS:
        shutil.rmtree(HERE / name, ignore_errors=True)
        (HERE / name).mkdir()
        MODELS[name](HERE / name)
