"""Right implementations by stage, and the slips that are put into their sources."""

import ast
import pathlib
import re
import types
from typing import NamedTuple

import numpy as np

from attnkit.checking.callees import open_object
from attnkit.checking.definitions import DEFINITIONS
from attnkit.checking.verdict import Examiner

HERE = pathlib.Path(__file__).parent


class Right(NamedTuple):
    """A right implementation: the stage, the library whose file has it, and its name there."""

    stage: str
    library: str
    name: str


RIGHT = [
    Right(stage, library, name)
    for stage, library, names in (
        ("softmax", "numpy", "softmax softmax_of_rows"),
        ("softmax", "torch", "softmax softmax_of_torch"),
        (
            "attend",
            "numpy",
            "attention_keep attention_block attention_add attention_numbers attention_zero_is_blocked "
            "attention_without_names",
        ),
        (
            "attend",
            "torch",
            "attention_keep attention_zero_is_blocked attention_block attention_of_torch DotProductAttention",
        ),
        ("linear", "numpy", "linear_in_out linear_out_in Dense"),
        ("linear", "torch", "Linear LinearWithBias linear_of_torch linear_in_out"),
        ("embed", "numpy", "embed_rows embed_one_hot"),
        ("embed", "torch", "Embedding embed_of_torch"),
        ("rope", "numpy", "rope_even_odd rope_halves rope_complex rope_of_sequence"),
        ("rope", "torch", "RotaryPositionalEmbedding rope_halves rope_complex"),
        ("sinusoidal", "numpy", "sinusoidal_loops sinusoidal_columns sinusoidal_halves"),
        ("sinusoidal", "torch", "sinusoidal_of_exponents sinusoidal_of_powers"),
        ("mask", "numpy", "mask_tril mask_compare mask_blocked mask_to_add mask_of_texts"),
        ("mask", "torch", "mask_tril mask_blocked mask_to_add"),
        ("layernorm", "numpy", "layernorm_of_parts layernorm_centered LayerNorm"),
        ("layernorm", "torch", "LayerNorm layernorm layernorm_of_torch"),
        ("rmsnorm", "numpy", "rmsnorm_of_parts rmsnorm_einsum"),
        ("rmsnorm", "torch", "RMSNorm rmsnorm"),
        ("relu", "numpy", "relu"),
        ("relu", "torch", "relu"),
        ("gelu", "numpy", "gelu"),
        ("gelu", "torch", "gelu gelu_of_torch"),
        ("gelu-tanh", "numpy", "gelu_tanh"),
        ("gelu-tanh", "torch", "gelu_tanh"),
        ("silu", "numpy", "silu silu_simple"),
        ("silu", "torch", "silu"),
        ("sigmoid", "numpy", "sigmoid sigmoid_simple"),
        ("sigmoid", "torch", "sigmoid"),
        ("ffn", "numpy", "ffn_relu ffn_gelu"),
        ("ffn", "torch", "FeedForward MLP Sequence"),
        ("swiglu", "numpy", "swiglu_in_out swiglu_out_in"),
        ("swiglu", "torch", "SwiGLU LlamaMLP"),
        ("cross-entropy", "numpy", "cross_entropy_of_logits cross_entropy_one_hot"),
        ("cross-entropy", "torch", "cross_entropy cross_entropy_of_torch"),
        ("multihead", "numpy", "multihead_split multihead_of_heads multihead_fused"),
        ("multihead", "torch", "MultiHeadAttention CausalSelfAttention AttentionOfTorch multihead"),
        ("multihead-rope", "numpy", "multihead_rope multihead_rope_halves"),
        ("multihead-rope", "torch", "MultiHeadSelfAttentionWithRope"),
        ("block", "numpy", "block_of_weights"),
        ("block", "torch", "TransformerBlock"),
        ("gpt-block", "torch", "Block"),
        ("encoder-layer", "numpy", "encoder_layer"),
        ("encoder-layer", "torch", "EncoderLayer EncoderLayerOfTorch"),
        ("decoder-layer", "torch", "DecoderLayer"),
        ("lm", "numpy", "lm_of_weights"),
        ("lm", "torch", "TransformerLM"),
    )
    for name in names.split()
]


def source_of(library):
    return (HERE / f"right_{library}.py").read_text(encoding="utf-8")


def load(right, source=None):
    """The function or class of an implementation, from the source of its file or another one."""
    module = types.ModuleType(f"right_{right.library}")
    exec(compile(source or source_of(right.library), module.__name__, "exec"), module.__dict__)
    return getattr(module, right.name)


def judge(right, target, dtype="float32", **options):
    definition = DEFINITIONS[right.stage]
    callee = open_object(definition, target, right.library, {})
    with np.errstate(all="ignore"):
        return Examiner(definition, callee, dtype=dtype, **options).judge(definition.cases)


# Slips: the sentence, then replacements in the source, each a pattern and what stands there instead. The first row of
# a sentence whose patterns an implementation has is put into it. NAMES in capitals are those of its arguments.
SCALE = r" (?:/ (?:np|math)\.sqrt\(.*\)|/ queries\.shape\[-1\] \*\* 0\.5|\* k(?:ey)?\.shape\[-1\] \*\* -0\.5)$"  # at the end of a line
FILL = r"-np\.inf|(?<!\* )-1e9|float\(\"-inf\"\)|(?:np|torch)\.finfo\(scores\.dtype\)\.min"
IF_MASK = r"if (?:attn_)?mask is not None:"
WHERE_KEEP = r"np\.where\(mask(?: == 0)?, (?:scores, -np\.inf|np\.finfo\(scores\.dtype\)\.min, scores)\)"
FILL_KEEP = r"scores\.masked_fill\((?:~mask|mask == 0), .*\)$"
MAXIMUM = r"shifted = (\w+) - .*"
OVER_COLUMNS = [  # softmax along the last axis, and {} for another one
    [(r"softmax\((scores(?: \+ mask)?|scaled)(?:, axis=-1)?\)", r"softmax(\1, axis={})")],
    [(r"softmax\(scores, -1\)", r"softmax(scores, {})")],
    [(r"softmax\((scores, )?dim=-1\)", r"softmax(\1dim={})")],
    [(r"scores\.softmax\(-1\)", r"scores.softmax({})")],
    [(r"(max|sum)\(axis=-1", r"\1(axis={}")],
]


def over(sentence, axis):
    return [(sentence, *((old, new.format(axis)) for old, new in row)) for row in OVER_COLUMNS]


