"""The mesh of devices: which part of each parameter and input every device holds."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attnkit.backends.jax.formulas import JaxArray
from attnkit.backends.jax.inputs import BATCHED
from attnkit.checkpoints.checkpoint import Parameters
from attnkit.errors import UsageError, with_article
from attnkit.formats import release_pages
from attnkit.model.config import Config, Step, parse_layer_name
from attnkit.model.dtypes import Array

AXES = ("data", "model", "seq")  # texts; heads and features; tokens
COLUMNS = ("wq", "wk", "wv", "w1", "w3")  # weights (in, out) of which each device has some columns
ROWS = ("wo", "w2")  # of which each has some rows, whose products are added up
TOKENS = {"x": 1, "types": -1, "positions": -1}  # input -> its axis of tokens
TOKENS |= dict.fromkeys(("sinusoids", "memory", "rotary", "local_rotary", "grid_rotary"), -2)
WIDENED = 1 << 20  # bytes of an array that a device widens; a smaller one takes less time than its program


def parse_mesh(text: str) -> dict[str, int]:
    """Read the axes of a mesh: data (texts), model (heads and features), seq (tokens)."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if axis not in AXES or axis in sizes or not (size.isascii() and size.isdigit() and 0 < int(size) < 1 << 20):
            raise UsageError(f"expected data=N,model=N,seq=N, or some of them, got {text!r}", "--mesh")
        sizes[axis] = int(size)
    return sizes


def make_mesh(sizes: Mapping[str, int]) -> Mesh:
    """A mesh of devices by data, model and seq; UsageError if there are too few."""
    shape = [sizes.get(axis, 1) for axis in AXES]
    count, devices = int(np.prod(shape)), jax.devices()
    if count > len(devices):
        are = "is 1" if len(devices) == 1 else f"are {len(devices)}"
        raise UsageError(f"{count} devices, but there {are}: attnkit engines lists them", "--mesh")
    if count < len(devices) and jax.process_count() > 1:
        raise UsageError(f"{count} devices, but the processes have {len(devices)}, which all compute", "--mesh")
    return Mesh(np.array(devices[:count]).reshape(shape), AXES)


def check_mesh(config: Config, mesh: Mesh | None) -> None:
    """Raise UsageError for a model that cannot be split over a mesh, if there is one."""
    if mesh is None:
        return
    parts = mesh.shape["model"]
    if config.is_recurrent:
        for axis in ("model", "seq"):
            if mesh.shape[axis] > 1:
                problem = f"the layers of {with_article(config.family)} model are not split: data splits its texts"
                raise UsageError(problem, f"--mesh {axis}")
    for name in config.stacks:
        stack = config.stack(name)
        for count, noun in ((stack.heads, "heads"), (stack.hidden, "features of the feed-forward network")):
            if count % parts:
                raise UsageError(f"{count} {noun} are not divisible by model={parts}", "--mesh")
    if mesh.shape["seq"] > 1 and config.positions.relative == "disentangled":
        problem = f"the scores of {with_article(config.family)} model need all keys at once; data and model split it"
        raise UsageError(problem, "--mesh seq")
    if mesh.shape["seq"] > 1 and (config.patches or config.sound):
        whole = "an image" if config.patches else "a sound"
        raise UsageError(f"{whole} is not split; data and model split what computes it", "--mesh seq")


def parameter_spec(config: Config, mesh: Mesh, layer: str, name: str, shape: tuple[int, ...]) -> PartitionSpec:
    """How a parameter is split: by heads, features or width, or not at all."""
    parts = mesh.shape["model"]
    stack_name, _, part = parse_layer_name(layer)
    if part in ("self", "cross") and name[1:] in ("k", "v") and config.stack(stack_name).kv_heads % parts:
        return PartitionSpec()
    if part in ("self", "cross", "ffn"):
        if name in COLUMNS:
            return PartitionSpec(None, "model")
        if name in ROWS:
            return PartitionSpec("model", None)
        if name.replace("b", "w", 1) in COLUMNS:
            return PartitionSpec("model")
    is_table = part in ("embed", "positions") and name == "table"
    if is_table and shape[-1] % parts == 0:
        return PartitionSpec(None, "model")
    if layer == "head" and name == "w" and shape[0] % parts == 0:
        return PartitionSpec("model", None)
    return PartitionSpec()


def input_spec(name: str, array: Array) -> PartitionSpec:
    """How an input is split: texts over `data`, tokens over `seq`."""
    axes: list[str | None] = [None] * array.ndim
    if name in TOKENS and array.ndim > TOKENS[name] >= -array.ndim:
        axes[TOKENS[name]] = "seq"
    is_mask = name.endswith(("mask", "bias"))
    if array.ndim == 4 and len(array) > 1 if is_mask else name in BATCHED and array.ndim >= BATCHED[name]:
        axes[0] = "data"
    return PartitionSpec(*axes)


