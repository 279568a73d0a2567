"""A trained ALBERT of a package, rxnmapper: its states, its weights, and the atoms that one of its heads maps."""

import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit.checkpoints import open_checkpoint
from tests.places import REFERENCES

FOUND = find_spec("rxnmapper")
PACKAGE = Path(FOUND.submodule_search_locations[0] if FOUND else "pip install --no-deps rxnmapper")
FOLDER = str(PACKAGE / "models/transformers/albert_heads_8_uspto_all_1310k")
LAYER, HEAD = "encoder.10.self.weights", 5
NEIGHBORS = 90.0  # how much more a bond of a mapped atom counts
ROWS = json.loads((REFERENCES / "rxnmapper.json").read_text())


@cache
def vocabulary():
    return {word: id for id, word in enumerate((Path(FOLDER) / "vocab.txt").read_text().splitlines())}


def run(row, **options):
    """Encode a reaction of the reference."""
    words = vocabulary()
    return attnkit.encode(model=FOLDER, ids=[words[token] for token in ("[CLS]", *row["tokens"], "[SEP]")], **options)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The traced weights of the head for each reaction."""
    path = tmp_path_factory.mktemp("rxnmapper") / "run.npz"
    found = []
    for row in ROWS:
        run(row, trace=str(path), trace_only=(LAYER,))
        with np.load(path) as trace:
            found.append(trace[LAYER][HEAD])
    return found


def map_atoms(row, weights):
    """The reactant atom of each product atom, and its share, by the rules of the package.

    The weights of two atoms are those of both directions, where they are of one element. The largest share of a row is
    mapped first; neighbors of its two atoms then count more, and both atoms are done.
    """
    tokens = ["[CLS]", *row["tokens"], "[SEP]"]
    split = tokens.index(">>")
    atoms = [at for at, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]") and is_atom(token)]
    reactants, products = [at for at in atoms if at < split], [at for at in atoms if at > split]
    kinds, count = np.array(row["kinds"]), len(reactants)
    near = np.zeros((len(atoms), len(atoms)), bool)
    for one, other in row["bonds"]:
        near[one, other] = near[other, one] = True
    both = weights[np.ix_(products, reactants)] + weights[np.ix_(reactants, products)].T
    both = both * (kinds[count:, None] == kinds[:count])
    factors, maps, shares = np.ones(both.shape), np.full(len(products), -1), np.ones(len(products))
    for _ in products:
        scores = both * factors
        totals = scores.sum(axis=1, keepdims=True)
        scores = np.divide(scores, totals, out=np.zeros_like(scores), where=totals != 0)
        product, reactant = np.unravel_index(scores.argmax(), scores.shape)
        if np.isclose(scores.max(), 0):
            break
        maps[product], shares[product] = reactant, scores.max()
        factors[np.ix_(near[count:, count:][product], near[:count, :count][reactant])] *= NEIGHBORS
        factors[product], factors[:, reactant] = 0, 0
    return maps.tolist(), shares


def is_atom(token):
    return token[0] == "[" or token.isalpha()


def test_the_states_and_the_head_are_those_of_the_package(weights, tmp_path):
    path = tmp_path / "run.npz"
    with np.load(REFERENCES / "rxnmapper.npz") as given:
        for number in range(3):
            x = run(ROWS[number], dtype="float64", trace=str(path), trace_only=(LAYER,))["x"]
            with np.load(path) as trace:
                np.testing.assert_allclose(trace[LAYER][HEAD], given[f"{number}.weights"], rtol=0, atol=1e-10)
            np.testing.assert_allclose(weights[number], given[f"{number}.weights"], rtol=0, atol=5e-5)
            if f"{number}.hidden" in given:
                np.testing.assert_allclose(x, given[f"{number}.hidden"], rtol=0, atol=1e-10)


def test_the_atoms_that_the_head_maps_are_those_of_the_package(weights):
    assert len(ROWS) == 20
    for row, one in zip(ROWS, weights, strict=True):
        maps, shares = map_atoms(row, one)
        assert maps == row["maps"], "".join(row["tokens"])
        np.testing.assert_allclose(shares, row["confidences"], rtol=0, atol=1e-4)


def test_the_folder_as_published():
    model = open_checkpoint(FOLDER)
    assert (model.config.family, model.config.stack("encoder").layers, model.config.head) == ("albert", 12, True)
    assert [Path(file).name for file in model.digests()] == ["config.json", "pytorch_model.bin"]


def test_masked_atoms():
    """The model guesses the token that was masked."""
    tokens = ["[CLS]", *"CC(=O)OCC", "[SEP]"]
    words = vocabulary()
    guessed = []
    for at in (3, 5):
        ids = [words[token] for token in tokens]
        ids[at] = words["[MASK]"]
        guessed.append(list(words)[attnkit.decode(model=FOLDER, ids=ids)["next"][at]])
    assert guessed == ["(", "O"]


@pytest.mark.parametrize("text", ["CC(=O)Cl.Nc1ccccc1>>CC(=O)Nc1ccccc1", "C[C@H](N)C(=O)O>>O=C1C%12CC%12N1Br"])
def test_a_regular_expression_makes_its_tokenizer(tmp_path, text):
    script = (Path(__file__).parent.parent.parent / "samples/42-atoms-of-a-reaction.sh").read_text()
    pattern = script.partition('Regex: "')[2].partition('"')[0].replace("\\\\", "\\")
    pre = {"type": "Split", "behavior": "Isolated", "invert": False, "pattern": {"Regex": pattern}}
    model = {"type": "WordLevel", "vocab": vocabulary(), "unk_token": "[UNK]"}
    file = tmp_path / "smiles.json"
    file.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model, "pre_tokenizer": pre}))
    record = attnkit.embed(text, model=FOLDER, tokenizer=str(file))
    published = re.search(r'SMI_REGEX_PATTERN = r"(.*)"', (PACKAGE / "smiles_utils.py").read_text())[1]
    assert record.labels["token"] == re.findall(published, text)
