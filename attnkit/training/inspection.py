"""The activations and gradients of a step as a record, and the first of them that is not finite."""

from collections.abc import Callable

import numpy as np

from attnkit.errors import AttnkitError
from attnkit.interpret.tracer import intermediate_axes
from attnkit.model import Array
from attnkit.record import Record, Tensor
from attnkit.training.numpy_state import Hooks
from attnkit.training.trainer import Trainer

GRADIENT = ".grad"  # after the name of what it is the gradient of, as in PyTorch


def record_step(trainer: Trainer, number: int) -> Record:
    """Return every intermediate of a step, and the gradients of intermediates and parameters as NAME.grad.

    Of a batch in several passes they are those of the last; gradients of parameters are those of all. The step itself
    computes large passes in parts at once, which rounds the last bits in another way.
    """
    activations: dict[str, Array] = {}
    slopes: dict[str, Array] = {}
    plan, state = trainer.plan(number), trainer.state.fetch()
    batch = plan.batch
    tensors = {"ids": batch.ids, "target": batch.targets} | ({} if batch.source is None else {"source": batch.source})
    hooks = Hooks(keeping(activations), keeping(slopes))
    try:
        state.collect_gradients(plan, hooks)
        slopes |= {name: state.gradient_of(name) for name in trainer.table.names}
    except AttnkitError:  # an operator refuses what is not finite: what came before it is kept
        pass
    named: dict[str, Tensor] = {
        name: Tensor(array, ("batch", "token")[: array.ndim]) for name, array in tensors.items()
    }
    named |= {name: Tensor(array, intermediate_axes(name, array.ndim)) for name, array in activations.items()}
    for name, array in slopes.items():
        axes = named[name].axes if name in activations else None  # those of a parameter are as in its file
        named[name + GRADIENT] = Tensor(np.array(array), axes)
    return Record(named)


def keeping(arrays: dict[str, Array]) -> Callable[[str], Callable[[Array], Array]]:
    """Return a hook that copies every intermediate to a dictionary, in their order."""

    def visit(name: str) -> Callable[[Array], Array]:
        def keep(array: Array) -> Array:
            arrays[name] = np.array(array)
            return array

        return keep

    return visit


def first_non_finite_stage(record: Record) -> str:
    """Return the name and the value of the first tensor that is not finite, "" where all are.

    >>> first_non_finite_stage(Record({"a": np.ones(2), "b": np.array([1.0, np.inf]), "c": np.array([np.nan])}))
    'b is inf'
    """
    for name, array in record.arrays().items():
        if array.dtype.kind == "f" and not np.isfinite(array).all() and not is_masked(name):
            return f"{name} is {array[~np.isfinite(array)].flat[0]}"
    return ""


def is_masked(name: str) -> bool:
    """Return whether an intermediate has -inf where a query may not attend.

    >>> is_masked("decoder.0.self.masked"), is_masked("decoder.0.self.weights")
    (True, False)
    """
    return name.endswith(".masked")
