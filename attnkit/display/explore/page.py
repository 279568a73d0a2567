"""The page: its skeleton, style and scripts as one file, which loads nothing."""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from attnkit.display.colors import DARK, LIGHT, NOT_FINITE_COLOR, SERIES, Palette, color_map
from attnkit.display.figures import FigureOptions
from attnkit.display.figures.html import MONO, SANS, escape_text
from attnkit.model.intermediates import ATTENTION, PARTS

SHARED = ("elements", "numbers", "data", "draw", "maps", "cells", "app")
SCRIPTS = (
    *SHARED,
    "heads",
    "text",
    "picture",
    "difference",
    "lens",
    "stages",
    "cell",
    "training",
    "start",
)  # in this order
MAPS = ("viridis", "bwr")
PRECISION = 4  # decimals, as in tables of `show`


def explore_page(payload: Mapping[str, Any], options: FigureOptions, name: str) -> str:
    """The page of a payload, light or dark as the theme or the browser says.

    The policy of the page lets its own script and style run by their SHA-256, and loads nothing else.

    >>> page = explore_page({"traces": [], "note": "</script>"}, FigureOptions(), "attnkit explore")
    >>> page.count("</script>"), "connect-src" in page, "default-src 'none'" in page
    (2, False, True)
    """
    runs = dict.fromkeys(one["name"].removesuffix(f" step {one.get('step')}") for one in payload["traces"])
    title = options.title or f"{name}: {', '.join(runs)}"
    style, script = _style(), '"use strict";\n' + "\n".join(_asset(f"{part}.js") for part in SCRIPTS)
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:"
    look = {
        "title": title,
        "rows": {name: "query" if "query" in (ATTENTION[name].axes or ()) else "key" for name in PARTS},
        "maps": {one: color_map(one) for one in MAPS},
        "series": SERIES,
        "sans": SANS,
        "mono": MONO,
        "precision": PRECISION if options.precision is None else options.precision,
    }
    values = {
        "policy": f"{policy}; base-uri 'none'; form-action 'none'",
        "title": escape_text(title),
        "theme": f' data-theme="{options.theme}"' if options.theme in ("light", "dark") else "",
        "style": style,
        "script": script,
        "payload": inline_json({**payload, "look": look}),
    }
    head, *parts = _asset("page.html").split("{{")  # one pass: no value is looked for names of others
    for part in parts:
        key, _, rest = part.partition("}}")
        head += values[key] + rest
    return head


def inline_json(value: Any) -> str:
    """A value as JSON that cannot end a script element.

    >>> inline_json(["</script>", chr(0x202E)])
    '["\\\\u003c/script>","\\\\u202e"]'
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


@cache
def _style() -> str:
    light, dark = (_variables(palette) for palette in (LIGHT, DARK))
    rules = (
        f":root {{ {light} --not-finite: {NOT_FINITE_COLOR}; --sans: {SANS}; --mono: {MONO} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme]) {{ {dark} }} }}\n"
        f"@media screen {{ :root[data-theme=dark] {{ {dark} }} }}\n"
    )
    return rules + _asset("style.css")


def _variables(palette: Palette) -> str:
    return " ".join(f"--{name}: {color};" for name, color in palette._asdict().items())


@cache
def _asset(name: str) -> str:
    return resources.files("attnkit.display.explore").joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
