"""Pictures in a prompt: their tiles, the tokens in their place, and their names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from attnkit.checkpoints.picture_towers import PictureTokens
from attnkit.errors import DataError, UsageError, counted
from attnkit.inputs import image_processor, patches
from attnkit.records import Array, Labels, Record, Tensor
from attnkit.tokenizers import Tokenizer

if TYPE_CHECKING:
    from attnkit import model
    from attnkit.checkpoints import Checkpoint

FAKE, WHOLE_TAG = "<fake_token_around_image>", "<global-img>"  # of Idefics3 and SmolVLM


@dataclass(frozen=True)
class Tiles:
    """How many rows of a text a picture becomes.

    rows, columns  of the tiles that it is cut into, before the whole picture; 0: it is not cut
    edge           height and width of each, in pixels
    grid           rows and columns of the blocks of patches of each tile
    before         rows of each tile before those of blocks
    """

    rows: int
    columns: int
    edge: tuple[int, int]
    grid: tuple[int, int]
    before: int = 0

    @property
    def number(self) -> int:
        """The number of tiles, the whole picture among them."""
        return self.rows * self.columns + 1

    @property
    def each(self) -> int:
        """Rows of a text that a tile becomes."""
        return self.before + self.grid[0] * self.grid[1]

    @property
    def tokens(self) -> int:
        """Rows of a text that the picture becomes.

        >>> Tiles(2, 3, (512, 512), (8, 8)).tokens
        448
        """
        return self.number * self.each

    def describe(self) -> str:
        """The tiles and their tokens in words.

        >>> Tiles(2, 3, (512, 512), (8, 8)).describe(), Tiles(0, 0, (336, 336), (24, 24)).describe()
        ('2 x 3 tiles and the whole, each 512 x 512 and 64 tokens: 448 tokens', 'the whole, 336 x 336: 576 tokens')
        """
        height, width = self.edge
        if not self.rows:
            return f"the whole, {width} x {height}: {counted(self.tokens, 'token')}"
        cut = f"{self.rows} x {self.columns} tiles and the whole, each {width} x {height}"
        return f"{cut} and {counted(self.each, 'token')}: {counted(self.tokens, 'token')}"

    def names(self) -> list[str]:
        """The names of the rows: blocks by their place in a tile, or in the whole.

        >>> Tiles(1, 2, (4, 4), (1, 1)).names(), Tiles(0, 0, (4, 4), (1, 2)).names()
        (['tile1.1 r0c0', 'tile1.2 r0c0', 'r0c0'], ['r0c0', 'r0c1'])
        """
        rows, columns = self.grid
        blocks = [patches.CLASS] * self.before + [
            f"r{row}c{column}" for row in range(rows) for column in range(columns)
        ]
        tiles = [f"tile{row + 1}.{column + 1} " for row in range(self.rows) for column in range(self.columns)]
        return [f"{tile}{block}" for tile in (*tiles, "") for block in blocks]


def find_tiles(checkpoint: "Checkpoint", size: tuple[int, int], is_cut: bool = True) -> Tiles:
    """The tiles of a picture of a height and width, by the files of a model.

    is_cut  whether the picture is one to be processed, not pixels as the tower reads them
    """
    config = checkpoint.tower("vision").config
    cut, connector = config.patches, config.connector
    assert cut is not None
    assert connector is not None
    edge, splits = size, (0, 0)
    if is_cut:
        processor = image_processor.read_processor(checkpoint.place, (cut.height, cut.width))
        edge, splits = processor.tile_edge(size), processor.tile_grid(size)
    rows, columns = cut.grid(*edge)
    if rows % connector.block or columns % connector.block or 0 in (rows, columns):
        block = f"blocks of {connector.block} x {connector.block}"
        raise DataError(f"{edge[1]}x{edge[0]} pixels are {rows} x {columns} patches, which are not {block}", "--image")
    before = cut.before if connector.grouping == "all" else 0
    return Tiles(*splits, edge, (rows // connector.block, columns // connector.block), before)


def tiles_of_image(checkpoint: "Checkpoint", image: Array) -> Tiles:
    """The tiles of an image, or of pixels as the tower reads them.

    image  (height, width, 3) uint8, or floats (C, height, width)
    """
    if image.dtype.kind != "f":
        image_processor.check_pixels(image, "--image")
        return find_tiles(checkpoint, (image.shape[0], image.shape[1]))
    if image.ndim != 3:
        raise DataError(f"{image.dtype} {image.shape} is no image (expected floats (C, height, width))", "--image")
    return find_tiles(checkpoint, (image.shape[1], image.shape[2]), is_cut=False)


def cut_image(checkpoint: "Checkpoint", image: Array) -> Array:
    """The tiles of an image and the whole after them: (N, C, height, width)."""
    if image.dtype.kind == "f":
        return image[None]
    cut = checkpoint.tower("vision").config.patches
    assert cut is not None
    processor = image_processor.read_processor(checkpoint.place, (cut.height, cut.width))
    return np.stack([processor.normalize(tile) for tile in processor.cut(image, "--image")])


def find_shown_part(checkpoint: "Checkpoint", image: Array) -> Record:
    """The box of what the patches of the whole picture cover; nothing for floats."""
    cut = checkpoint.tower("vision").config.patches
    assert cut is not None
    if image.dtype.kind == "f":
        return Record({})
    given = image.shape[0], image.shape[1]
    processor = image_processor.read_processor(checkpoint.place, (cut.height, cut.width))
    edge = processor.tile_edge(given)
    box = patches.WHOLE if processor.known.cuts else processor.box(given, "--image")
    return patches.find_box(patches.describe_image(cut, (cut.channels, *edge), box))


PATCH_AXES = {"token": "patch", "query": "patch query", "key": "patch key", "batch": "tile"}
BLOCK_AXES = {"token": "block", "batch": "tile"}


def name_picture_axes(record: Record, tiles: Tiles, checkpoint: "Checkpoint") -> Record:
    """A trace with axes and labels of their own for the tower and its connector."""
    cut = checkpoint.tower("vision").config.patches
    assert cut is not None
    tensors, used = dict[str, Tensor](), set[str]()
    for name, one in record.tensors.items():
        axes = {"encoder": PATCH_AXES, "connector": BLOCK_AXES}.get(name.partition(".")[0], {})
        tensors[name] = replace(one, axes=tuple(axes.get(axis, axis) for axis in one.axis_names()))
        used |= {*axes.values()} & {*(tensors[name].axes or ())}
    named = patches.name_patches(cut, *tiles.edge)
    places = [f"tile{row + 1}.{column + 1}" for row in range(tiles.rows) for column in range(tiles.columns)]
    labels: dict[str, Labels] = {"tile": [*places, "whole"], "block": tiles.names()[-tiles.each :]}
    labels |= dict.fromkeys(("patch", "patch query", "patch key"), named)
    return Record(tensors, {**record.labels, **{axis: labels[axis] for axis in used}}, record.history)


def write_tiles(words: Sequence[str], tiles: Tiles) -> str:
    """What Idefics3 and SmolVLM read for a picture: rows of tiles, then the whole."""
    image = words[0] * tiles.each
    lines = [
        "".join(f"{FAKE}<row_{row + 1}_col_{column + 1}>{image}" for column in range(tiles.columns)) + "\n"
        for row in range(tiles.rows)
    ]
    return "".join([*lines, *["\n"] * bool(lines), FAKE, WHOLE_TAG, image, FAKE])


def write_framed(words: Sequence[str], tiles: Tiles) -> str:
    """What Gemma 3 reads: the rows between two tokens, and empty lines around these."""
    image, begin, end = words
    return f"\n\n{begin}{image * tiles.tokens}{end}\n\n"


# PictureTokens.form -> (the spellings of its tokens, tiles) -> the text in place of a picture
PLACEHOLDERS: Mapping[str, Callable[[Sequence[str], Tiles], str]] = {
    "tiles": write_tiles,
    "rows": lambda words, tiles: words[0] * tiles.tokens,
    "framed": write_framed,
}


def require_pictures(checkpoint: "Checkpoint") -> PictureTokens:
    """How a text of a model holds pictures; UsageError if it holds none."""
    if checkpoint.pictures is None:
        raise UsageError("the texts of this model hold no pictures", "--image")
    return checkpoint.pictures


def write_placeholders(text: str, checkpoint: "Checkpoint", tokenizer: Tokenizer, tiles: Tiles) -> str:
    """A prompt with the tokens of its picture in place of the one that stands for it.

    UsageError for a prompt with none or several of these.
    """
    tokens, words = require_pictures(checkpoint), tokenizer.vocabulary
    ids = (tokens.id, *tokens.ends)
    if max(*ids, tokens.stands) >= len(words):
        raise DataError(f"token {max(*ids, tokens.stands)} of a picture is not in the vocabulary", checkpoint.place)
    stands = words[tokens.stands]
    if (count := text.count(stands)) != 1:
        hint = f"; write {stands} where the picture is, or use --chat" if not count else ""
        raise UsageError(f"one picture, and the prompt has {stands} {count} times (expected once){hint}", "--image")
    return text.replace(stands, PLACEHOLDERS[tokens.form]([words[id] for id in ids], tiles))


def place_rows(ids: Sequence[int], checkpoint: "Checkpoint", tiles: Tiles) -> Array:
    """The places of the tokens of a picture in a text, (N,).

    DataError for another number of these than the picture has rows.
    """
    tokens = require_pictures(checkpoint)
    places = np.flatnonzero(np.asarray(ids) == tokens.id)
    if len(places) != tiles.tokens:
        found = f"{counted(len(places), 'token')} of a picture (id {tokens.id})"
        raise DataError(f"the text has {found}, and the picture becomes {tiles.tokens}", "--image")
    return places


def picture_groups(places: Array) -> Array:
    """The picture of each token, which is a run of tokens without others between.

    >>> picture_groups(np.array([2, 3, 7])).tolist()
    [0, 0, 1]
    """
    return np.cumsum(np.diff(places, prepend=places[:1]) > 1)


def embed_picture(
    checkpoint: "Checkpoint", images: Array, places: Array, core: "model.Model", hook: "model.Hook", dtype: str | None
) -> "model.Pictures":
    """Compute what stands in a text for a picture, by the tower and its connector.

    images  (N, C, height, width), the tiles; a single one is computed without an axis for it
    core    the tower
    """
    from attnkit import model

    rows = model.read_pictures(core, images if len(images) > 1 else images[0], hook, dtype)
    groups = picture_groups(places) if require_pictures(checkpoint).attends else None
    return model.Pictures(places, rows.reshape(-1, rows.shape[-1]), groups)