SCALES = [
    ("the scale of the scores is missing", (SCALE, "")),
    ("the scale of the scores is missing", (r"attn_mask=mask\)", "attn_mask=mask, scale=1.0)")),
    ("the scale of the scores is applied twice", (SCALE, r"\g<0>\g<0>")),
    ("the scores are multiplied by √K", (r" / ((?:np|math)\.sqrt\(.*\))$", r" * \1")),
    ("the scores are multiplied by √K", (r"\.shape\[-1\] \*\* -0\.5$", ".shape[-1] ** 0.5")),
]
MASKS = [
    ("the mask is ignored", (IF_MASK, "if False:")),
    ("the mask is ignored", (r"scores \+ mask", "scores")),
    ("the mask is ignored", (r"attn_mask=mask", "attn_mask=None")),
]
AXES_OF_WEIGHTS = over("softmax is over the queries, not the keys", -2)
SLIPS = {
    "softmax": [
        ("softmax is over the last axis, whatever the axis asked for", (r"axis=axis", "axis=-1")),
        ("softmax is over the last axis, whatever the axis asked for", (r"dim=dim", "dim=-1")),
        ("softmax is over the first axis", (r"axis=axis", "axis=0")),
        ("softmax is over the first axis", (r"(max|sum)\(-1", r"\1(0")),
        ("softmax is over the first axis", (r"dim=dim", "dim=0")),
        ("softmax is over the axis before the last", (r"axis=axis", "axis=-2")),
        ("softmax is over the axis before the last", (r"(max|sum)\(-1", r"\1(-2")),
        ("softmax is over the axis before the last", (r"dim=dim", "dim=-2")),
        (
            "softmax is over all numbers",
            (r"np\.max\(x, .*|z\.max\(.*", "ARRAY.max()"),
            (r"np\.sum\(exp.*|exponentials\.sum\(-1.*", "exponentials.sum()"),
        ),
        (
            "softmax is over all numbers",
            (r"\.max\(dim.*", ".max()"),
            (r"\.sum\(dim.*", ".sum()"),
        ),
        ("the largest score is not subtracted, so that e^score overflows", (MAXIMUM, r"shifted = \1")),
        ("it is the logarithm of softmax", (r"return (exponentials / .*)", r"return LIB.log(\1)")),
        ("it is the logarithm of softmax", (r"torch\.softmax", "torch.log_softmax")),
        ("the exponents have the wrong sign", (r"shifted = (\w+) - (.*)max(.*)", r"shifted = \2min\3 - \1")),
        ("the exponents have the wrong sign", (r"torch\.softmax\(x", "torch.softmax(-x")),
        ("the exponentials are not divided by their sum", (r"return exponentials / .*", "return exponentials")),
        ("the base is 2 instead of e", (r"np\.exp\(shifted\)", "2 ** shifted")),
        ("the base is 2 instead of e", (r"shifted\.exp\(\)", "2 ** shifted")),
        (
            "softmax is applied twice",
            (r"torch\.softmax\(x, dim=dim\)", "torch.softmax(torch.softmax(x, dim=dim), dim=dim)"),
        ),
    ],
    "attend": [
        *SCALES,
        (
            "the scores are divided by the root of the number of keys",
            (SCALE, " / KEYS.shape[-2] ** 0.5"),
        ),
        (
            "the scores are divided by the root of the width of the values",
            (SCALE, " / VALUES.shape[-1] ** 0.5"),
        ),
        (
            "the scores are divided by √(H·K), the whole width",
            (SCALE, r"\g<0> / (QUERIES.shape[-3] if QUERIES.ndim > 3 else 1) ** 0.5"),
        ),
        *AXES_OF_WEIGHTS,
        *over("softmax is over the batch, not the keys", 0),
        ("the largest score is not subtracted, so that e^score overflows", (MAXIMUM, r"shifted = \1")),
        ("the largest score is not subtracted, so that e^score overflows", (r"scores = scores - .*", "pass")),
        ("softmax is missing", (r"(?:F\.|torch\.)?softmax\((scores(?: \+ mask)?|scaled)(?:, .*?)?\)", r"\1")),
        ("softmax is missing", (r"scores\.softmax\(dim=-1\)", "scores")),
        *MASKS,
        ("blocked scores are 0 instead of −∞", (FILL, "0.0")),
        ("the mask is added as 1 and 0", (WHERE_KEEP, "scores + mask")),
        ("the mask is added as 1 and 0", (FILL_KEEP, "scores + mask")),
        ("the mask is added as 1 and 0", (r"np\.where\(attn_mask, -1e9, scores\)", "scores + attn_mask")),
        ("the mask is added as 1 and 0", (r"torch\.where\(attn_mask, .*\)", "scores + attn_mask")),
        ("the mask is added as 1 and 0", (r"mask \* -1e9", "mask")),
        ("the scores are multiplied by the mask", (WHERE_KEEP, "scores * mask")),
        ("the scores are multiplied by the mask", (FILL_KEEP, "scores * mask")),
        (
            "the mask is applied after the softmax",
            (IF_MASK, "if False:"),
            (r"return weights @ (\w+)$", r"return (weights if mask is None else weights * mask) @ \1"),
        ),
        (
            "the mask is applied after the softmax",
            (IF_MASK, "if False:"),
            (
                r"return np\.matmul\(weights, V\)",
                r"return np.matmul(weights if attn_mask is None else weights * ~attn_mask, V)",
            ),
        ),
        (
            "the mask is applied after the softmax",
            (IF_MASK, "if False:"),
            (
                r"return torch\.(\w+)\((.*)weights, (\w+)\)",
                r"return torch.\1(\2weights if mask is None else weights * mask, \3)",
            ),
        ),
        (
            "the mask is applied before the scale, with a finite number",
            (SCALE, ""),
            (FILL, "-10"),
            (r"softmax\(scores(.*)$", r"softmax(scores / KEYS.shape[-1] ** 0.5\1"),
        ),
        ("the values are those of the keys", (r"weights @ \w+$", "weights @ KEYS")),
        ("the values are those of the keys", (r"(weights, )(?:V|v|value|values)\)", r"\1KEYS)")),
    ],
    "linear": [
        ("the bias is missing", (r" \+ (?:self\.)?b(?:ias)?$", "")),
        ("the bias is missing", (r", (?:self\.)?bias\)$", ")")),
        ("the bias is subtracted", (r" \+ ((?:self\.)?b(?:ias)?)$", r" - \1")),
        ("the bias is subtracted", (r", self\.bias\)$", ", -self.bias)")),
        ("an activation follows (max(0, ·))", (r"return (F\.linear.*|inputs @.*|x @.*)$", r"return (\1).clamp(min=0)")),
        ("an activation follows (max(0, ·))", (r"return (np\..*)$", r"return np.maximum(\1, 0)")),
        (
            "an activation follows (max(0, ·))",
            (r"return y if .*$", "return np.maximum(y + (0 if b is None else b), 0)"),
        ),
    ],
    "embed": [
        ("the embeddings are multiplied by √D", (r"return (.*)$", r"return (\1) * TABLE.shape[-1] ** 0.5")),
        ("each id takes the row after its own", (r"\[((?:token_)?ids)\]", r"[(\1 + 1) % 11]")),
        ("each id takes the row after its own", (r"embedding\(input_ids, ", "embedding((input_ids + 1) % 11, ")),
        ("each id takes the row before its own", (r"\[((?:token_)?ids)\]", r"[\1 - 1]")),
        ("each id takes the row before its own", (r"embedding\(input_ids, ", "embedding((input_ids - 1) % 11, ")),
        (
            "the rows are normalized to length 1",
            (r"return (.*)$", r"return (\1) / ((TABLE**2).sum(-1) ** 0.5)[IDS][..., None]"),
        ),
    ],
    "rope": [
        (
            "the positions are ignored: they are always 0, 1, 2, …",
            (r"\b((?:token_)?positions)\[:, None\]", r"np.arange(len(\1))[:, None]"),
        ),
        (
            "the positions are ignored: they are always 0, 1, 2, …",
            (r"np\.outer\(position_ids", "np.outer(range(len(position_ids))"),
        ),
        (
            "the positions are ignored: they are always 0, 1, 2, …",
            (r"position_ids\[:, None\]", "torch.arange(len(position_ids))[:, None]"),
        ),
        (
            "the positions are ignored: they are always 0, 1, 2, …",
            (r"positions\.double", "torch.arange(len(positions)).double"),
        ),
        (
            "the positions are ignored: they are always 0, 1, 2, …",
            (r"self\.(cos|sin)\[token_positions\]", r"self.\1[: x.shape[-2]]"),
        ),
        ("positions are shifted by +1", (r"\b((?:token_)?positions)\[:, None\]", r"(\1 + 1)[:, None]")),
        ("positions are shifted by +1", (r"np\.outer\(position_ids", "np.outer(position_ids + 1")),
        ("positions are shifted by +1", (r"position_ids\[:, None\]", "(position_ids + 1)[:, None]")),
        ("positions are shifted by +1", (r"positions\.double\(\)", "(positions.double() + 1)")),
        ("positions are shifted by +1", (r"\[token_positions\]", "[token_positions + 1]")),
        ("positions are shifted by +1", (r"angle = position /", "angle = (position + 1) /")),
        (
            "the angles are reversed (they turn the other way)",
            (r"even \* cos - odd \* sin, even \* sin \+ odd \* cos", "even * cos + odd * sin, odd * cos - even * sin"),
        ),
        ("the angles are reversed (they turn the other way)", (r"1j \* token", "-1j * token")),
        ("the angles are reversed (they turn the other way)", (r"pairs \* turns", "pairs * turns.conj()")),
        ("the angles are reversed (they turn the other way)", (r"angle = position", "angle = -position")),
        ("the angles are reversed (they turn the other way), in halves", (r"\[-second, first\]", "[second, -first]")),
        (
            "sine and cosine are exchanged",
            (r"even \* cos - odd \* sin, even \* sin \+ odd \* cos", "even * sin - odd * cos, even * cos + odd * sin"),
        ),
        (
            "the pairs are those of halves, the angles those of even and odd columns",
            (r"np\.concatenate\(\[np\.outer\((.*)\)\] \* 2, axis=-1\)", r"np.repeat(np.outer(\1), 2, axis=-1)"),
        ),
        (
            "the pairs are those of halves, the angles those of even and odd columns",
            (r"torch\.cat\(\[(position_ids.*)\] \* 2, dim=-1\)", r"(\1).repeat_interleave(2, dim=-1)"),
        ),
        (
            "the pairs are those of even and odd columns, the angles those of halves",
            (r"(first, second = )(?:q|x).*", r"\1ARRAY[..., 0::2], ARRAY[..., 1::2]"),
            (r"np\.concatenate\(\[-second, first\], axis=-1\)", "np.stack([-second, first], axis=-1).reshape(q.shape)"),
        ),
        (
            "the pairs are those of even and odd columns, the angles those of halves",
            (r"first, second = x\.chunk\(2, dim=-1\)", "first, second = x[..., 0::2], x[..., 1::2]"),
            (r"torch\.cat\(\[-second, first\], dim=-1\)", "torch.stack([-second, first], dim=-1).flatten(-2)"),
        ),
        ("the exponent is i/K, not 2i/K", (r"arange\(0, (\w+), 2(.*?)\) / \w+", r"arange(\1 // 2\2) / \1")),
        ("the exponent is i/K, not 2i/K", (r"-2\.0 \* np\.arange", "-np.arange")),
        ("the exponent is i/K, not 2i/K", (r"arange\(0, x\.shape\[-1\], 2\)", "arange(x.shape[-1] // 2)")),
        ("the exponent is i/K, not 2i/K", (r"\(2 \* i / width\)", "(i / width)")),
        (
            "the exponent is 2i/(K/2), not 2i/K",
            (r"(arange\(0, \w+, 2.*?\)(?:\.double\(\))?) / (\w+)", r"\1 / (\2 // 2)"),
        ),
        ("the exponent is 2i/(K/2), not 2i/K", (r"\(2 \* i / width\)", "(2 * i / (width // 2))")),
        ("the frequencies are not inverted", (r"= 1\.0 / (theta|base)", r"= \1")),
        ("the frequencies are not inverted", (r"base \*\* \(-2\.0", "base ** (2.0")),
        ("the frequencies are not inverted", (r"theta \*\* -\(", "theta ** (")),
        ("the frequencies are not inverted", (r"position / 10000", "position * 10000")),
        (
            "the axis of the positions is that of the leading axis, not the tokens",
            (r"positions\[:, None\] \* inverse", "np.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1)) * inverse"),
        ),
        ("nothing is rotated", (r"return (?:turned|\(q|\(x|np\.stack|torch\.view).*", "return ARRAY")),
        ("nothing is rotated", (r"return out", "return x")),
        ("theta is ignored: it is always 10000", (r"(theta|base) \*\*", "10000.0 **")),
        ("theta is 1000", (r"(theta|base) \*\*", "1000.0 **")),
        ("theta is 1000", (r"10000 \*\*", "1000 **")),
        ("theta is 100000", (r"(theta|base) \*\*", "100000.0 **")),
        ("theta is 500000", (r"(theta|base) \*\*", "500000.0 **")),
        ("theta is 1e+06", (r"(theta|base) \*\*", "1000000.0 **")),
    ],
    "sinusoidal": [
        ("positions are shifted by +1", (r"angle = position", "angle = (position + 1)")),
        ("positions are shifted by +1", (r"arange\((max_len|length|seq_len)\)", r"arange(1, \1 + 1)")),
        (
            "sines and cosines are exchanged",
            (r"math\.sin\(angle\)", "SIN"),
            (r"math\.cos\(angle\)", "math.sin(angle)"),
            (r"SIN", "math.cos(angle)"),
        ),
        (
            "sines and cosines are exchanged",
            (r"(np|torch)\.sin\((angles.*?|position \* div_term)\)", r"\1.SIN(\2)"),
            (r"(np|torch)\.cos\((angles.*?|position \* div_term)\)", r"\1.sin(\2)"),
            (r"\.SIN\(", ".cos("),
        ),
        ("sines and cosines are exchanged", (r"\[angles\.sin\(\), angles\.cos\(\)\]", "[angles.cos(), angles.sin()]")),
        (
            "the exponent is 2·2i/D: i is the number of the column, and is doubled again",
            (r"\(i / d_model\)", "(2 * i / d_model)"),
        ),
        (
            "the exponent is 2·2i/D: i is the number of the column, and is doubled again",
            (r"2 \* \(columns // 2\)", "4 * (columns // 2)"),
        ),
        (
            "the exponent is 2·2i/D: i is the number of the column, and is doubled again",
            (r"\(columns / d_model\)", "(2 * columns / d_model)"),
        ),
        (
            "the exponent is 2·2i/D: i is the number of the column, and is doubled again",
            (r"\(-math\.log", "(-2 * math.log"),
        ),
        ("the exponent is i/D", (r"\(i / d_model\)", "(i / 2 / d_model)")),
        ("the exponent is i/D", (r"2 \* \(columns // 2\)", "(columns // 2)")),
        ("the exponent is i/D", (r"\(columns / d_model\)", "(columns / 2 / d_model)")),
        ("the exponent is i/D", (r"/ \(dim // 2\)\)", "/ dim)")),
        ("the exponent of the cosines is (2i+1)/D", (r"2 \* \(columns // 2\)", "columns")),
        (
            "the exponent of the cosines is (2i+1)/D",
            (r"= math\.cos\(angle\)", "= math.cos(position / 10000 ** ((i + 1) / d_model))"),
        ),
        (
            "the exponent of the cosines is 2(2i+1)/D, that of the sines 2·2i/D",
            (r"2 \* \(columns // 2\)", "2 * columns"),
        ),
        ("the angle is multiplied by 10000^(2i/D)", (r"(position|\[:, None\]) / (10000|np\.power)", r"\1 * \2")),
        ("the angle is multiplied by 10000^(2i/D)", (r"np\.exp\(-", "np.exp(")),
        ("the angle is multiplied by 10000^(2i/D)", (r"\(-math\.log", "(math.log")),
        ("all columns are sines", (r"math\.cos\(angle\)", "math.sin(angle)")),
        ("all columns are sines", (r"(np|torch)\.cos\(", r"\1.sin(")),
        ("all columns are sines", (r"angles\.cos\(\)", "angles.sin()")),
        ("the base is 1000", (r"10000(?:\.0)?\b", "1000.0")),
        ("the base is 100000", (r"10000(?:\.0)?\b", "100000.0")),
    ],
    "mask": [
        ("the causal mask excludes the token itself", (r"np\.tril\((.*)\)$", r"np.tril(\1, k=-1)")),
        ("the causal mask excludes the token itself", (r"<=", "<")),
        ("the causal mask excludes the token itself", (r"k=1\)", "k=0)")),
        ("the causal mask excludes the token itself", (r"diagonal=1", "diagonal=0")),
        ("the causal mask excludes the token itself", (r"(torch\.tril\(.*)\)\.bool", r"\1, diagonal=-1).bool")),
        ("the causal mask is shifted by one: the next token is visible", (r"np\.tril\((.*)\)$", r"np.tril(\1, k=1)")),
        (
            "the causal mask is shifted by one: the next token is visible",
            (r"<= place\[:, None\]", "<= place[:, None] + 1"),
        ),
        ("the causal mask is shifted by one: the next token is visible", (r"k=1\)", "k=2)")),
        ("the causal mask is shifted by one: the next token is visible", (r"diagonal=1", "diagonal=2")),
        ("the causal mask is the wrong way round", (r"np\.tril\(np\.ones", "np.triu(np.ones")),
        ("the causal mask is the wrong way round", (r"<=", ">=")),
        ("the causal mask is the wrong way round", (r"np\.triu\((.*)k=1\)", r"np.tril(\1k=-1)")),
        ("the causal mask is the wrong way round", (r"torch\.triu\((.*)diagonal=1\)", r"torch.tril(\1diagonal=-1)")),
        ("the causal mask is the wrong way round", (r"torch\.tril\(", "torch.triu(")),
        ("a token may attend to itself alone", (r"<=", "==")),
        ("every token may attend to all", (r"np\.tril\((.*)\)$", r"\1")),
        ("every token may attend to all", (r"k=1\)", "k=size if 'size' in locals() else seq_len)")),
    ],
    "layernorm": [
        ("the norm divides by n − 1, not by n", (r"(x\.var\(.*?keepdims=True)\)", r"\1, ddof=1)")),
        ("the norm divides by n − 1, not by n", (r"unbiased=False", "unbiased=True")),
        (
            "the norm divides by n − 1, not by n",
            (r"np\.mean\(centered\*\*2, (.*?)\)", r"np.sum(centered**2, \1) / (x.shape[-1] - 1)"),
        ),
        (
            "the norm divides by n − 1, not by n",
            (r"\(\(x - mean\) \*\* 2\)\.mean\((.*?)\)", r"((x - mean) ** 2).sum(\1) / (x.shape[-1] - 1)"),
        ),
        ("eps is added to the root, not under it", (r"np\.sqrt\(var \+ (\S*eps)\)", r"(np.sqrt(var) + \1)")),
        (
            "eps is added to the root, not under it",
            (r"torch\.sqrt\(var \+ self\.eps\)", "(torch.sqrt(var) + self.eps)"),
        ),
        ("eps is added to the root, not under it", (r"np\.sqrt\((.*) \+ epsilon\)", r"np.sqrt(\1) + epsilon")),
        ("eps is added to the root, not under it", (r"\* torch\.rsqrt\(var \+ eps\)", "/ (torch.sqrt(var) + eps)")),
        (
            "the norm divides by n − 1, and eps is added to the root (σ + eps)",
            (r"(x\.var\(.*?)\)", r"\1, ddof=1)"),
            (r"np\.sqrt\(var \+ (\S*eps)\)", r"(np.sqrt(var) + \1)"),
        ),
        (
            "the norm divides by n − 1, and eps is added to the root (σ + eps)",
            (r"unbiased=False", "unbiased=True"),
            (r"torch\.sqrt\(var \+ self\.eps\)", "(torch.sqrt(var) + self.eps)"),
        ),
        ("eps is missing", (r" \+ (?:self\.)?eps(?:ilon)?\)", ")")),
        ("the norm divides by σ², not by σ", (r"(?:np|torch)\.sqrt\((var.*?)\)", r"(\1)")),
        ("the norm divides by σ², not by σ", (r"np\.sqrt\((np\.mean.*)\)$", r"(\1)")),
        ("the norm divides by σ², not by σ", (r"torch\.rsqrt\(var \+ eps\)", "(1 / (var + eps))")),
        ("gamma is 1 + gamma", (r"\* (gamma|weight)", r"* (1 + \1)")),
        ("gamma is 1 + gamma", (r"((?:self\.)?(?:gamma|scale|weight)) \* (?=\(x|centered)", r"(1 + \1) * ")),
        ("gamma is 1 + gamma", (r"shape\[-1:\], gamma", "shape[-1:], 1 + gamma")),
        ("gamma is missing", (r" \* (?:gamma|weight)| (?:self\.gamma|self\.scale|weight) \*", "")),
        ("gamma is missing", (r"shape\[-1:\], gamma", "shape[-1:], None")),
        ("beta is missing", (r" \+ (?:self\.)?(?:beta|shift|bias)$", "")),
        ("beta is missing", (r"gamma, beta, eps\)$", "gamma, None, eps)")),
        (
            "the norm does not subtract the mean (RMS norm)",
            (r"mean = x\.mean.*", "mean = 0"),
            (r"x\.var\(.*?\)", "(x**2).mean(-1, keepdims=True)"),
        ),
        ("the norm does not subtract the mean (RMS norm)", (r"mean = x\.mean.*", "mean = 0")),
        ("the norm does not subtract the mean (RMS norm)", (r"centered = x - .*", "centered = x")),
        (
            "the columns are normalized (batch normalization), not the rows",
            (r"mean\((?:axis|dim)=-1", "mean(0"),
            (r"var\((?:axis|dim)=-1", "var(0"),
        ),
        ("the mean and the variance are those of all numbers", (r"\.(mean|var)\(-1, keepdims=True\)", r".\1()")),
        (
            "the mean and the variance are those of all numbers",
            (r"\.(mean|var)\((?:axis|dim)=-1, keepdims?=True(?:(, )(unbiased=False))?\)", r".\1(\3)"),
        ),
        ("eps is 1e-12", (r"\+ (?:self\.)?eps(?:ilon)?\)", "+ 1e-12)")),
        ("eps is 1e-06", (r"\+ (?:self\.)?eps(?:ilon)?\)", "+ 1e-6)")),
        ("eps is 1e-05", (r"\+ (?:self\.)?eps(?:ilon)?\)", "+ 1e-5)")),
        ("eps is 0.001", (r"\+ (?:self\.)?eps(?:ilon)?\)", "+ 1e-3)")),
    ],
    "rmsnorm": [
        ("eps is added to the root, not under it", (r"\.sqrt\((.*) \+ ((?:self\.)?eps)\)", r".sqrt(\1) + \2")),
        (
            "eps is added to the root, not under it",
            (r"\* torch\.rsqrt\(variance \+ eps\)", "/ (variance.sqrt() + eps)"),
        ),
        (
            "eps is added to the root, not under it",
            (r"\* \(squares \+ eps\)\[\.\.\., None\] \*\* -0\.5", "/ (squares[..., None] ** 0.5 + eps)"),
        ),
        ("eps is missing", (r" \+ (?:self\.)?eps\)", ")")),
        (
            "the mean is subtracted (layer norm)",
            (r"^(    +)(rms|variance|squares) = ", r"\1ARRAY = ARRAY - ARRAY.mean(-1)[..., None]\n\g<0>"),
        ),
        ("the squares are added, not averaged", (r"np\.mean\(x\*\*2", "np.sum(x**2")),
        ("the squares are added, not averaged", (r"pow\(2\)\.mean", "pow(2).sum")),
        ("the squares are added, not averaged", (r" / x\.shape\[-1\]", "")),
        ("the norm has no root", (r"(?:np|torch)\.sqrt\((.*)\)$", r"\1")),
        ("the norm has no root", (r"torch\.rsqrt\(variance \+ eps\)", "(1 / (variance + eps))")),
        ("the norm has no root", (r"\*\* -0\.5", "** -1.0")),
        ("gamma is 1 + gamma", (r"/ rms \* ((?:self\.)?weight)", r"/ rms * (1 + \1)")),
        ("gamma is 1 + gamma", (r"return (weight|g) \*", r"return (1 + \1) *")),
        ("gamma is missing", (r"/ rms \* (?:self\.)?weight", "/ rms")),
        ("gamma is missing", (r"return (?:weight|g) \*", "return")),
        ("the mean is that of all numbers", (r"axis=-1, keepdims=True", "keepdims=True")),
        ("the mean is that of all numbers", (r"\.mean\(-1, keepdim=True\)", ".mean()")),
        ("eps is 1e-12", (r"\+ (?:self\.)?eps\)", "+ 1e-12)")),
        ("eps is 1e-06", (r"\+ (?:self\.)?eps\)", "+ 1e-6)")),
        ("eps is 1e-05", (r"\+ (?:self\.)?eps\)", "+ 1e-5)")),
        ("eps is 0.001", (r"\+ (?:self\.)?eps\)", "+ 1e-3)")),
    ],
    "gelu": [
        ("the activation is gelu-tanh", (r"F\.gelu\(x", 'F.gelu(x, approximate="tanh"')),
        ("the activation is quick-gelu", (r"F\.gelu\(x\)", "x * torch.sigmoid(1.702 * x)")),
        ("the activation is relu", (r"F\.gelu", "F.relu")),
        ("the activation is silu", (r"F\.gelu", "F.silu")),
    ],
    "gelu-tanh": [
        ("the activation is quick-gelu", (r"return .*", "return x / (1 + LIB.exp(-1.702 * x))")),
        ("the activation is silu", (r"return .*", "return x / (1 + LIB.exp(-x))")),
    ],
    "silu": [
        ("the activation is sigmoid", (r"return x \* ", "return ")),
        ("the activation is sigmoid", (r"return x / ", "return 1 / ")),
        ("σ(x) is added, not multiplied", (r"return x \* ", "return x + ")),
        ("the exponent has the wrong sign: x · σ(−x)", (r"sigmoid\(x\)", "sigmoid(-x)")),
        ("the exponent has the wrong sign: x · σ(−x)", (r"exp\(-x\)", "exp(x)")),
        ("the activation is quick-gelu", (r"exp\(-x\)", "exp(-1.702 * x)")),
        ("the activation is quick-gelu", (r"sigmoid\(x\)", "sigmoid(1.702 * x)")),
    ],
    "sigmoid": [
        ("the activation is silu", (r"return 1 /", "return x /")),
        ("the activation is tanh", (r"return 1 / .*", "return LIB.tanh(x)")),
        ("the exponent has the wrong sign: σ(−x)", (r"exp\(-x\)", "exp(x)")),
        ("e^−x overflows", (r"return 1 / .*", "return LIB.exp(x) / (1 + LIB.exp(x))")),
    ],
    "ffn": [
        ("the activation is missing", (r"np\.maximum\(0, (.*)\)$", r"\1")),
        ("the activation is missing", (r"gelu_tanh\(hidden\)", "hidden")),
        ("the activation is missing", (r"torch\.relu\((.*)\)$", r"\1")),
        ("the activation is missing", (r"F\.gelu\((.*), approximate=\"tanh\"\)", r"\1")),
        ("the activation is missing", (r"nn\.GELU\(\)", "nn.Identity()")),
        ("the bias b1 is missing", (r" \+ b1", "")),
        ("the bias b1 is missing", (r"self\.(linear1|c_fc)\(x\)", r"(x @ self.\1.weight.T)")),
        ("the bias b2 is missing", (r" \+ b2", "")),
        ("the bias b2 is missing", (r"self\.(linear2|c_proj)\((.*)\)$", r"\2 @ self.\1.weight.T")),
        ("b1 is added after the activation", (r"np\.maximum\(0, x @ W1 \+ b1\)", "np.maximum(0, x @ W1) + b1")),
        (
            "b1 is added after the activation",
            (r"torch\.relu\(self\.linear1\(x\)\)", "torch.relu(x @ self.linear1.weight.T) + self.linear1.bias"),
        ),
        ("max(0, ·) is applied to the output too", (r"return (hidden @.*)", r"return np.maximum(\1, 0)")),
        ("max(0, ·) is applied to the output too", (r"return (self\..*)", r"return torch.relu(\1)")),
        ("the input is added (the residual)", (r"return (self\..*|hidden @ .*)", r"return x + \1")),
        ("the activation is sigmoid", (r"torch\.relu", "torch.sigmoid")),
        ("the activation is sigmoid", (r"np\.maximum\(0, (.*)\)$", r"sigmoid(\1)")),
        ("the activation is sigmoid", (r"gelu_tanh\(hidden\)", "sigmoid(hidden)")),
        ("the activation is sigmoid", (r"nn\.GELU\(\)", "nn.Sigmoid()")),
        ("the activation is tanh", (r"torch\.relu", "torch.tanh")),
        ("the activation is tanh", (r"np\.maximum\(0, (.*)\)$", r"np.tanh(\1)")),
        ("the hidden numbers are scaled by 1/√F", (r"return hidden @", "return hidden / hidden.shape[-1] ** 0.5 @")),
        (
            "the hidden numbers are scaled by 1/√F",
            (r"self\.(linear2\(self\.dropout|c_proj)\(hidden\)", r"self.\1(hidden / hidden.shape[-1] ** 0.5)"),
        ),
    ],
    "swiglu": [
        ("gate and up are exchanged: W3 is activated", (r"silu\(gate\) \* up", "silu(up) * gate")),
        ("the gate is not activated", (r"(?:F\.)?silu\(gate\)", "gate")),
        ("the activation is sigmoid (GLU)", (r"F\.silu\(gate\)", "F.sigmoid(gate)")),
        ("the activation is sigmoid (GLU)", (r"silu\(gate\)", "sigmoid(gate)")),
        ("the activation is gelu (GEGLU)", (r"(?:F\.)?silu\(gate\)", "gelu(gate)")),
        ("the activation is relu (ReGLU)", (r"(?:F\.)?silu\(gate\)", "relu(gate)")),
        ("gate and up are added, not multiplied", (r"silu\(gate\) \* up", "silu(gate) + up")),
        ("up is missing", (r"silu\(gate\) \* up", "silu(gate)")),
        ("the product is activated, not the gate", (r"silu\(gate\) \* up", "silu(gate * up)")),
    ],
    "cross-entropy": [
        ("the largest logit is not subtracted, so that e^logit overflows", (MAXIMUM, r"shifted = \1")),
        (
            "softmax is applied twice: probabilities are taken for logits",
            (r"shifted = (\w+) - .*", r"shifted = softmax(\1, -1)"),
        ),
        (
            "softmax is applied twice: probabilities are taken for logits",
            (r"F\.cross_entropy\(logits", "F.cross_entropy(logits.softmax(-1)"),
        ),
        ("softmax is missing: the logit of the target is taken", (r"log_probs = .*", "log_probs = ARRAY")),
        (
            "the logarithm has the base 2",
            (r"return (-picked\.mean\(\)|F\..*|-np\.sum.*)", r"return (\1) / math.log(2)"),
        ),
        (
            "the logarithm has the base 10",
            (r"return (-picked\.mean\(\)|F\..*|-np\.sum.*)", r"return (\1) / math.log(10)"),
        ),
        ("the minus sign is missing", (r"return -", "return ")),
        ("the loss is the sum, not the mean", (r"picked\.mean", "picked.sum")),
        ("the loss is the sum, not the mean", (r" / len\(y_true\)", "")),
        ("the loss is the sum, not the mean", (r"reshape\(-1\)\)", 'reshape(-1), reduction="sum")')),
        (
            "the loss is divided by the number of all logits",
            (r"-picked\.mean\(\)", "-picked.sum() / math.prod(log_probs.shape)"),
        ),
        ("the loss is divided by the number of all logits", (r" / len\(y_true\)", " / y_pred.size")),
        ("that is the perplexity, e^loss", (r"return (-picked\.mean\(\)|F\..*|-np\.sum.*)", r"return LIB.exp(\1)")),
        ("that is −ln of the mean probability", (r"-picked\.mean\(\)", "-LIB.log(LIB.exp(picked).mean())")),
        (
            "the targets are those of the next token: they are shifted by one",
            (
                r"log_probs\[np\.arange\(len\(targets\)\), targets\]",
                "log_probs[np.arange(len(targets) - 1), targets[1:]]",
            ),
        ),
        (
            "the targets are those of the next token: they are shifted by one",
            (
                r"F\.cross_entropy\(.*\)",
                "F.cross_entropy(logits[:-1], labels[1:]) if len(labels) > 1 else logits.sum() * 0",
            ),
        ),
        ("softmax is over the tokens, not over the words", (r"(max|sum)\((.*?)(axis|dim)=-1", r"\1(\2\3=0")),
    ],
    "multihead": [
        *SCALES,
        ("the scale of the scores is 1/√D of the whole width", (SCALE, " / ARRAY.shape[-1] ** 0.5")),
        ("the scores are divided by the root of the number of heads", (SCALE, " / HEADS ** 0.5")),
        ("the scores are divided by the root of the number of keys", (SCALE, " / ARRAY.shape[-2] ** 0.5")),
        (
            "heads are split by a reshape to (H, T, K), without transposing",
            (
                r"\.reshape\(batch, tokens, num_heads, d_head\)\.transpose\(0, 2, 1, 3\)",
                ".reshape(batch, num_heads, tokens, d_head)",
            ),
        ),
        (
            "heads are split by a reshape to (H, T, K), without transposing",
            (
                r"np\.swapaxes\(x\.reshape\(\*lead, tokens, heads, width // heads\), -2, -3\)",
                "x.reshape(*lead, heads, tokens, width // heads)",
            ),
        ),
        (
            "heads are split by a reshape to (H, T, K), without transposing",
            (
                r"\.view\(batch, tokens, self\.num_heads, (.*?)\)\.transpose\(1, 2\)",
                r".view(batch, self.num_heads, tokens, \1)",
            ),
        ),
        (
            "heads are split by a reshape to (H, T, K), without transposing",
            (
                r"\.view\(B, T, self\.n_head, C // self\.n_head\)\.transpose\(1, 2\)",
                ".reshape(B, self.n_head, T, C // self.n_head)",
            ),
        ),
        (
            "heads are split by a reshape to (H, T, K), without transposing",
            (
                r"\.reshape\(\*lead, tokens, num_heads, d_head\)\.transpose\(-2, -3\)",
                ".reshape(*lead, num_heads, tokens, d_head)",
            ),
        ),
        (
            "heads are joined by a reshape, without transposing",
            (r"heads\.transpose\(0, 2, 1, 3\)\.reshape", "heads.reshape"),
        ),
        ("heads are joined by a reshape, without transposing", (r"np\.swapaxes\(x, -2, -3\)\.reshape", "x.reshape")),
        (
            "heads are joined by a reshape, without transposing",
            (r"heads\.transpose\(1, 2\)\.contiguous\(\)\.view", "heads.reshape"),
        ),
        ("heads are joined by a reshape, without transposing", (r"\(weights @ v\)\.transpose\(.*?\)", "(weights @ v)")),
        (
            "the head is the last part of a column's index, not the first",
            (
                r"\.reshape\(batch, tokens, num_heads, d_head\)\.transpose\(0, 2, 1, 3\)",
                ".reshape(batch, tokens, d_head, num_heads).transpose(0, 3, 1, 2)",
            ),
        ),
        (
            "the head is the last part of a column's index, not the first",
            (
                r"\.view\(batch, tokens, self\.num_heads, self\.d_k\)\.transpose\(1, 2\)",
                ".view(batch, tokens, self.d_k, self.num_heads).permute(0, 3, 1, 2)",
            ),
        ),
        (
            "the head is the last part of a column's index, not the first",
            (
                r"\.view\(B, T, self\.n_head, C // self\.n_head\)\.transpose\(1, 2\)",
                ".view(B, T, C // self.n_head, self.n_head).permute(0, 3, 1, 2)",
            ),
        ),
        (
            "attention is over the heads of a token, not over the tokens",
            (
                r"\.reshape\(batch, tokens, num_heads, d_head\)\.transpose\(0, 2, 1, 3\)",
                ".reshape(batch, tokens, num_heads, d_head)",
            ),
            (r"if mask is not None:", "if False:"),
            (r"heads\.transpose\(0, 2, 1, 3\)\.reshape", "heads.reshape"),
        ),
        *AXES_OF_WEIGHTS,
        *over("softmax is over HEADS_OR_BATCH, not the keys", -3),
        ("queries and keys are exchanged", (r"q @ k\.(transpose\(.*?\)|mT)", r"k @ q.\1")),
        ("queries and keys are exchanged", (r"\"\.\.\.td,\.\.\.sd->\.\.\.ts\", q, k", '"...td,...sd->...ts", k, q')),
        ("the values are the keys", (r"weights @ v", "weights @ k")),
        ("the output projection is missing", (r"return joined @ .*", "return joined")),
        ("the output projection is missing", (r"return self\.(?:W_o|c_proj|output_proj)\(joined\)", "return joined")),
        ("the output weight is transposed", (r"joined @ (\w+)(\.T)?", r"joined @ \1.T\2")),
        (
            "the output weight is transposed",
            (r"return self\.(W_o|c_proj)\(joined\)", r"return joined @ self.\1.weight + self.\1.bias"),
        ),
        (
            "the output weight is transposed",
            (r"return self\.output_proj\(joined\)", "return joined @ self.output_proj.weight"),
        ),
        ("the biases of queries, keys and values are missing", (r"self\.(W_[qkv])\(x\)", r"x @ self.\1.weight.T")),
        ("the biases of queries, keys and values are missing", (r"self\.c_attn\(x\)", "(x @ self.c_attn.weight.T)")),
        ("the biases of queries, keys and values are missing", (r" \+ b_[qkv]", "")),
        (
            "the bias of the output is missing",
            (r"return self\.(W_o|c_proj)\(joined\)", r"return joined @ self.\1.weight.T"),
        ),
        ("the bias of the output is missing", (r" \+ b_o", "")),
        *MASKS,
        (
            "the causal mask excludes the token itself",
            (r"np\.tril\(np\.ones\(\(tokens, tokens\), bool\)\)", "np.tril(np.ones((tokens, tokens), bool), -1)"),
        ),
        ("the causal mask excludes the token itself", (r"triu\(1\)", "triu(0)")),
        ("the causal mask excludes the token itself", (r"\.tril\(\)", ".tril(-1)")),
        (
            "the causal mask is shifted by one: the next token is visible",
            (r"np\.tril\(np\.ones\(\(tokens, tokens\), bool\)\)", "np.tril(np.ones((tokens, tokens), bool), 1)"),
        ),
        ("the causal mask is shifted by one: the next token is visible", (r"triu\(1\)", "triu(2)")),
        ("the causal mask is shifted by one: the next token is visible", (r"\.tril\(\)", ".tril(1)")),
        (
            "the causal mask is shifted by one: the next token is visible",
            (
                r"torch\.tril\(torch\.ones\(block_size, block_size\)\)",
                "torch.tril(torch.ones(block_size, block_size), 1)",
            ),
        ),
        (
            "the mask is applied after the softmax",
            (IF_MASK, "if False:"),
            (r"weights @ v", "(weights if mask is None else weights * mask[:, None]) @ v"),
        ),
    ],
    "multihead-rope": [
        ("queries are not rotated", (r"q, k = (\w+\(q.*\)), (\w+\(k.*\))", r"k = \2")),
        ("queries are not rotated", (r"q, k = self\.rope\(q.*\), (self\.rope\(k.*\))", r"k = \1")),
        ("keys are not rotated", (r"q, k = (\w+\(q.*\)), (\w+\(k.*\))", r"q = \1")),
        ("keys are not rotated", (r"q, k = (self\.rope\(q.*\)), self\.rope\(k.*\)", r"q = \1")),
        ("neither queries nor keys are rotated", (r"q, k = (?:self\.)?rope.*", "pass")),
        ("the values are rotated too", (r"q, k = (\w+)\(q, (\w+), theta\), .*", r"\g<0>\n    v = \1(v, \2, theta)")),
        (
            "the values are rotated too",
            (r"q, k = self\.rope\(q, token_positions\), .*", r"\g<0>\n        v = self.rope(v, token_positions)"),
        ),
        (
            "the positions are ignored: they are always 0, 1, 2, …",
            (r"positions = .* else token_positions", "positions = np.arange(x.shape[-2])"),
        ),
        (
            "the positions are ignored: they are always 0, 1, 2, …",
            (r"places = .* else positions", "places = np.arange(x.shape[-2])"),
        ),
        ("the positions are ignored: they are always 0, 1, 2, …", (r"if token_positions is None:", "if True:")),
    ],
}

