"""How implementations are used that are no function of arrays.

These are optimizers, batches, tokenizers and checkpoints.

This file is sent behind `interpreter.py` to the process of an implementation, so it imports the standard library and
NumPy alone. A driver has the interpreter, the argument that each parameter takes, and the values of the arguments; it
returns arrays.
"""

import contextlib
import inspect
import io
import os
import sys
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Bound = Mapping[str, str]  # argument by parameter
Values = Mapping[str, Any]  # value by argument

LISTS = {"params", "parameters", "grads", "gradients"}  # names of a list of arrays, not of one
OF_PARAMETERS = {*LISTS - {"grads", "gradients"}, "param", "parameter", "w", "weights", "theta", "variables", "x"}
OF_GRADIENTS = {"grads", "gradients", "grad", "gradient", "dw", "g", "dx"}
UPDATES = ("step", "update", "apply_gradients", "apply", "__call__")  # methods of an optimizer
RATES = ("get_lr", "lr_at", "get_learning_rate", "__call__")  # methods of a schedule
MOST_BYTES = 24  # of a token in an array


def choose(bound: Bound, values: Values) -> dict[str, Any]:
    """The values of parameters, without those that have none."""
    return {parameter: values[argument] for parameter, argument in bound.items() if argument in values}


def flatten_arrays(interpreter: Any, arrays: Sequence[Any]) -> Any:
    """Arrays of a library side by side in one row."""
    return np.concatenate([np.array(interpreter.to_numpy(one)).ravel() for one in arrays])


def is_like(result: Any, arrays: Sequence[Any]) -> bool:
    """Whether a result is a list of arrays in the shapes of others."""
    return (
        isinstance(result, (list, tuple))
        and len(result) == len(arrays)
        and all(
            hasattr(one, "shape") and tuple(one.shape) == tuple(own.shape)
            for one, own in zip(result, arrays, strict=True)
        )
    )


# optimizers


def optimize(interpreter: Any, bound: Bound, given: Values, dtype: str) -> list[Any]:
    """All parameters after each step of an optimizer: (N, P)."""
    arrays = [interpreter.from_numpy(given[name], dtype) for name in ("w", "b")]
    steps = [
        [interpreter.from_numpy(given[name][at], dtype) for name in ("gw", "gb")] for at in range(len(given["gw"]))
    ]
    numbers: dict[str, Any] = {name: one for name, one in given.items() if isinstance(one, (int, float))}
    numbers["betas"] = (given["beta1"], given["beta2"])
    rates = [float(one) for one in given.get("rates", [given["lr"]] * len(steps))]
    make = optimize_by_class if inspect.isclass(interpreter.target) else optimize_by_function
    return [
        np.stack([flatten_arrays(interpreter, one) for one in make(interpreter, bound, arrays, steps, rates, numbers)])
    ]


def optimize_by_class(
    interpreter: Any, bound: Bound, arrays: Any, steps: Any, rates: Sequence[float], numbers: dict[str, Any]
) -> Any:
    """Yield the parameters after each step of an instance.

    It finds the gradients in the parameters, or its method takes them.
    """
    if interpreter.library == "torch":
        import torch

        arrays = [torch.nn.Parameter(one) for one in arrays]
    optimizer = interpreter.target(**choose(bound, {**numbers, "lr": rates[0], "params": arrays}))
    method = getattr(optimizer, next((one for one in UPDATES if hasattr(optimizer, one)), "step"))
    names = [one.name for one in inspect.signature(method).parameters.values() if one.default is one.empty]
    for gradients, rate in zip(steps, rates, strict=True):
        set_rate(optimizer, rate)
        if interpreter.library == "torch":
            for one, gradient in zip(arrays, gradients, strict=True):
                one.grad = gradient
        handed = []
        for name in names:
            handed += [arrays] * (name in OF_PARAMETERS) + [gradients] * (name in OF_GRADIENTS)
        result = method(*handed)
        arrays = list(result) if is_like(result, arrays) else arrays
        yield arrays


def set_rate(optimizer: Any, rate: float) -> None:
    """Set the learning rate of an optimizer, as a schedule does."""
    for group in getattr(optimizer, "param_groups", []):
        group["lr"] = rate
    for name in ("lr", "learning_rate", "alpha"):
        if hasattr(optimizer, name):
            setattr(optimizer, name, rate)


