"""Names of the modules of transformers, frozen with the sites whose numbers they hold: names.json.

    pip install torch==2.13.0 transformers==5.23.0 numpy==2.4.6
    PYTHONPATH=. python tests/references/make_names.py [NAME...]

writes the names of all models, or those of some anew. Each reference model runs in float64 in eager attention over
random ids, two texts of one length. A name is the path of a module with what its hook saw: PATH.output, PATH.output.KEY
for one of several, PATH.input likewise, PATH#N for a further call. Beside it stand the sites of attnkit.model.graph
whose numbers the tensor holds, in any usual layout, or in some of its columns: SITE[FIRST:END:COUNT] for columns FIRST
to END of so many equal parts; [] for none.
"""

import json
import os
import pathlib
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers

from attnkit import checkpoints, model
from attnkit.model.graph.nodes import Inputs
from attnkit.model.passes.model_graph import model_graph
from tests.drawing import write_model

HERE = pathlib.Path(__file__).parent
MODELS = ("albert", "albert-groups", "bert-mlm", "bert-question", "bert-sequence", "camembert", "deberta-v2",
          "deberta-v3", "distilbert", "electra", "electra-discriminator", "gpt2", "llama", "marian", "mistral",
          "modernbert", "mpnet", "openai-gpt", "qwen2", "roberta", "t5", "t5-gated", "vit", "xlm-roberta")  # fmt: skip
DRAWN = {  # the names of the registry, and the kind of each
    "eurobert": "embedders", "gte": "embedders", "jina_embeddings_v3": "embedders", "nomic_bert": "embedders",
    "bart": "translators", "m2m_100": "translators", "mbart": "translators", "whisper": "sounds",
    "waves/group": "waves", "waves/layer": "waves", "waves/hubert": "waves",
}  # fmt: skip
TEXTS, TOKENS, TARGETS, SAMPLES = 2, 7, 5, 4000
CLOSE = 1e-5  # relative to the largest number; some families compute norms in float32


def flatten(value, name):
    """The tensors in what a module reads or returns, by name."""
    if isinstance(value, torch.Tensor):
        yield name, value.detach().clone()
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, f"{name}.{key}")
    elif isinstance(value, tuple | list):
        for number, item in enumerate(value):
            yield from flatten(item, f"{name}.{number}")


def record(module, inputs):
    found, calls = {}, {}

    def add(path):
        def hook(_, args, kwargs, output):
            calls[path] = calls.get(path, -1) + 1
            start = path + f"#{calls[path]}" * (calls[path] > 0) + "." * (path != "")
            alone = args[0] if len(args) == 1 and isinstance(args[0], torch.Tensor) else args
            for value, name in ((alone, "input"), (dict(kwargs), "input"), (output, "output")):
                found.update(flatten(value, f"{start}{name}"))

        return hook

    for path, child in module.named_modules():
        child.register_forward_hook(add(path), with_kwargs=True)
    with torch.no_grad():
        module(**inputs, output_hidden_states=True, output_attentions=True)
    return {name: tensor.double().numpy() for name, tensor in found.items()}


def draw(config):
    """Random inputs of a model of transformers, and the same for the stages."""
    rng = np.random.default_rng(3)
    if config.model_type == "vit":
        image = rng.standard_normal((TEXTS, config.num_channels, config.image_size, config.image_size))
        return {"pixel_values": torch.tensor(image)}, Inputs(image=image)
    if config.model_type in ("wav2vec2", "hubert"):
        samples = rng.standard_normal((TEXTS, SAMPLES))
        return {"input_values": torch.tensor(samples)}, Inputs(features=samples)
    if config.model_type == "whisper":
        features = rng.standard_normal((TEXTS, config.num_mel_bins, 2 * config.max_source_positions))
        target = rng.integers(5, config.vocab_size, (TEXTS, TARGETS))
        tensors = {"input_features": torch.tensor(features), "decoder_input_ids": torch.tensor(target)}
        return tensors, Inputs(features=features.swapaxes(1, 2), target=target)
    ids = rng.integers(5, config.vocab_size, (TEXTS, TOKENS))
    tensors, inputs = {"input_ids": torch.tensor(ids)}, Inputs(ids=ids)
    if config.is_encoder_decoder:
        inputs.target = rng.integers(5, config.vocab_size, (TEXTS, TARGETS))
        tensors["decoder_input_ids"] = torch.tensor(inputs.target)
    if getattr(config, "type_vocab_size", 0) > 1:
        inputs.types = np.repeat((np.arange(TOKENS) >= 4).astype(int)[None], TEXTS, axis=0)
        tensors["token_type_ids"] = torch.tensor(inputs.types)
    return tensors, inputs


