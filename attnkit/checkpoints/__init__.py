"""Checkpoints: published models read as a configuration and parameters.

checkpoint.py       `open_checkpoint`: a folder to a `Checkpoint`, by the `model_type` in its config.json; its
                    `Parameters`: layer -> {parameter: array}, each layer converted on first use
config_reader.py    `ConfigReader`: config.json with every value checked
harmless_keys.py    the keys that a family does not read: computations are refused, others pass
unread_tensors.py   the stored tensors that no layer reads: harmless ones by name, with their reasons, and all others
publishing.py       the inverse: the tensors that a configuration requires, a model of tensors in memory
outline.py          what config.json alone says: without weights, or of a family that is not known
weights.py          the tensors of a folder, in one safetensors file or in shards; `TensorSpec`: where a parameter is
                    stored, and in which form
bert.py gpt2.py …   one file for each `model_type`: its choices, and its tensors by layer
label_heads.py      the heads of text encoders that give labels: of a text, of tokens, answers
rerankers.py        the files of sentence-transformers of a reranker
sentence_modules.py the files of sentence-transformers: pooling, dense layers, prompts
static_embedding.py a table of vectors of tokens without layers, of sentence-transformers and model2vec
late_interaction.py the settings of models with a vector for each token, as ColBERT
matryoshka.py       whether a folder says that the beginnings of its vectors are vectors
marian_native.py    model.npz, the file that Marian itself writes
gguf.py             a GGUF file of llama.cpp as a configuration and tensors under their published names
gguf_tokenizer.py   the tokenizer inside a GGUF file as the files of a folder

A family defines PREFIXES (that published names may or may not have), FIELDS (fact -> keys of config.json),
`read_config(raw, stored) -> Config` and `map_layers(raw) -> Layers`: the Protocol `Family` in checkpoint.py, which has
what else it may state. What its file does not state is stated by the one that VARIANT_OF names. gpt2.py is a short,
complete example. The names of layers and parameters, and their shapes, are those of attnkit.model.config.
`attnkit help architecture` has the steps.
"""

from attnkit.checkpoints.checkpoint import FAMILIES, Checkpoint, Parameters, as_float, open_checkpoint
from attnkit.checkpoints.config_reader import ConfigReader, read_json_object

__all__ = ["FAMILIES", "Checkpoint", "ConfigReader", "Parameters", "as_float", "open_checkpoint", "read_json_object"]
