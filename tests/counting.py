"""Counts the products that NumPy makes in a run of a model, and prints them as JSON: python -m tests.counting FILE.

FILE lists cases [folder, tokens, generated, texts, is_masked]; -1 generated tokens are a step of training; or texts,
each a pipeline. Every `@` of
the package is rewritten to a function that counts before it multiplies, and so are the functions of NumPy. Of kernels
that add rows of zeros, or a column for a bias, the product without them is counted; a sum by a vector of ones is none.
"""

import ast
import builtins
import functools
import json
import math
import operator
import sys
from importlib.machinery import SourceFileLoader

import numpy as np

# functions (x, y) that count as x @ y: whose rows are filled with zeros, or that multiply otherwise
PRODUCTS = ("fixed_matrix_product", "whole_tiles_product", "outer_product")
# what the code of a file that is rewritten has
REWRITTEN = (b"@ ", b"InputBlock", *(name.encode() for name in PRODUCTS))
counted = {"products": 0, "hidden": 0}  # multiplications, and how many functions whose own are not counted run now
MATMUL = np.matmul


def count(x, y):
    """Count the multiplications of x @ y."""
    x, y = np.asanyarray(x), np.asanyarray(y)
    is_sum = any(one.ndim == 1 and (one == 1).all() for one in (x, y))
    if not counted["hidden"] and not is_sum:
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        rows, columns = (x.shape[-2] if x.ndim > 1 else 1), (y.shape[-1] if y.ndim > 1 else 1)
        counted["products"] += math.prod(batch) * rows * x.shape[-1] * columns


def multiply(x, y, *args, **kwargs):
    count(x, y)
    return MATMUL(x, y, *args, **kwargs)


def counting(function):
    """A function of NumPy that counts first."""

    @functools.wraps(function)
    def call(x, y, *args, **kwargs):
        count(x, y)
        return function(x, y, *args, **kwargs)

    return call


def count_tensordot(x, y, axes):
    """Count a product over the last axis of x and the first of y."""
    assert axes == 1
    count(np.reshape(x, (-1, x.shape[-1])), np.reshape(y, (len(y), -1)))
    return builtins.uncounted_tensordot(x, y, axes)


def as_one(function):
    """A function (x, y) that counts as x @ y, or of a block and x as x times its weight without the bias."""

    @functools.wraps(function)
    def call(first, second, *args, **kwargs):
        if hasattr(first, "weight"):
            counted["products"] += second.size * len(first.weight)
        else:
            count(first, second)
        counted["hidden"] += 1
        try:
            return function(first, second, *args, **kwargs)
        finally:
            counted["hidden"] -= 1

    return call


def refuse(*args, **kwargs):
    raise AssertionError("a product that is not counted")


class Rewriter(ast.NodeTransformer):
    """Makes every product a call that counts."""

    def visit_BinOp(self, node):
        self.generic_visit(node)
        if not isinstance(node.op, ast.MatMult):
            return node
        return ast.copy_location(ast.Call(ast.Name("counted_product", ast.Load()), [node.left, node.right], []), node)

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        if node.name in PRODUCTS:
            node.decorator_list.append(ast.Name("counted_as_one", ast.Load()))
        return node

    def visit_ClassDef(self, node):
        self.generic_visit(node)
        for one in node.body:
            if node.name == "InputBlock" and getattr(one, "name", "") == "multiply":
                one.decorator_list.append(ast.Name("counted_as_one", ast.Load()))
        return node


def install():
    """Count from here on; before the package is imported."""
    assert not [name for name in sys.modules if name.startswith("attnkit")]
    builtins.counted_product, builtins.counted_as_one = multiply, as_one
    operator.matmul = np.matmul = multiply
    np.dot = counting(np.dot)
    np.inner = np.linalg.multi_dot = refuse
    tensordot, np.tensordot = np.tensordot, count_tensordot
    builtins.uncounted_tensordot = tensordot
    get_code = SourceFileLoader.get_code

    def get_counting_code(self, name):
        if not name.startswith("attnkit"):
            return get_code(self, name)
        path = self.get_filename(name)
        source = self.get_data(path)
        if not any(sign in source for sign in REWRITTEN):
            return get_code(self, name)
        tree = ast.fix_missing_locations(Rewriter().visit(ast.parse(source)))
        return compile(tree, path, "exec", dont_inherit=True)

    SourceFileLoader.get_code = get_counting_code


def run_pipeline(text):
    """The FLOPs of products of a pipeline."""
    import attnkit

    counted["products"] = 0
    attnkit.run(text)
    return {"flops": 2 * counted["products"]}


def run_case(folder, tokens, generated, texts, is_masked):
    """The FLOPs of products of a case, and the bytes of its weights and of its cache."""
    from attnkit.checkpoints import open_checkpoint
    from attnkit.inputs.layers import core_model
    from attnkit.interpret.cost import Workload
    from attnkit.interpret.roofline import draw_random_input
    from attnkit.model import CachedDecoder, Context, head_logits, linear, pool_by_probe, run, token_positions

    checkpoint = open_checkpoint(folder)
    config, core = checkpoint.config, core_model(checkpoint)
    arrays = {(x.ctypes.data, x.size): x.nbytes for layer in core.params.values() for x in layer.values()}
    rng, measured = np.random.default_rng(0), {"weights": sum(arrays.values())}
    measured["itemsize"] = max(x.itemsize for layer in core.params.values() for x in layer.values())

    def draw(stack, length):
        return draw_random_input(checkpoint, stack, Workload(length, batch=texts), rng)

    if generated < 0:
        from attnkit.model.passes.model_gradients import StackInputs, model_backward, run_model

        counted["products"] = 0
        y, recorded = run_model(core, {stack: StackInputs(draw(stack, tokens)) for stack in config.stacks})
        measured["prompt"] = 2 * counted["products"]
        model_backward(core, recorded, np.ones_like(y))
        return measured | {"flops": 2 * counted["products"]}

    def forward(stack, length, context):
        return run(core, config.plan(stack), draw(stack, length), context)

    counted["products"] = 0
    memory, states, last = None, None, None
    if config.encoder:
        context = Context(dtype="float32")
        memory = last = forward("encoder", tokens, context)
        states = context.last_states()
    if config.decoder and not generated:
        options = {}
        if is_masked:
            mask = np.ones((texts, 1, tokens), bool)
            mask[0, :, : tokens // 2] = False
            options = {"mask": mask, "positions": token_positions(mask)}
        last = forward("decoder", tokens, Context(memory=memory, source_states=states, dtype="float32", **options))
    if generated:
        decoder = CachedDecoder(core, memory=memory, source_states=states, dtype="float32")
        decoder(draw("decoder", 1 if config.encoder else tokens))
        measured["prompt"] = 2 * counted["products"]
        for _ in range(generated - 1):
            decoder(draw("decoder", 1))
        held = [*(pair for _, pair in decoder.cache), *getattr(decoder.cache, "states", {}).values()]
        measured["cache"] = sum(x.nbytes for pair in held for x in pair if x is not None)
    elif config.has_probe:
        pool_by_probe(core, last)
    elif config.vector_width:
        linear(last[:, 0], core.params["vector"]["w"])
    elif config.head:
        head_logits(core, last)
    return measured | {"flops": 2 * counted["products"]}


if __name__ == "__main__":
    install()
    with open(sys.argv[1]) as file:
        print(
            json.dumps([run_pipeline(case) if isinstance(case, str) else run_case(*case) for case in json.load(file)])
        )
