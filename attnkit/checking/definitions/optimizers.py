"""AdamW, gradient clipping, and a cosine schedule of the learning rate."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnkit.checking.definition import Argument, Case, Definition, Way
from attnkit.checking.definitions.formulas import rename
from attnkit.model.exercises.worked_steps import Formula
from attnkit.model.slips import Slip

STEPS = 4
SMALL = 1e-6  # gradients beside which an eps of 1e-8 shows
LEAST = 1e-3  # of a norm beside which an eps of 1e-6 shows
EPS_OF_NORM = 1e-6


def number_argument(names: str) -> Argument:
    return Argument("", names, role="number")


# one step of AdamW: x and the moments before it, its gradient as it is handed over, its rate and bias corrections
ONE_STEP: dict[str, Formula] = {
    "gradient": lambda handed: handed,
    "decayed": lambda x, rate, weight_decay: x * (1 - rate * weight_decay),
    "mean": lambda mean_before, gradient, beta1: beta1 * mean_before + (1 - beta1) * gradient,
    "square": lambda square_before, gradient, beta2: beta2 * square_before + (1 - beta2) * gradient**2,
    "mean_hat": lambda mean, correction1: mean / correction1,
    "square_hat": lambda square, correction2: square / correction2,
    "root": lambda square_hat: np.sqrt(square_hat),
    "direction": lambda mean_hat, root, eps: mean_hat / (root + eps),
    "moved": lambda decayed, direction, rate: decayed - rate * direction,
}
START: dict[str, Formula] = {
    "x0": lambda w, b: in_one_row(w, b),
    "mean0": lambda x0: x0 * 0,
    "square0": lambda x0: x0 * 0,
}


def in_one_row(w: Any, b: Any) -> Any:
    return np.concatenate([w.ravel(), b.ravel()])


def repeat(step: Mapping[str, Formula]) -> dict[str, Formula]:
    """The formulas of one step as those of all steps, whose results have numbers."""
    steps: dict[str, Formula] = {}
    for at in range(STEPS):
        names: dict[str, str | None] = {name: f"{name}{at + 1}" for name in (*ONE_STEP, *NUMBERED)}
        before = {"x": "x0" if at == 0 else f"moved{at}", "mean_before": f"mean{at}", "square_before": f"square{at}"}
        for name, formula in step.items():
            steps[f"{name}{at + 1}"] = rename(formula, {**names, **before})
    return steps


def number_steps(**formulas: Callable[[int], Formula]) -> dict[str, Formula]:
    """The formulas that are made for each step from its number, from 0."""
    return {f"{name}{at + 1}": make(at) for at in range(STEPS) for name, make in formulas.items()}


# what differs from one step to the next, made from its number
NUMBERED: dict[str, Callable[[int], Formula]] = {
    "handed": lambda at: lambda gw, gb: in_one_row(gw[at], gb[at]),
    "rate": lambda at: lambda lr, rates: lr if rates is None else rates[at],
    "correction1": lambda at: lambda beta1: 1 - beta1 ** (at + 1),
    "correction2": lambda at: lambda beta2: 1 - beta2 ** (at + 1),
}


def stack_steps() -> Formula:
    """The parameters after all steps."""
    own = [f"moved{at + 1}" for at in range(STEPS)]
    return rename(lambda a, b, c, d: np.stack([a, b, c, d]), dict(zip("abcd", own, strict=True)))


ALL_STEPS: dict[str, Formula] = {**START, **number_steps(**NUMBERED), **repeat(ONE_STEP), "parameters": stack_steps()}


def often(words: str, hint: str = "", **changes: Formula) -> Slip[Formula]:
    """A slip of every step."""
    return Slip(words, repeat(changes), hint)


def draw_small(name: str) -> Formula:
    """Draw gradients so small that eps shows."""
    shape = (STEPS, 3, 5) if name == "gw" else (STEPS, 7)
    return lambda given, generator: SMALL * generator.standard_normal(shape)


CASES = (
    Case("no decay", lead=()),
    Case("decay", lead=(), given={"weight_decay": 0.1}, needs=("weight_decay",)),
    Case("small gradients", lead=(), given={"gw": draw_small("gw"), "gb": draw_small("gb")}),
    Case("large eps", lead=(), given={"eps": 0.1}, needs=("eps",)),
    Case("small rate, large decay", lead=(), given={"lr": 0.01, "weight_decay": 0.5}, needs=("weight_decay",)),
    Case(
        "the rate changes between steps",
        lead=(),
        given={"rates": lambda given, generator: np.array([0.1, 0.2, 0.05, 0.15]), "weight_decay": 0.1},
        needs=("lr", "weight_decay"),
    ),
)
ADAMW = Definition(
    "AdamW: Adam's update, and a decay that is separate from the gradient",
    {
        "w": Argument("A B", ""),
        "b": Argument("C", ""),
        "gw": Argument("N A B", ""),
        "gb": Argument("N C", ""),
        "rates": number_argument(""),
        "params": number_argument("params parameters param parameter w theta weights variables x model_params"),
        "gradients": number_argument("gradients grads grad gradient dw g dx"),
        "mean": number_argument("mean m exp_avg m_t first_moment moment1 mt"),
        "square": number_argument("square v exp_avg_sq v_t second_moment moment2 vt"),
        "step": number_argument("step t it iteration step_count timestep"),
        "config": number_argument("config state")._replace(
            collects={"lr": "learning_rate", "beta1": "beta1", "beta2": "beta2", "eps": "epsilon"}
        ),
        "lr": number_argument("lr learning_rate alpha eta step_size"),
        "beta1": number_argument("beta1 beta_1 b1"),
        "beta2": number_argument("beta2 beta_2 b2"),
        "betas": number_argument("betas"),
        "eps": number_argument("eps epsilon"),
        "weight_decay": number_argument("weight_decay wd decay lambda_ lam weight_decay_rate"),
    },
    ALL_STEPS,
    {"N": STEPS, "A": 3, "B": 5, "C": 7},
    CASES,
    "N P",
    (
        often(
            "the decay is added to the gradient (L2, as in Adam), not taken from the parameter",
            "x ← x − lr · decay · x",
            gradient=lambda x, handed, weight_decay: handed + weight_decay * x,
            decayed=lambda x: x,
        ),
        often("the decay is missing", decayed=lambda x: x),
        often(
            "the decay is not multiplied by the learning rate", decayed=lambda x, weight_decay: x * (1 - weight_decay)
        ),
        often("the decay has the wrong sign", decayed=lambda x, rate, weight_decay: x * (1 + rate * weight_decay)),
        often("the bias correction is missing", mean_hat=lambda mean: mean, square_hat=lambda square: square),
        often("the bias correction of the first moment is missing", mean_hat=lambda mean: mean),
        often("the bias correction of the second moment is missing", square_hat=lambda square: square),
        Slip(
            "the bias corrections count one step too many",
            number_steps(
                correction1=lambda at: NUMBERED["correction1"](at + 1),
                correction2=lambda at: NUMBERED["correction2"](at + 1),
            ),
        ),
        Slip(
            "the bias corrections stay those of the first step: steps are not counted",
            number_steps(
                correction1=lambda at: NUMBERED["correction1"](0), correction2=lambda at: NUMBERED["correction2"](0)
            ),
        ),
        often(
            "eps is under the root, not added to it",
            direction=lambda mean_hat, square_hat, eps: mean_hat / np.sqrt(square_hat + eps),
        ),
        often("eps is missing", direction=lambda mean_hat, root: mean_hat / root),
        often("eps is multiplied by 100", direction=lambda mean_hat, root, eps: mean_hat / (root + 100 * eps)),
        often("eps is divided by 100", direction=lambda mean_hat, root, eps: mean_hat / (root + eps / 100)),
        often(
            "eps is ignored: it is always 1e-8",
            direction=lambda mean_hat, root, eps: mean_hat / (root + 1e-8 + 0 * eps),
        ),
        Slip(
            "the betas are exchanged",
            {
                step: rename(formula, {"beta1": "beta2", "beta2": "beta1"})
                for step, formula in ALL_STEPS.items()
                if not step.startswith(("handed", "rate"))
            },
        ),
        often(
            "the factors 1 − β are missing from the moments",
            mean=lambda mean_before, gradient, beta1: beta1 * mean_before + gradient,
            square=lambda square_before, gradient, beta2: beta2 * square_before + gradient**2,
        ),
        often(
            "the moments are not kept: each step starts from 0",
            mean=lambda gradient, beta1: (1 - beta1) * gradient,
            square=lambda gradient, beta2: (1 - beta2) * gradient**2,
        ),
        often("the root of the second moment is missing", root=lambda square_hat: square_hat),
        often("the step has the wrong sign", moved=lambda decayed, direction, rate: decayed + rate * direction),
        often("the first moment is not used: the gradient is", mean_hat=lambda gradient: gradient),
        often(
            "only the first parameter is updated",
            moved=lambda x, decayed, direction, rate, w: np.where(
                np.arange(x.size) < w.size, decayed - rate * direction, x
            ),
        ),
        Slip(
            "the learning rate stays that of the first step",
            number_steps(rate=lambda at: NUMBERED["rate"](0)),
            "read it from the group in each step",
        ),
    ),
    {
        "eps": {
            "corrected": Way(),
            "uncorrected": Way(
                "eps is added to √v before the bias correction",
                steps=repeat(
                    {
                        "direction": lambda mean_hat, square, eps, correction2: (
                            mean_hat * np.sqrt(correction2) / (np.sqrt(square) + eps)
                        )
                    }
                ),
            ),
        },
        "decay": {
            "before": Way(),
            "after": Way(
                "the decay follows the step",
                steps=repeat(
                    {
                        "moved": lambda x, direction, rate, weight_decay: (
                            (x - rate * direction) * (1 - rate * weight_decay)
                        )
                    }
                ),
            ),
        },
    },
    "AdamW adamw get_adamw_cls adamw_step AdamWOptimizer MyAdamW adamw_update",
    {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.0},
    drive="optimize",
    expects="a class (params, lr, betas, eps, weight_decay) with step(), or a function (param, grad, m, v, t, lr, "
    "beta1, beta2, eps, weight_decay) that returns param, m, v",
)

# gradient clipping


def make_gradients(factor: float) -> dict[str, Formula]:
    """Draw gradients of several parameters, multiplied by a factor."""
    return {
        "g1": lambda given, generator: factor * generator.standard_normal((3, 5)),
        "g2": lambda given, generator: factor * 3 * generator.standard_normal(7),
    }


CLIP = Definition(
    "gradient clipping: all gradients by one factor, to a 2-norm of at most a limit",
    {
        "g1": Argument("A B", ""),
        "g2": Argument("C", ""),
        "params": number_argument("params parameters model_parameters model_params"),
        "gradients": number_argument("gradients grads grad grad_list"),
        "max_norm": number_argument("max_norm max_l2_norm clip_norm clip limit threshold maxnorm max_grad_norm m"),
        "eps": number_argument("eps epsilon"),
        "frozen": number_argument(""),
    },
    {
        "all": lambda g1, g2: in_one_row(g1, g2),
        "norm": lambda all: np.sqrt((all**2).sum()),
        "factor": lambda norm, max_norm: max_norm / (norm + EPS_OF_NORM),
        "limited": lambda factor: min(factor, 1.0),
        "clipped": lambda all, limited: all * limited,
    },
    {"A": 3, "B": 5, "C": 7},
    (
        Case("above the limit", lead=(), given=make_gradients(1)),
        Case("below the limit", lead=(), given={**make_gradients(0.01), "max_norm": 5.0}),
        Case("large gradients", lead=(), given=make_gradients(1000)),
        Case("small gradients", lead=(), given={**make_gradients(LEAST), "max_norm": LEAST / 10}),
        Case("a parameter without a gradient", lead=(), given={**make_gradients(1), "frozen": 1}, needs=("params",)),
    ),
    "P",
    (
        Slip(
            "each gradient is clipped by its own norm, not by that of all",
            {
                "clipped": lambda g1, g2, max_norm: in_one_row(
                    *(g * min(1, max_norm / (np.sqrt((g**2).sum()) + EPS_OF_NORM)) for g in (g1, g2))
                )
            },
            "the norm is that of all gradients at once",
        ),
        Slip("the norm is the largest number, not the 2-norm", {"norm": lambda all: np.abs(all).max()}, "√Σ g² of all"),
        Slip("the norm is the sum of the numbers, not the 2-norm", {"norm": lambda all: np.abs(all).sum()}),
        Slip("the root of the norm is missing", {"norm": lambda all: (all**2).sum()}),
        Slip(
            "the norms of the gradients are added, not their squares",
            {"norm": lambda g1, g2: np.sqrt((g1**2).sum()) + np.sqrt((g2**2).sum())},
        ),
        Slip("the norm is that of the mean square", {"norm": lambda all: np.sqrt((all**2).mean())}),
        Slip("gradients below the limit are scaled up to it", {"limited": lambda factor: factor}),
        Slip(
            "each number is clipped to ± the limit",
            {"clipped": lambda all, max_norm: np.clip(all, -max_norm, max_norm)},
        ),
        Slip(
            "the gradients are unchanged: nothing is clipped in place",
            {"clipped": lambda all: all},
            "assign to the gradients: grad.mul_(factor)",
        ),
        Slip(
            "gradients above the limit are divided by their norm, and not multiplied by the limit",
            {"factor": lambda norm, max_norm: np.where(norm > max_norm, 1 / (norm + EPS_OF_NORM), 1)},
        ),
        Slip("eps is missing from the divisor", {"factor": lambda norm, max_norm: max_norm / norm}),
        Slip("only the first gradient is clipped", {"clipped": lambda g1, g2, limited: in_one_row(g1 * limited, g2)}),
    ),
    {
        "eps": {
            "1e-6": Way(),
            "none": Way(
                "no eps in the divisor",
                steps={"factor": lambda norm, max_norm: max_norm / norm},
            ),
        }
    },
    "clip_grad_norm clip_gradients gradient_clipping clip_grad_norm_ run_gradient_clipping clip_grads",
    {"max_norm": 0.5, "eps": EPS_OF_NORM},
    drive="clip",
    expects="a function (parameters, max_norm) that changes their .grad, or (gradients, max_norm) that changes or "
    "returns them",
)

# schedules


def place_steps_of(*numbers: int) -> Mapping[str, Formula]:
    return {"steps": lambda given, generator: np.array(numbers)}


def half_cosine(done: Any, least: Any, most: Any) -> Any:
    return least + (most - least) * (1 + np.cos(np.pi * done)) / 2


SCHEDULE = Definition(
    "a learning rate that warms up along a line, and falls along half a cosine to a floor",
    {
        "steps": Argument("N", "steps it step t iteration iter current_step"),
        "most": number_argument("most max_learning_rate max_lr lr learning_rate lr_max alpha_max base_lr peak_lr"),
        "least": number_argument("least min_learning_rate min_lr lr_min alpha_min final_lr eta_min"),
        "warmup": number_argument("warmup warmup_iters warmup_steps t_w num_warmup_steps n_warmup"),
        "total": number_argument(
            "total cosine_cycle_iters lr_decay_iters max_iters max_steps total_steps t_c num_training_steps decay_iters"
        ),
    },
    {
        "rising": lambda steps, most, warmup: most * steps / warmup,
        "done": lambda steps, warmup, total: (steps - warmup) / (total - warmup),
        "falling": lambda done, least, most: half_cosine(done, least, most),
        "after": lambda falling, steps, least, total: np.where(steps > total, least, falling),
        "rate": lambda rising, after, steps, warmup: np.where(steps < warmup, rising, after),
    },
    {},
    (
        Case("warm-up", lead=(), given=place_steps_of(0, 1, 2, 5, 6)),
        Case("its end", lead=(), given=place_steps_of(6, 7, 8)),
        Case("decay", lead=(), given=place_steps_of(9, 12, 14, 18, 20)),
        Case("the last step", lead=(), given=place_steps_of(21)),
        Case("after the end", lead=(), given=place_steps_of(22, 30, 35, 100)),
    ),
    "N",
    (
        Slip(
            "the warm-up is off by one: its first rate is that of step 1",
            {"rising": lambda steps, most, warmup: most * (steps + 1) / warmup},
        ),
        Slip(
            "the warm-up is off by one: it ends one step late",
            {"rising": lambda steps, most, warmup: most * steps / (warmup + 1)},
        ),
        Slip(
            "the warm-up counts from 1 to warm-up + 1",
            {"rising": lambda steps, most, warmup: most * (steps + 1) / (warmup + 1)},
        ),
        Slip(
            "the warm-up starts at the floor, not at 0",
            {"rising": lambda steps, most, least, warmup: least + (most - least) * steps / warmup},
        ),
        Slip("the warm-up is missing", {"rate": lambda after: after}),
        Slip("the warm-up is constant", {"rising": lambda steps, most: most + 0 * steps}),
        Slip(
            "after the end the cosine goes up again",
            {"after": lambda falling: falling},
            "return the floor for steps past the end",
        ),
        Slip(
            "after the end the rate is 0, not the floor",
            {"after": lambda falling, steps, total: np.where(steps > total, 0, falling)},
        ),
        Slip(
            "there is no floor: the cosine falls to 0",
            {
                "falling": lambda done, most: half_cosine(done, 0, most),
                "after": lambda falling, steps, total: np.where(steps > total, 0, falling),
            },
        ),
        Slip(
            "there is no floor before the end: the cosine falls to 0",
            {"falling": lambda done, most: half_cosine(done, 0, most)},
        ),
        Slip(
            "the floor is the least of the rate, not the end of the cosine",
            {"falling": lambda done, least, most: np.maximum(half_cosine(done, 0, most), least)},
        ),
        Slip(
            "the floor is added to the whole cosine",
            {"falling": lambda done, least, most: least + half_cosine(done, 0, most)},
        ),
        Slip("the cosine starts at step 0, not after the warm-up", {"done": lambda steps, total: steps / total}),
        Slip(
            "the cosine has the length of all steps, not of those after the warm-up",
            {"done": lambda steps, warmup, total: (steps - warmup) / total},
        ),
        Slip(
            "the decay is off by one: it starts one step late",
            {"done": lambda steps, warmup, total: np.maximum(steps - warmup - 1, 0) / (total - warmup)},
        ),
        Slip("the decay is a line, not a cosine", {"falling": lambda done, least, most: most + (least - most) * done}),
        Slip(
            "it is a whole period of the cosine, not half of one",
            {"falling": lambda done, least, most: half_cosine(2 * done, least, most)},
        ),
        Slip(
            "it is a quarter of the cosine",
            {"falling": lambda done, least, most: least + (most - least) * np.cos(np.pi * done / 2)},
        ),
        Slip(
            "the factor ½ of the cosine is missing",
            {"falling": lambda done, least, most: least + (most - least) * (1 + np.cos(np.pi * done))},
        ),
        Slip(
            "the cosine has the wrong sign", {"falling": lambda done, least, most: half_cosine(1 - done, least, most)}
        ),
    ),
    functions="get_lr_cosine_schedule get_lr cosine_schedule lr_cosine_schedule cosine_lr run_get_lr_cosine_schedule "
    "lr_schedule get_cosine_lr cosine_learning_rate_schedule",
    defaults={"most": 1.0, "least": 0.1, "warmup": 7, "total": 21},
    drive="each",
    expects="a function (it, max_learning_rate, min_learning_rate, warmup_iters, cosine_cycle_iters) of one step, "
    "counted from 0",
)

DEFINITIONS = {"adamw": ADAMW, "clip": CLIP, "schedule": SCHEDULE}
