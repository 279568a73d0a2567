"""The keys of config.json that the code of transformers reads, for each family and for all of them, frozen.

    python tests/references/make_keys.py
    PYTHONPATH=…/transformers-5.24.0 python tests/references/make_keys.py

The first version that it runs under, 5.23.0, is whole; a later one adds what is new in it to "later", by its version.

It parses the modeling and the configuration file of each family: the attributes of a configuration that a model reads,
and the keyword arguments that the class of the configuration takes beside its fields. keys.json has for each family

keys   the keys with the value that the class gives them if the file does not have them, null if there is none
nulls  the keys for which the class accepts null, as a value other than that of a file without the key

and shared_keys.json for the code that families share has for each file of SHARED the keys that it reads, and the
entries of rope_parameters.
"""

import ast
import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

FIRST = "5.23.0"
HERE = pathlib.Path(__file__).parent
IS_CONFIG = re.compile(r"^(\w+_)?config$")  # config, self.config, text_config, and the like


def reads(path: pathlib.Path, in_configuration: bool) -> Iterator[tuple[str, Any]]:
    """Yield each key that a file reads, with the default where the reading has one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_configuration(node.value):
            yield node.attr, None
        elif in_configuration and isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                yield node.attr, None
        elif isinstance(node, ast.Call):
            key, *default = named_key(node, in_configuration)
            if isinstance(key, ast.Constant):
                yield key.value, literal(*default)


def named_key(call: ast.Call, in_configuration: bool) -> list[Any]:
    """The arguments of getattr(config, KEY, DEFAULT), and of kwargs.pop(KEY, DEFAULT) in a configuration."""
    function, arguments = call.func, call.args
    if isinstance(function, ast.Name) and function.id == "getattr" and is_configuration(arguments[0]):
        return arguments[1:]
    if in_configuration and isinstance(function, ast.Attribute) and function.attr in ("pop", "get"):
        return arguments if isinstance(function.value, ast.Name) and function.value.id == "kwargs" else [None]
    return [None]


def is_configuration(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return bool(IS_CONFIG.match(name))


def literal(node: ast.AST | None = None) -> Any:
    """The value of a default, None where it is computed or absent."""
    return node.value if isinstance(node, ast.Constant) else None


def keys_of(family: str) -> dict[str, Any]:
    """The keys that the code of a family reads, with their defaults."""
    configuration = CONFIG_MAPPING[family]
    folder = pathlib.Path(importlib.import_module(configuration.__module__).__file__).parent
    stem = configuration.__module__.rpartition("configuration_")[2]
    found: dict[str, Any] = {}
    for kind in ("modeling", "configuration"):
        path = folder / f"{kind}_{stem}.py"
        if path.exists():
            for key, default in reads(path, kind == "configuration"):
                found[key] = found.get(key) if found.get(key) is not None else default
    usual = json.loads(json.dumps(configuration().to_dict(), default=str))
    fields = {field.name for field in dataclasses.fields(configuration)}
    aliases = {alias: key for alias, key in configuration.attribute_map.items() if key in found or alias in found}
    for alias, key in aliases.items():
        found.setdefault(key, None)
        found[alias] = usual.get(key)
    known = {key: usual.get(key, default) for key, default in found.items()}
    methods = {name for name in dir(configuration) if callable(getattr(configuration, name, None))}
    return {key: known[key] for key in sorted(known) if key not in methods or key in fields}


def nulls_of(family: str) -> list[str]:
    """The keys of a family for which null is a value of its own."""
    configuration = CONFIG_MAPPING[family]
    usual, found = configuration().to_dict(), []
    for key in usual:
        with contextlib.suppress(Exception):  # the class refuses null
            if configuration(**{key: None}).to_dict().get(key, usual[key]) != usual[key]:
                found.append(key)
    return sorted(found)


SHARED = (  # the files that masks, rotations, caches, layers and heads of all families are in
    "backbone_utils", "cache_utils", "configuration_utils", "core_model_loading", "fusion_mapping",
    "integrations/heterogeneity/configuration_utils", "integrations/moe", "integrations/sdpa_attention",
    "masking_utils", "modeling_layers", "modeling_rope_utils", "modeling_utils", "utils/generic",
    "utils/output_capturing",
)  # fmt: skip


def shared_keys() -> dict[str, list[str]]:
    """The keys that the files of SHARED read, and those of a rotation."""
    root, found = pathlib.Path(transformers.__file__).parent, {}
    methods = {name for name in dir(PreTrainedConfig) if callable(getattr(PreTrainedConfig, name))}
    for name in SHARED:
        path = root / f"{name}.py"
        keys = {str(key) for key, _ in reads(path, "configuration_utils" in name)}
        found[name] = sorted(key for key in keys - methods if not key.startswith("__"))
    return found | {"rope_parameters": sorted(set(subscripts(root / "modeling_rope_utils.py")))}


def subscripts(path: pathlib.Path) -> Iterator[str]:
    """Yield the entries of an object of rope_parameters that a file reads: x["KEY"] and x.get("KEY")."""
    for node in ast.walk(ast.parse(path.read_text())):
        of, key = None, None
        if isinstance(node, ast.Subscript):
            of, key = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
            of, key = node.func.value, node.args[0]
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and "rope" in ast.unparse(of):
            yield key.value


def add_later(known: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What was known, with the keys that are new in this version under its number."""
    new = {name: sorted({*found[name]} - {*known.get(name, [])}) for name in found}
    return known | {"later": known.get("later", {}) | {transformers.__version__: {k: v for k, v in new.items() if v}}}


def main() -> None:
    shared = HERE / "shared_keys.json"
    if transformers.__version__ != FIRST:
        keys = json.loads((HERE / "keys.json").read_text())
        found = {family: keys_of(family) for family in keys}
        known = json.loads(shared.read_text()) | {family: one["keys"] for family, one in keys.items()}
        later = add_later(known, shared_keys() | found)["later"]
        shared.write_text(json.dumps(json.loads(shared.read_text()) | {"later": later}, indent=1) + "\n")
        return
    shared.write_text(json.dumps(shared_keys(), indent=1) + "\n")
    families = sorted({name.split()[0] for name in json.loads((HERE / "configs.json").read_text())})
    lines = (
        f"{json.dumps(family)}: {json.dumps({'keys': keys_of(family), 'nulls': nulls_of(family)})}"
        for family in families
    )
    (HERE / "keys.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