def compute_sites(folder, inputs):
    checkpoint = checkpoints.open_checkpoint(str(folder))
    graph = model_graph(model.Model(checkpoint.config, checkpoint.params), inputs)
    sites = dict(graph.roots)
    for site in graph.nodes:
        graph.evaluate(site, dict(sites), memo=sites)
    return {site: array for site, array in sites.items() if site != "pixels"}


def layouts(array):
    yield array
    if array.ndim == 4:
        yield array.swapaxes(1, 2)
        yield array.swapaxes(1, 2).reshape(array.shape[0], array.shape[2], -1)
    if array.ndim == 3:
        yield array.swapaxes(1, 2)  # the channels of a convolution
    if array.ndim == 3 and array.shape[1] == 1:
        yield array[:, 0]
    if array.ndim == 3 and (side := round(array.shape[1] ** 0.5)) ** 2 == array.shape[1]:  # of patches
        yield array.swapaxes(1, 2).reshape(array.shape[0], -1, side, side)
    if array.ndim == 2:
        yield array[None]
        yield array[:, None]  # the channel of samples
        yield np.repeat(array[None], TEXTS, axis=0)


def is_equal(tensor, array):
    if tensor.shape != array.shape:
        return False
    finite = np.isfinite(array)
    return np.allclose(tensor[finite], array[finite], rtol=0, atol=CLOSE * np.abs(array[finite]).max(initial=1e-9))


def find_columns(tensor, array):
    """The part of the last axis of a tensor that is an array, "" for all of it, or None."""
    if is_equal(tensor, array):
        return ""
    if tensor.ndim == array.ndim >= 3 and tensor.shape[:-1] == array.shape[:-1]:
        width, part = tensor.shape[-1], array.shape[-1]
        for start in range(0, width, part) if width % part == 0 else ():
            if is_equal(tensor[..., start : start + part], array):
                return f"[{start // part}:{start // part + 1}:{width // part}]"
    return None


def find_sites(tensor, sites):
    found = []
    for site, array in sites.items():
        columns = next(
            (one for one in (find_columns(tensor, view) for view in layouts(array)) if one is not None), None
        )
        if columns is not None:
            found.append(site + columns)
    return found


def freeze_names(folder):
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    options = {"attn_implementation": "eager", "dtype": torch.float64}
    module = getattr(transformers, kind).from_pretrained(folder, **options).eval()
    tensors, inputs = draw(module.config)
    sites = compute_sites(folder, inputs)
    return {path: find_sites(tensor, sites) for path, tensor in record(module, tensors).items()}


def main(names):
    path = HERE / "names.json"
    frozen = json.loads(path.read_text()) if path.exists() else {}
    for name in names or (*MODELS, *DRAWN):
        with tempfile.TemporaryDirectory() as place:
            folder = HERE / "models" / name
            if name in DRAWN:
                folder = write_model(name.rpartition("/")[2], pathlib.Path(place), np.float64, DRAWN[name])
            frozen[name] = freeze_names(folder)
    models = []
    for name in (*MODELS, *DRAWN):
        lines = ",\n".join(f"    {json.dumps(path)}: {json.dumps(sites)}" for path, sites in frozen[name].items())
        models.append(f'  "{name}": {{\n{lines}\n  }}')
    path.write_text("{\n" + ",\n".join(models) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