def optimize_by_function(
    interpreter: Any, bound: Bound, arrays: Any, steps: Any, rates: Sequence[float], numbers: dict[str, Any]
) -> Any:
    """Yield the parameters after each call of a function.

    It is called for each of them, or for a list.
    """
    is_of_lists = any(name.lower() in LISTS for name in bound)
    zeros = [one * 0 for one in arrays]
    states: list[dict[str, Any]] = [
        {"params": one, "mean": zero, "square": zero * 0, "config": {}} for one, zero in zip(arrays, zeros, strict=True)
    ]
    if is_of_lists:
        states = [{name: [one[name] for one in states] for name in ("params", "mean", "square")} | {"config": {}}]
    for state in states:
        state["config"].update({**numbers, "learning_rate": numbers["lr"], "epsilon": numbers["eps"]})
    for at, (gradients, rate) in enumerate(zip(steps, rates, strict=True), 1):
        for state, gradient in zip(states, [gradients] if is_of_lists else gradients, strict=True):
            state["config"]["learning_rate"] = rate
            values = {**numbers, **state, "lr": rate, "gradients": gradient, "step": at}
            take_state(state, bound, interpreter.target(**choose(bound, values)), is_of_lists)
        yield states[0]["params"] if is_of_lists else [one["params"] for one in states]


def take_state(state: dict[str, Any], bound: Bound, result: Any, is_of_lists: bool) -> None:
    """Put what a call returned in a state.

    That is the parameter, and behind it its moments, or its configuration.
    """
    if result is None:
        return
    is_several = isinstance(result, tuple) or (isinstance(result, list) and is_of_lists and isinstance(result[0], list))
    parts = list(result) if is_several else [result]
    if is_of_lists and is_several and not isinstance(parts[0], (list, tuple)):
        parts = [list(result)]
    state["params"] = parts[0]
    carried = [name for name in ("mean", "square") if name in bound.values()]
    for name, one in zip(carried or ["config"], parts[1:], strict=False):
        state[name] = one


def clip_norms(interpreter: Any, bound: Bound, given: Values, dtype: str) -> list[Any]:
    """All gradients after they were clipped, in place or as a result."""
    gradients = [interpreter.from_numpy(given[name], dtype) for name in ("g1", "g2")]
    values = {**given, "gradients": gradients}
    if "params" in bound.values():
        if interpreter.library == "torch":
            import torch

            params: list[Any] = [torch.nn.Parameter(one * 0) for one in (*gradients, gradients[0])]
        else:
            params = [types.SimpleNamespace(grad=None, requires_grad=True) for _ in range(3)]
        for one, gradient in zip(params, gradients, strict=False):
            one.grad = gradient
        values["params"] = params if given.get("frozen") else params[:2]
        interpreter.target(**choose(bound, values))
        return [flatten_arrays(interpreter, [one.grad for one in params[:2]])]
    result = interpreter.target(**choose(bound, values))
    for part in (result, result[0] if isinstance(result, tuple) else None):
        if part is not None and is_like(part, gradients):
            return [flatten_arrays(interpreter, part)]
    return [flatten_arrays(interpreter, gradients)]


def call_each(interpreter: Any, bound: Bound, given: Values, dtype: str) -> list[Any]:
    """The number that a function returns for each step."""
    steps = [int(one) for one in given["steps"]]
    if inspect.isclass(interpreter.target):
        instance = interpreter.target(**choose(bound, given))
        method = getattr(instance, next((one for one in RATES if hasattr(instance, one)), "__call__"))
        found = [method(one) for one in steps]
    else:
        found = [interpreter.target(**choose(bound, {**given, "steps": one})) for one in steps]
    return [np.array([float(interpreter.to_numpy(one)) for one in found])]


# batches


def draw_batches(interpreter: Any, bound: Bound, given: Values, dtype: str) -> list[Any]:
    """Inputs and targets of many calls, (N, B, T) each.

    A third array says whether they are on the device asked for.
    """
    data = given["data"]
    try:
        return collect_batches(interpreter, bound, {**given, "data": data})
    except NotImplementedError:
        raise
    except Exception:  # such as a function of tensors raises for an array of NumPy
        if interpreter.library == "numpy":
            raise
        with contextlib.suppress(Exception):
            return collect_batches(interpreter, bound, {**given, "data": interpreter.from_numpy(data, "float32")})
        raise


def collect_batches(interpreter: Any, bound: Bound, given: Values) -> list[Any]:
    calls = [interpreter.target(**choose(bound, given)) for _ in range(given["calls"])]
    for one in calls:
        if not isinstance(one, (tuple, list)) or len(one) != 2:
            raise TypeError(f"it returned {type(one).__name__}, not inputs and targets")
    wanted = given["device"]
    is_placed = interpreter.library != "numpy"  # whose arrays have no other device
    devices = [str(getattr(part, "device", wanted)) if is_placed else wanted for one in calls for part in one]
    if is_placed and any(one.startswith("meta") for one in devices):
        arrays = [np.zeros((len(calls), *calls[0][at].shape)) for at in (0, 1)]
    else:
        arrays = [np.stack([interpreter.to_numpy(one[at]) for one in calls]) for at in (0, 1)]
    return [*arrays, np.array([one.startswith(wanted) for one in devices])]


# tokenizers