Views = dict[str, dict[str, tuple[str, bool]]]  # layer -> parameter -> name of its array, whether transposed


def assemble(views: Views, arrays: Mapping[str, JaxArray], layers: Sequence[str]) -> dict[str, dict[str, JaxArray]]:
    """The parameters of some layers from placed arrays."""
    return {
        layer: {name: arrays[key].T if turned else arrays[key] for name, (key, turned) in views[layer].items()}
        for layer in layers
    }


def used_layers(config: Config, steps: Sequence[Step], params: Mapping[str, Any]) -> list[str]:
    """The layers with parameters for some steps, relative positions included."""
    names = []
    for step in steps:
        stack, number, part = parse_layer_name(step.layer)
        names += config.with_experts(step.layer)
        if part == "rnn":
            own = (f"decoder.{number}.bridge", f"decoder.{number}.bridge_cell")
            whole = (name for name in config.layer_names() if name.startswith("decoder."))  # with attention inside
            names += whole if number is None else own if stack == "decoder" else ()
        if part == "self" and config.positions.relative:
            names += [f"{stack}.bias", f"{stack}.relative", f"{stack}.{number}.relative"]
    return [name for name in dict.fromkeys(names) if name in params]


class PlacedParameters:
    """The parameters of a model on devices, placed at first use, tied ones once.

    params  layer -> {parameter: array}, in NumPy
    """

    def __init__(
        self, config: Config, params: Mapping[str, Mapping[str, Array]], dtype: Any, mesh: Mesh | None
    ) -> None:
        self.config, self._params, self._dtype, self._mesh = config, params, dtype, mesh
        self.views: Views = {}
        self._arrays: dict[str, JaxArray] = {}
        self._owners: dict[tuple[Any, ...], str] = {}

    def arrays(self, layers: Sequence[str]) -> dict[str, JaxArray]:
        """The arrays of some layers by name."""
        for layer in layers:
            if layer not in self.views:
                parts = stored_parameters(self._params, layer)
                self.views[layer] = {name: self._place(layer, name, parts[name]) for name in parts}
        keys = sorted({key for layer in layers for key, _ in self.views[layer].values()})
        return {key: self._arrays[key] for key in keys}

    def assemble(self, arrays: Mapping[str, JaxArray], layers: Sequence[str]) -> dict[str, dict[str, JaxArray]]:
        """The parameters of some layers from placed arrays."""
        return assemble(self.views, arrays, layers)

    def _place(self, layer: str, name: str, array: Array) -> tuple[str, bool]:
        """Place a parameter unless it is tied: name of its array, whether transposed."""
        address = array.__array_interface__["data"][0]
        for is_turned, one in ((False, array), (True, array.T)):
            if array.size > 1 and (key := self._owners.get((address, one.shape, one.strides))):
                return key, is_turned
        key = f"{layer}.{name}"
        self._owners[address, array.shape, array.strides] = key
        spec = self._mesh and parameter_spec(self.config, self._mesh, layer, name, array.shape)
        self._arrays[key] = put(array, self._dtype, self._mesh, spec or PartitionSpec())
        if isinstance(self._params, Parameters):
            release_pages(array)
        return key, False


def stored_parameters(params: Mapping[str, Mapping[str, Array]], layer: str) -> Mapping[str, Array]:
    """The parameters of a layer; those of a file are views in their stored dtype."""
    return params.stored(layer) if isinstance(params, Parameters) else params[layer]


def empty_parameters(params: Mapping[str, Mapping[str, Array]], layer: str) -> list[Array]:
    """An empty array for each parameter of a layer, in the dtype that NumPy uses."""
    stored = stored_parameters(params, layer).values()
    is_widened = isinstance(params, Parameters)
    return [np.empty(0, np.float32 if is_widened and x.dtype.itemsize == 2 else x.dtype) for x in stored]


def put(array: Array, dtype: Any, mesh: Mesh | None, spec: PartitionSpec) -> JaxArray:
    """Put a copy of an array on devices.

    Every process reads only the parts that it holds.
    """
    if mesh is None and array.nbytes >= WIDENED and array.dtype.itemsize < np.dtype(dtype).itemsize:
        return jnp.array(array, dtype)  # which the device widens, by a program of its own for each shape
    if mesh is None:
        return jax.device_put(np.array(array, dtype, order="C"))

    def read(index: tuple[slice, ...]) -> Array:
        return np.array(array[index], dtype, order="C")

    return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), read)
