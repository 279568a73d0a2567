"""Checkpoints: published model folders read as a configuration and parameters.

auto.py             `open_checkpoint`: a folder to a `Checkpoint`, by the `model_type` in its config.json
checkpoint.py       `Checkpoint`: configuration, parameters, stored tensors, digests of its files
parameters.py       `Parameters`: layer -> {parameter: array}, each layer converted on first use
mapping.py          `TensorSpec`: where a parameter is stored, and in which form
config_reader.py    `ConfigReader`: config.json with every value checked
publishing.py       the inverse: the tensors that a configuration requires, a model of tensors in memory
weights.py          the tensors of a folder, in one safetensors file or in shards
bert.py gpt2.py …   one file for each `model_type`: its choices, and its tensors by layer
label_heads.py      the heads of text encoders that give labels: of a text, of tokens, answers
sentence_modules.py the files of sentence-transformers: pooling, dense layers, prompts
marian_native.py    model.npz, the file that Marian itself writes

A family defines PREFIXES (that published names may or may not have), `read_config(raw, stored) -> Config` and
`map_layers(raw) -> Layers`: the Protocol `Family` in auto.py. gpt2.py is a short, complete example. The names of
layers and parameters, and their shapes, are those of attnkit.model.config. `attnkit help architecture` has the steps.
"""

from attnkit.checkpoints.auto import FAMILIES, open_checkpoint
from attnkit.checkpoints.checkpoint import Checkpoint
from attnkit.checkpoints.config_reader import ConfigReader, read_json_object
from attnkit.checkpoints.parameters import Parameters, as_float

__all__ = ["FAMILIES", "Checkpoint", "ConfigReader", "Parameters", "as_float", "open_checkpoint", "read_json_object"]
