"""The recipe of a run: from its options, and from the run that it resumes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attnkit.errors import DataError, UsageError, with_article
from attnkit.training.families import FAMILIES, can_choose_pairs, check_family_options
from attnkit.training.recipe import Recipe
from attnkit.training.reports import read_origin

ENDS = ("steps", "epochs", "minutes", "patience")


def choose_recipe(chosen: Mapping[str, Any], resume: str | None, name: str, digest: str) -> Recipe:
    """The recipe of the options, or of the run to resume with another end.

    DataError if the data of a run to be resumed are others.
    """
    if resume is None:
        check_sizes(chosen)
        return Recipe(**chosen).check()
    origin, recipe = read_origin(resume)
    if digest != origin.digest:
        raise DataError(f"other data than those of {resume} (SHA-256 {origin.digest[:12]}… then)", name)
    ends: Any = dict.fromkeys(ENDS) if set(ENDS) & set(chosen) else {}
    return replace(recipe, **(ends | chosen)).check()


def check_sizes(values: Mapping[str, Any]) -> None:
    """Raise UsageError for sizes or pairs that the family of a new model lacks."""
    family = values.get("family", Recipe.family)
    if not {"from_", "config"} & set(values):
        check_family_options(family, values)
    if "pairs" in values and not can_choose_pairs(family) and not {"from_", "config"} & set(values):
        others = " or ".join(f"--family {one}" for one in FAMILIES if can_choose_pairs(one))
        raise UsageError(f"{with_article(family)} model always learns the same way; {others} can choose", "--pairs")
