"""The keys of config.json that the code of transformers 5.23.0 reads, for each family, frozen.

    python tests/references/make_keys.py

It parses the modeling and the configuration file of each family: the attributes of a configuration that a model reads,
and the keyword arguments that the class of the configuration takes beside its fields. keys.json has for each family

keys   the keys with the value that the class gives them if the file does not have them, null if there is none
nulls  the keys for which the class accepts null, as a value other than that of a file without the key
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
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

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


def main() -> None:
    families = sorted({name.split()[0] for name in json.loads((HERE / "configs.json").read_text())})
    lines = (
        f"{json.dumps(family)}: {json.dumps({'keys': keys_of(family), 'nulls': nulls_of(family)})}"
        for family in families
    )
    (HERE / "keys.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
