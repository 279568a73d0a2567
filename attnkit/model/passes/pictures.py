"""Pictures in a text: the rows that stand in place of the embeddings of tokens."""

from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array
from attnkit.model.hooks import Hook, no_hook
from attnkit.model.layers.connector import connector_model
from attnkit.model.passes.transformer import run


def connect_states(model: Model, x: Array, grid: tuple[int, int] | None = None, hook: Hook = no_hook) -> Array:
    """Make rows of a text of the last states of a tower of pictures.

    x (..., T, D) -> (..., T', E)

    grid  rows and columns of the patches [those of a picture of the model's size]
    """
    return run(connector_model(model), model.config.plan("connector"), x, Context(grid=grid, hook=hook))


def read_pictures(model: Model, images: Array, hook: Hook = no_hook, dtype: str | None = None) -> Array:
    """Rows of a text of each of several pictures, by the tower and its connector.

    images (B, C, height, width) -> (B, T', E)
    """
    context = Context(hook=hook, dtype=dtype)
    x = run(model, model.config.plan("encoder"), images, context)
    return connect_states(model, x, context.grid, hook)
