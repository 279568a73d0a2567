"""The files of sentence-transformers of a reranker: its function, and its answer."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from attnkit.checkpoints.config_reader import ConfigReader, read_json, read_json_object
from attnkit.checkpoints.label_heads import read_stated_function, torch_function
from attnkit.formats.streams import exists
from attnkit.tokenizers.files import TokenizerFolder

MODULES, SETTINGS, TRANSFORMER = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
LARGEST_LENGTH = 1 << 30  # a maximum from here on is none: tokenizers write 1e30


class RerankerFiles(NamedTuple):
    """What the files of sentence-transformers in a folder state of a reranker.

    function      of the score: sigmoid, softmax or none
    longest       tokens at most; None: no limit
    true, false   the ids of LogitScore, whose logits are the score; None: the folder states none
    instruction   the message of the system by default
    is_flat       whether a message is a text, and not a list of parts; None: as the template needs it
    variables     of the chat template
    """

    function: str = "sigmoid"
    longest: int | None = None
    true: int | None = None
    false: int | None = None
    instruction: str = ""
    is_flat: bool | None = None
    variables: Mapping[str, Any] = {}
    files: tuple[str, ...] = ()


def load_reranker(folder: str | TokenizerFolder, name: str = "") -> RerankerFiles:
    """Read what a folder states of a reranker. A GGUF file states nothing.

    DataError for modules that are not those of a reranker, and for a function of another name than those known.
    """
    if not isinstance(folder, str):
        return RerankerFiles()
    files: list[str] = []
    has_modules = exists(os.path.join(folder, MODULES))  # without them sentence-transformers reads no settings
    settings, transformer, config, tokenizer = (
        read_optional(os.path.join(folder, file), files) if is_read else ConfigReader({}, file)
        for file, is_read in (
            (SETTINGS, has_modules),
            (TRANSFORMER, has_modules),
            ("config.json", True),
            ("tokenizer_config.json", True),
        )
    )
    stated = torch_function(settings, "activation_fn", settings.values.get("activation_fn"))
    longest = tokenizer.values.get("model_max_length")
    true, false = read_logit_score(folder, files)
    prompts = {name: text for name, text in settings.get_dict("prompts").items() if isinstance(text, str)}
    variables = transformer.get_object("processing_kwargs").get_dict("chat_template")
    message = transformer.get_object("modality_config").get_dict("message").get("format")
    return RerankerFiles(
        stated or read_stated_function(config) or "sigmoid",
        longest if isinstance(longest, int) and 0 < longest < LARGEST_LENGTH else None,
        true,
        false,
        prompts.get(settings.get_str("default_prompt_name", ""), ""),
        None if message not in ("flat", "structured") else message == "flat",
        {"add_generation_prompt": False} | variables,
        tuple(files),
    )


def read_optional(path: str, files: list[str]) -> ConfigReader:
    """The values of a JSON file, or {} if it is absent. Its path joins `files`."""
    if not exists(path):
        return ConfigReader({}, path)
    files.append(path)
    return ConfigReader(read_json_object(path), path)


def read_logit_score(folder: str, files: list[str]) -> tuple[int | None, int | None]:
    """The ids of the LogitScore in modules.json, or None and None."""
    path = os.path.join(folder, MODULES)
    if not exists(path):
        return None, None
    files.append(path)
    modules = read_json(path)
    for module in modules if isinstance(modules, list) else []:
        entry = ConfigReader(module if isinstance(module, dict) else {}, path)
        if entry.get_str("type", "").rpartition(".")[2] == "LogitScore":
            part = entry.get_str("path", "")
            if os.path.isabs(part) or ".." in part.replace("\\", "/").split("/") or not part.isprintable():
                raise entry.error(f"path {part[:40]!r} is not within the folder")
            config = os.path.join(folder, part, "config.json")
            files.append(config)
            score = ConfigReader(read_json_object(config), config)
            return score.get_int("true_token_id", least=0), score.get_token_id("false_token_id")
    return None, None