SLIPS["multihead-rope"] += [row for row in SLIPS["multihead"] if "bias" not in row[0] and "exchanged" not in row[0]]
SLIPS |= {
    "block": [
        (
            "the norms follow the residuals (post-norm, not pre-norm)",
            (
                r"x = x \+ self\.attn\(self\.ln1\(x\), token_positions\)",
                "x = self.ln1(x + self.attn(x, token_positions))",
            ),
            (r"x \+ self\.ffn\(self\.ln2\(x\)\)", "self.ln2(x + self.ffn(x))"),
        ),
        ("both residuals are missing", (r"x \+ (self\.\w+\(|attended|fed)", r"\1")),
        ("both norms are missing", (r"self\.ln[12]\(x\)", "x")),
        (
            "the sub-layers read the same input (parallel, not serial)",
            (r"x = x \+ (self\.attn.*)", r"y = \1"),
            (r"return x \+", "return x + y +"),
        ),
        (
            "the sub-layers read the same input (parallel, not serial)",
            (r"normed = rmsnorm_of_parts\(x,", "normed = rmsnorm_of_parts(x - attended,"),
        ),
    ],
    "gpt-block": [
        (
            "the norms follow the residuals (post-norm, not pre-norm)",
            (r"x = x \+ self\.attn\(self\.ln_1\(x\)\)", "x = self.ln_1(x + self.attn(x))"),
            (r"x \+ self\.mlp\(self\.ln_2\(x\)\)", "self.ln_2(x + self.mlp(x))"),
        ),
        ("both residuals are missing", (r"x \+ (self\.\w+\()", r"\1")),
        ("both norms are missing", (r"self\.ln_[12]\(x\)", "x")),
        (
            "the sub-layers read the same input (parallel, not serial)",
            (r"x = x \+ (self\.attn.*)", r"y = \1"),
            (r"return x \+", "return x + y +"),
        ),
    ],
    "encoder-layer": [
        ("the residuals are missing", (r"x \+ (self\.\w+\(|attended|fed)", r"\1")),
        ("the norms are missing", (r"self\.norm[12]\((.*)\)$", r"\1")),
        ("the residuals are added after the norms", (r"self\.norm([12])\(x \+ (.*)\)$", r"x + self.norm\1(\2)")),
    ],
    "decoder-layer": [
        ("the residuals are missing", (r"x \+ (self\.\w+\()", r"\1")),
        ("the norms are missing", (r"self\.norm[123]\((.*)\)$", r"\1")),
        ("the residuals are added after the norms", (r"self\.norm([123])\(x \+ (.*)\)$", r"x + self.norm\1(\2)")),
    ],
    "lm": [
        ("the last norm is missing", (r"x = self\.ln_final\(x\)", "pass")),
        ("the last norm is missing", (r"x = rmsnorm_of_parts\(x, weights\[\"ln_final.*", "pass")),
        ("the embeddings are multiplied by √D", (r"self\.token_embeddings\(in_indices\)", r"\g<0> * 12**0.5")),
        ("the embeddings are multiplied by √D", (r"(\[\"token_embeddings.weight\"\]\[in_indices\])", r"\1 * 12**0.5")),
        ("the head is the table of the embeddings", (r"self\.lm_head\(x\)", "x @ self.token_embeddings.weight.T")),
        ("the head is the table of the embeddings", (r"lm_head\.weight", "token_embeddings.weight")),
        ("softmax is applied to the logits", (r"return (self\.lm_head\(x\)|x @ weights.*)", r"return softmax(\1, -1)")),
        ("all layers have the parameters of the first", (r"x = layer\(x\)", "x = self.layers[0](x)")),
        ("all layers have the parameters of the first", (r"layers\.\{layer\}", "layers.0")),
        ("the second layer is missing", (r"in self\.layers:", "in self.layers[:-1]:")),
        ("the second layer is missing", (r"range\(num_layers\)", "range(num_layers - 1)")),
    ],
}
# what a whole is made of: the part by its kind, its stage, and its name in the file of the library
PARTS = {
    ("block", "numpy"): {
        "attention": ("multihead-rope", "multihead_rope"),
        "norm": ("rmsnorm", "rmsnorm_of_parts"),
        "network": ("swiglu", "swiglu_out_in"),
    },
    ("block", "torch"): {
        "attention": ("multihead-rope", "MultiHeadSelfAttentionWithRope"),
        "norm": ("rmsnorm", "RMSNorm"),
        "network": ("swiglu", "SwiGLU"),
    },
    ("gpt-block", "torch"): {"attention": ("multihead", "CausalSelfAttention"), "network": ("ffn", "MLP")},
    ("encoder-layer", "numpy"): {"norm": ("layernorm", "layernorm_of_parts")},
    ("encoder-layer", "torch"): {"attention": ("multihead", "MultiHeadAttention"), "network": ("ffn", "FeedForward")},
    ("decoder-layer", "torch"): {"network": ("ffn", "FeedForward")},
}
PARTS[("lm", "numpy")], PARTS[("lm", "torch")] = PARTS[("block", "numpy")], PARTS[("block", "torch")]

