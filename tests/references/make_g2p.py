"""What the package g2p-en makes of 500 words, frozen in g2p.json.

    pip install --no-deps g2p-en==2.1.0
    python tests/references/make_g2p.py

The methods that predict are taken from the package's own g2p.py, as they are; the rest of the file needs nltk, data
from the network, and dictionaries that would answer instead of the model. The words are those of g2p.json.
"""

import ast
import importlib.util
import json
import os
import pathlib

import numpy as np

HERE = pathlib.Path(__file__).parent
METHODS = ("load_variables", "sigmoid", "grucell", "gru", "encode", "predict")


def load_predictor():
    """Return an object with the package's methods, and its tables of graphemes and phonemes."""
    path = importlib.util.find_spec("g2p_en").origin
    folder = os.path.dirname(path)
    tree = ast.parse(pathlib.Path(folder, "g2p.py").read_text(encoding="utf-8"))
    [cls] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    cls.body = [node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name in (*METHODS, "__init__")]
    start = next(node for node in cls.body if node.name == "__init__")
    kept = ("super()", "self.graphemes", "self.phonemes", "self.g2idx", "self.idx2g", "self.p2idx", "self.idx2p")
    start.body = [
        node for node in start.body if ast.unparse(node).startswith(kept) or "load_variables" in ast.unparse(node)
    ]
    names = {"np": np, "os": os, "dirname": folder}
    exec(compile(ast.Module([cls], []), path, "exec"), names)
    return names["G2p"]()


def main() -> None:
    """Predict the words again."""
    file = HERE / "g2p.json"
    predict = load_predictor().predict
    answers = {word: " ".join(predict(word)) for word in json.loads(file.read_text(encoding="utf-8"))}
    lines = ",\n".join(f" {json.dumps(word)}: {json.dumps(text)}" for word, text in answers.items())
    file.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