def as_row(token: Any) -> list[int]:
    """The bytes of a token, filled with −1."""
    data = token.encode("utf-8") if isinstance(token, str) else bytes(token)
    return [*data[:MOST_BYTES], *[-1] * (MOST_BYTES - len(data))]


def use_trainer(interpreter: Any, bound: Bound, given: Values, dtype: str) -> list[Any]:
    """Merges (M, 2, bytes) and vocabulary (V, bytes) that were trained on a text."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "corpus.txt")
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(given["text"])
        values = {**given, "path": path}
        if inspect.isclass(interpreter.target):
            tokenizer: Any = interpreter.target(**choose(bound, values))
            result = tokenizer.train(given["text"], given["size"])
            if not isinstance(result, tuple):
                result = tokenizer.vocab, tokenizer.merges
        else:
            result = interpreter.target(**choose(bound, values))
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise TypeError(f"it returned {type(result).__name__}, not a vocabulary and merges")
    vocabulary, merges = result if isinstance(result[0], dict) else result[::-1]
    if vocabulary and not isinstance(next(iter(vocabulary)), int):
        vocabulary = {id: token for token, id in vocabulary.items()}
    ordered = sorted(merges, key=lambda pair: merges[pair]) if isinstance(merges, dict) else list(merges)
    pairs = [[vocabulary[one] if isinstance(one, int) else one for one in pair] for pair in ordered]
    rows = np.array([[as_row(one) for one in pair] for pair in pairs], np.int64).reshape(len(pairs), 2, MOST_BYTES)
    return [rows, np.array([as_row(one) for one in vocabulary.values()], np.int64).reshape(-1, MOST_BYTES)]


def use_tokenizer(interpreter: Any, bound: Bound, given: Values, dtype: str) -> list[Any]:
    """The ids of a text, or the bytes of the text of ids."""
    values = {
        **given,
        "vocabulary": {id: token.encode("latin-1") for id, token in enumerate(given["vocabulary"])},
        "merges": [(one.encode("latin-1"), other.encode("latin-1")) for one, other in given["merges"]],
        "special": list(given["special"]) or None,
    }
    tokenizer = interpreter.target(**choose(bound, values))
    if given["task"] == "decode":
        text = tokenizer.decode([int(one) for one in given["ids"]])
        return [np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int64)]
    if given["task"] == "stream":
        ids = tokenizer.encode_iterable(iter(given["text"].splitlines(keepends=True)))
    else:
        ids = tokenizer.encode(given["text"])
    return [np.array([int(one) for one in ids], np.int64)]


# checkpoints


def restore(interpreter: Any, bound: Bound, given: Values, dtype: str) -> list[Any]:
    """Parameters, moments, step and iteration that a checkpoint gives back, in a row.

    An iteration of None is −1. The function that saves and the one that loads are in one module, and differ in this
    word of their names.
    """
    import torch

    name = interpreter.target.__name__
    module = sys.modules[interpreter.target.__module__]
    save, load = (getattr(module, name.replace("load", "save").replace("save", one)) for one in ("save", "load"))
    arrays = [torch.from_numpy(given[one]).to(getattr(torch, dtype)) for one in ("w", "mean", "square")]
    model, optimizer = make_trained(torch, arrays, int(given["step"]))
    other, fresh = make_trained(torch, [arrays[0] * 0], 0)
    with tempfile.TemporaryDirectory() as folder:
        place: Any = os.path.join(folder, "checkpoint.pt") if given["to"] == "path" else io.BytesIO()
        save(model, optimizer, int(given["iteration"]), place)
        if given["to"] != "path":
            place.seek(0)
        iteration = load(place, other, fresh)
    state = fresh.state[other.weight]
    parts = [other.weight, *(state.get(one, torch.zeros_like(other.weight)) for one in ("exp_avg", "exp_avg_sq"))]
    numbers = [float(state.get("step", 0)), -1.0 if iteration is None else float(iteration)]
    return [np.concatenate([flatten_arrays(interpreter, parts), numbers])]


def make_trained(torch: Any, arrays: Sequence[Any], step: int) -> Any:
    """Make a linear layer and its optimizer from a weight and moments."""
    weight, *moments = arrays
    model = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    model.weight.data = weight
    optimizer = torch.optim.AdamW(model.parameters())
    if moments:
        state = dict(zip(("exp_avg", "exp_avg_sq"), moments, strict=True))
        optimizer.state[model.weight] = {"step": torch.tensor(float(step)), **state}
    return model, optimizer


DRIVERS: dict[str, Callable[[Any, Bound, Values, str], list[Any]]] = {
    "optimize": optimize,
    "clip": clip_norms,
    "each": call_each,
    "batches": draw_batches,
    "train": use_trainer,
    "tokenize": use_tokenizer,
    "restore": restore,
}