# the arguments of implementations that rows of SLIPS name
NAMES = {
    "QUERIES": "Q q query queries b",
    "KEYS": "K k key keys a",
    "VALUES": "V v value values c",
    "ARRAY": "x in_features z q hidden_states inputs logits y_pred",
    "TABLE": "weights table weight self.weight",
    "IDS": "token_ids ids input_ids",
    "HEADS": "self.num_heads self.n_head num_heads n_heads n_head",
}


class Slipped(NamedTuple):
    """A slip in an implementation: the sentence that names it, and the source of the whole file with it."""

    right: Right
    sentence: str
    source: str


def slipped(right: Right) -> list[Slipped]:
    """All slips that can be put into an implementation."""
    found = list(put_all(right, right.name, SLIPS.get(right.stage, ()), ""))
    used = " ".join(find_segments(source_of(right.library), right.name))
    for kind, (stage, name) in PARTS.get((right.stage, right.library), {}).items():
        if name in used:
            found += put_all(right, name, SLIPS[stage], f"{kind}: ")
    return found


def sentence_of(sentence, right):
    """A sentence on an implementation; without an axis of heads another axis is the third from the end."""
    return sentence.replace("HEADS_OR_BATCH", "the batch" if right.name == "multihead_of_heads" else "the heads")


def put_all(right, name, rows, before):
    source, done = source_of(right.library), set()
    segments = find_segments(source, name)
    for sentence, *replacements in rows:
        if sentence in done:
            continue
        changed, counts = source, []
        news = list(segments)
        for old, replacement in replacements:
            filled = fill_names(replacement, segments[0], right.library)
            put = [re.subn(old, filled, one, flags=re.MULTILINE) for one in news]
            news = [new for new, _ in put]
            counts.append(sum(count for _, count in put))
        for segment, new in zip(segments, news, strict=True):
            changed = changed.replace(segment, new)
        if all(counts):
            done.add(sentence)
            yield Slipped(right, before + sentence_of(sentence, right), changed)


def find_segments(source, name):
    """The source of a function or class, then of those of the file that it uses."""
    tree = {one.name: one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    names = [name]
    for one in names:
        used = [node.id for node in ast.walk(tree[one]) if isinstance(node, ast.Name)]
        names += [other for other in dict.fromkeys(used) if other in tree and other not in names]
    return [ast.get_source_segment(source, tree[one]) for one in names]


def fill_names(text, segment, library):
    for capital, words in NAMES.items():
        spelled = next((one for one in words.split() if re.search(rf"(?<![\w.]){re.escape(one)}\b", segment)), capital)
        text = text.replace(capital, spelled)
    return text.replace("LIB.", "np." if library == "numpy" else "torch.")


OUTCOMES = ("named", "one of several", "undecidable", "no effect", "unknown", "wrong")


def outcome_of(sentence: str, findings) -> str:
    """What a check made of a slip."""
    names = {cause.slip.name for cause in findings.causes}
    if findings.is_right:
        return "no effect"
    if not names:
        return "unknown"
    if not any(name == sentence or name.startswith(f"{sentence} (") for name in names):
        return "wrong"
    if not findings.causes[0].is_decisive:
        return "undecidable"
    return "named" if len(names) == 1 else "one of several"
