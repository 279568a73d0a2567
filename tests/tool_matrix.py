"""Which tools compute with which kinds of models: a command for each cell of a table, and why some are refused.

`python -m tests.tool_matrix` writes the table of attnkit/help/models.md; tests/test_tool_matrix.py runs each cell.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests import process
from tests.places import ROOT
from tests.registry import place_of

INPUTS = ROOT / "tests" / "transcripts" / "inputs"
PAGE = ROOT / "attnkit" / "help" / "models.md"
HEADING = "## Tools and kinds of models"


class Example(NamedTuple):
    """A small model of a kind, and what the commands of TOOLS give it.

    model    its name in the registry
    input    arguments with its input; decode: those of decode
    tower    of a model of two towers
    against  the option with a text of as many tokens, or another sound; word: one whose logit is asked for
    site     an intermediate of encode; layer: one of its layers of attention
    text     what is scored, compared and trained on, "" for an input of another kind; corpus: a folder to train on
    generates  whether the whole model runs in decode, not in encode
    """

    model: str
    input: str
    decode: str = "{input}"
    tower: str = ""
    against: str = "--against 'a cat sat on the mat'"
    word: str = "the"
    site: str = "encoder.0.ffn.output"
    layer: str = "encoder.0.self"
    text: str = "the cat sat on the mat\nthe cat sat on the mat\n"
    corpus: Path | None = None
    generates: bool = False

    def arguments(self, folder: Path) -> Mapping[str, str]:
        """Values of the placeholders of a command; the text and another sound are written into a folder."""
        (folder / "text.txt").write_text(self.text)
        np.save(folder / "noise.npy", np.random.default_rng(0).normal(size=1600) / 8)
        whole = shlex.quote(place_of(self.model))
        return {
            "whole": whole,
            "model": f"{whole}:{self.tower}" if self.tower else whole,
            "input": self.input,
            "decode": self.decode.format(input=self.input),
            "against": self.against,
            "word": shlex.quote(self.word),
            "site": self.site,
            "layer": self.layer,
            "corpus": shlex.quote(str(self.corpus or "text.txt")),
            "run": "decode --max-tokens 2" if self.generates else "encode",
        }


SOUND = f"--audio {shlex.quote(str(INPUTS / 'tone.wav'))}"
PICTURE = f"--image {shlex.quote(str(ROOT / 'tests' / 'references' / 'models' / 'vit.png'))}"
LABELS = f"{PICTURE} --labels 'a cat,a dog'"
KINDS: Mapping[str, tuple[Example, ...]] = {
    "decoder": (
        Example(
            "story",
            "'A small bear looked at'",
            against="--against 'A small fox looked at'",
            word=" the",
            site="decoder.0.ffn.output",
            layer="decoder.0.self",
        ),
    ),
    "encoder": (
        Example("bert-mlm", "'the cat [MASK] on the mat'", against="--against 'a cat [MASK] on the mat'", word="sat"),
    ),
    "both": (
        Example(
            "fr-en",
            "'je suis étudiant'",
            against="--against 'tu es étudiant'",
            word="▁I",
            layer="decoder.0.cross",
            text="je suis ici\tI am here\ntu es ici\tyou are here\n",
            generates=True,
        ),
    ),
    "image": (Example("shapes", PICTURE, corpus=INPUTS / "shapes"),),
    "towers": (
        Example("inputs/clip", "'a photo of a cat'", LABELS, "text", text="a cat\n"),
        Example("inputs/clip", PICTURE, LABELS, "vision", text=""),
    ),
    "Whisper": (
        Example(
            "inputs/whisper",
            SOUND,
            against="--against-audio noise.npy",
            word="t",
            layer="decoder.0.cross",
            generates=True,
        ),
    ),
    "wav2vec 2.0": (Example("inputs/wav2vec2", SOUND, word="E"),),
    "lstm": (
        Example(
            "lstm",
            "'je suis un chat'",
            against="--against 'je suis un petit'",
            word="noir",
            site="decoder.0.rnn.state",
            text="je suis un chat\nje suis petit\n",
        ),
    ),
    "seq2seq": (
        Example(
            "seq2seq",
            "'je suis un chat'",
            against="--against 'je suis un petit'",
            word="I",
            site="encoder.0.rnn.state",
            layer="decoder.cross",
            text="je suis\tI am\nun chat\ta cat\n",
            generates=True,
        ),
    ),
}

TRACE = "{run} --model {model} {input} --trace run.npz -o out.npz"
WHOLE = "encode --model {model} {input} --trace run.npz -o out.npz"
SCORED = "decode --model {model} {input} --score {word} -f json"
SCAN = "scan --model {model} {input} --score {word} -f json"
TOOLS: Mapping[str, tuple[str, ...]] = {  # row of the table -> commands, the last of which is the tool
    "encode": ("encode --model {model} {input} -f json",),
    "encode, decode --trace": (TRACE,),
    "encode, decode --patch": (WHOLE, "encode --model {model} {input} --patch {site}=run.npz -f json"),
    "encode, decode --ablate": ("{run} --model {model} {input} --ablate {layer} -f json",),
    "decode": ("decode --model {whole} {decode} -f json",),
    "decode --score": (SCORED,),
    "decode --attribute": (f"{SCORED} --attribute input-x-gradient",),
    "decode --grad": (f"{SCORED} --grad grad.npz",),
    "grad": ('grad "encode --model {model} {input} | ffn --hidden 3" -f json',),
    "score": ("score --model {model} text.txt -f json",),
    "lens": (TRACE, "lens run.npz --model {model} -f json"),
    "lens --direct": (TRACE, "lens run.npz --model {model} --direct {word} -f json"),
    "heads TRACE": (TRACE, "heads run.npz -f json"),
    "heads --model": ("heads --model {model} -f json",),
    "rollout": (TRACE, "rollout run.npz -f json"),
    "scan --patch": (f"{SCAN} {{against}} --patch {{site}}",),
    "scan --ablate": (f"{SCAN} --ablate heads",),
    "explore": (TRACE, "explore run.npz -o page.html"),
    "explore --model": (TRACE, "explore run.npz --model {model} -o page.html"),
    "diff DIR DIR": ("diff {model} {model} -f json",),
    "diff DIR DIR --text": ("diff {model} {model} --text text.txt -f json",),
    "diff --model": (WHOLE, "diff --model {model} {input} run.npz -f json"),
    "diff --model --why": (WHOLE, "diff --model {model} {input} run.npz --why -f json"),
    "train --from": ("train {corpus} --from {model} --steps 1 --valid 0 -o new -q",),
    "cost": ("cost {model} -f json",),
    "cost --generate": ("cost {model} --generate 3 -f json",),
    "cost TRACE": (TRACE, "cost run.npz -f json"),
    "show": ("show {model}",),
    "show --pipeline": ("show {model} --pipeline all",),
    "near --index DIR": ("embed --model {whole} cat -o out.npz", "near out.npz --index {whole} -f json"),
    "encode --engine jax": ("encode --model {model} {input} --engine jax -f json",),
    "decode --grad --engine jax": (f"{SCORED} --grad grad.npz --engine jax",),
}

# reasons why a model has nothing of what a tool asks for -> tools -> kinds
NOTHING: Mapping[str, Mapping[str, str]] = {
    "It has no self-attention. Of a seq2seq, `--patch` replaces the context vectors.": {
        "encode, decode --ablate": "lstm, seq2seq",
        "heads TRACE": "lstm",
        "heads --model": "lstm, seq2seq",
        "rollout": "lstm, seq2seq",
        "scan --ablate": "lstm, seq2seq",
        "explore": "lstm",
        "explore --model": "lstm",
    },
    "It generates no text token by token.": dict.fromkeys(
        ("decode --score", "decode --attribute", "decode --grad", "score", "cost --generate",
         "decode --grad --engine jax"), "encoder, image, towers, wav2vec 2.0"
    ),
    "Its head gives classes, letters of frames or vectors, not words.": {
        **dict.fromkeys(("lens", "lens --direct", "explore --model"), "image, towers"),
        **dict.fromkeys(("scan --patch", "scan --ablate"), "image, towers, wav2vec 2.0"),
    },
    "Its head is not linear, so that the parts of a state do not add up to a logit.": {"lens --direct": "encoder"},
    "The states of recurrent layers are not sums of parts.": {"lens --direct": "lstm, seq2seq"},
    "No state of its layers is as wide as what its head reads; in another seq2seq the lens reads those that are.": {
        "lens": "seq2seq",
        "explore --model": "seq2seq",
    },
    "It reads no text; `decode --score` scores the text of a sound.": {
        "score": "Whisper",
        "diff DIR DIR --text": "image, Whisper, wav2vec 2.0",
    },
    "It embeds no words; `DIR:decoder.embed` of Whisper has those of its texts.": {
        "near --index DIR": "image, Whisper, wav2vec 2.0",
    },
    "It has no head; `train` learns words, classes and pairs of texts.": {"train --from": "towers"},
}  # fmt: skip
# reasons why a tool does not compute what the model has -> tools -> kinds
REFUSED: Mapping[str, Mapping[str, str]] = {
    "The losses of sounds are not computed.": {"train --from": "Whisper, wav2vec 2.0"},
}  # fmt: skip


def cells(reasons: Mapping[str, Mapping[str, str]]) -> dict[tuple[str, str], int]:
    """The number of the reason of each cell, from 0, by tool and kind."""
    return {
        (tool, kind): number
        for number, tools in enumerate(reasons.values())
        for tool, kinds in tools.items()
        for kind in kinds.split(", ")
    }


def write_table() -> str:
    """The table, and the reasons below it, as Markdown."""
    letters = {cell: "abcdefghijklm"[number] for cell, number in cells(NOTHING).items()}
    numbers = {cell: number + 1 for cell, number in cells(REFUSED).items()}
    lines = [f"| tool | {' | '.join(KINDS)} |", "|---" * (len(KINDS) + 1) + "|"]
    for tool in TOOLS:
        marks = []
        for kind in KINDS:
            cell = tool, kind
            marks.append(
                f"– {letters[cell]}" if cell in letters else f"no {numbers[cell]}" if cell in numbers else "yes"
            )
        lines.append(f"| `{tool}` | {' | '.join(marks)} |")
    lines += ["", *(f"- {letter}: {reason}" for letter, reason in zip("abcdefghijklm", NOTHING, strict=False))]
    lines += [f"- {number}: {reason}" for number, reason in enumerate(REFUSED, 1)]
    return "\n".join(lines) + "\n"


def read_table() -> str:
    """The table of the page, and the reasons below it."""
    section = PAGE.read_text().partition(f"{HEADING}\n")[2].partition("\n## ")[0]
    return section[section.index("| tool |") :]


def run_cell(tool: str, example: Example, folder: Path) -> process.Run | None:
    """The last command of a cell, or the first that fails; None if it is about texts, which the example has not."""
    commands = TOOLS[tool]
    if not example.text and "text.txt" in commands[-1]:
        return None
    arguments, done = example.arguments(folder), None
    for command in commands:
        done = process.run(*shlex.split(command.format(**arguments)), cwd=folder)
        if done.code:
            break
    return done


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().replace(read_table(), write_table()))
