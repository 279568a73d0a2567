"""Slips that torch models were given are named, and no other: dumps of tests/references/make_slips.py, judged again.

The models are tiny and random; torch and transformers computed the dumps, each with one mistake.
"""

import json

import numpy as np
import pytest
from PIL import Image

from attnkit.checkpoints import open_checkpoint
from attnkit.debugger.compare import Request, compare_with_model
from attnkit.debugger.dumps import open_dump
from tests.drawing import VARIANTS, drawn_models
from tests.places import REFERENCES, ROOT
from tests.registry import place_of

STORED = (
    "albert", "bert", "distilbert", "electra", "gpt2", "llama-yarn", "llama", "marian", "mistral", "modernbert",
    "qwen2", "roberta", "t5-gated", "t5",
)  # fmt: skip
# dump -> the site that the slip is found at, its verdict, and the causes
NAMED = {
    "albert-RMS-for-layer-float32": ("encoder.0.norm2", "named", {"the norm does not subtract the mean (RMS norm)"}),
    "bert-no-segments-float32": ("encoder.embed.types", "named", {"the embeddings of segments are missing"}),
    "bert-padding-inverted-float32": ("encoder.1.self.weights", "named", {"the padding mask is inverted"}),
    "bert-pre-norm-float32": (
        "encoder.1.self.q_projected",
        "named",
        {"the norms precede the sub-layers (pre-norm, not post-norm)"},
    ),
    "bert-wv-transposed-float32": ("encoder.1.self.v_projected", "named", {"the weight wv is transposed"}),
    "distilbert-n-minus-1-float32": ("encoder.1.norm2", "named", {"the norm divides by n − 1, not by n"}),
    "electra-no-norm-bias-float32": ("encoder.1.norm2", "named", {"the bias of the norm is missing"}),
    "gpt2-activation-gelu-float32": (
        "decoder.1.ffn.activated",
        "named",
        {"the activation is gelu (expected gelu-tanh)"},
    ),
    "gpt2-dropout-float32": ("decoder.1.self.residual", "named", {"dropout is left on (p ≈ 0.2)"}),
    "gpt2-fused-per-head-float32": (
        "decoder.1.self.q_projected",
        "named",
        {"the fused q, k and v are split per head; they are stored one after another"},
    ),
    "gpt2-no-b1-float32": ("decoder.1.ffn.hidden", "named", {"the bias b1 is missing"}),
    "gpt2-no-causal-mask-float32": ("decoder.1.self.weights", "named", {"the causal mask is missing"}),
    "gpt2-no-scale-bfloat16": ("decoder.1.self.weights", "undecidable", {"the scale of the scores is missing"}),
    "gpt2-no-scale-float32": ("decoder.1.self.weights", "named", {"the scale of the scores is missing"}),
    "gpt2-positions-+1-float32": (
        "decoder.positions.rows",
        "named",
        {"positions are shifted by +1 (they begin at 1 instead of 0)"},
    ),
    "gpt2-softmax-over-queries-float32": (
        "decoder.1.self.weights",
        "named",
        {"softmax is over the queries, not the keys"},
    ),
    "llama-1-+-weight-float32": ("decoder.1.norm2", "named", {"the norm multiplies by 1 + weight, not by weight"}),
    "llama-eps-0.001-float32": ("decoder.1.norm2", "named", {"eps of the norm is 0.001 instead of 1e-05"}),
    "llama-gate-and-up-float32": ("decoder.1.ffn.hidden", "named", {"gate and up are exchanged"}),
    "llama-half-the-width-float32": ("decoder.0.self.weights", "named", {"only 4 of 8 features of a head are rotated"}),
    "llama-interleaved-bfloat16": ("decoder.0.self.weights", "named", {"rotary pairs are interleaved"}),
    "llama-interleaved-float32": ("decoder.0.self.weights", "named", {"rotary pairs are interleaved"}),
    "llama-keys-in-turn-float32": (
        "decoder.1.self.weights",
        "named",
        {"key heads are repeated in turn, not in blocks"},
    ),
    "llama-keys-not-rotated-float32": ("decoder.0.self.weights", "named", {"keys are not rotated"}),
    "llama-parallel-float32": (
        "decoder.1.self.residual",
        "named",
        {"the output of the sub-layer is not added", "the sub-layers read the same input (parallel, not serial)"},
    ),
    "llama-post-norm-float32": (
        "decoder.1.norm1",
        "named",
        {"the norms follow the residuals (post-norm, not pre-norm)"},
    ),
    "llama-residual-after-norm-float32": (
        "decoder.1.self.residual",
        "named",
        {"the residual is added after the norm (decoder.1.norm1), not before it"},
    ),
    "llama-residual-sum-in-bfloat16-float32": (
        "decoder.1.self.residual",
        "named",
        {"decoder.1.self.residual is rounded to bfloat16"},
    ),
    "llama-theta-500000-float32": ("decoder.0.self.weights", "named", {"rope_theta is 500000 instead of 10000"}),
    "llama-yarn-yarn-ignored-float32": (
        "decoder.0.self.weights",
        "named",
        {
            "the scaling of rotary positions (yarn) is ignored",
            "the scaling of rotary positions is dynamic instead of yarn",
        },
    ),
    "marian-joined-flat-float32": ("decoder.1.self.joined", "named", {"heads are joined without transposing"}),
    "marian-sines-alternate-float32": (
        "encoder.positions.rows",
        "named",
        {"sinusoidal positions have alternating sines and cosines"},
    ),
    "mistral-no-window-bfloat16": (
        "decoder.1.self.weights",
        "undecidable",
        {"the window is missing", "the window is 10 keys before a query instead of 5 (twice as wide)"},
    ),
    "mistral-window-longer-float32": (
        "decoder.1.self.weights",
        "named",
        {"the window is 6 keys before a query instead of 5 (off by one)"},
    ),
    "mistral-window-shorter-float32": (
        "decoder.1.self.weights",
        "named",
        {"the window is 4 keys before a query instead of 5 (off by one)"},
    ),
    "modernbert-other-direction-float32": ("encoder.0.self.weights", "named", {"the rotation turns the other way"}),
    "qwen2-no-bq-float32": ("decoder.1.self.q_projected", "named", {"the bias bq is missing"}),
    "roberta-positions-from-0-float32": (
        "encoder.positions.rows",
        "named",
        {"positions are shifted by -2 (they begin at 0 instead of 2)"},
    ),
    "t5-gated-scale-added-float32": ("decoder.1.self.weights", "named", {"the scale of the scores is 1/√K"}),
    "t5-no-logit-scale-float32": ("logits", "named", {"the scale of the logits is missing"}),
    "t5-no-relative-bias-float32": ("decoder.1.self.weights", "named", {"the bias of relative positions is missing"}),
    "bloom-slopes-of-ALiBi-without-the-rule-float32": (
        "decoder.0.self.weights",
        "named",
        {"the slopes of ALiBi are 2^(−8 i/H) though H is no power of two"},
    ),
    "falcon-40b-fused-cut-in-three-float32": (
        "decoder.0.self.weights",
        "named",
        {"the fused q, k and v are split one after another; they are stored by groups of heads"},
    ),
    "gemma-weight-without-1-float32": (
        "decoder.3.norm2",
        "named",
        {"the norm multiplies by weight, not by 1 + weight"},
    ),
    "gemma2-cap-before-the-scale-float32": (
        "decoder.0.self.weights",
        "named",
        {"the soft cap of the scores is applied before their scale, not after it"},
    ),
    "gemma2-cap-of-another-size-float32": (
        "decoder.0.self.weights",
        "named",
        {"the soft cap of the scores is 2.5 instead of 1.5"},
    ),
    "gemma2-norm1-and-output_norm1-exchanged-float32": (
        "decoder.3.norm1",
        "named",
        {"the parameters are those of decoder.3.output_norm1"},
    ),
    "gemma2-windows-on-the-other-layers-float32": ("decoder.0.self.weights", "named", {"the window is missing"}),
    "gemma2-windows-twice-as-wide-float32": (
        "decoder.0.self.weights",
        "named",
        {"the window is 9 keys before a query instead of 4 (twice as wide)"},
    ),
    "gemma3-theta-of-the-other-layers-float32": (
        "decoder.0.self.weights",
        "named",
        {"rotary positions are those of layers without a window"},
    ),
    "gpt_neox-pairs-of-half-a-head-float32": (
        "decoder.0.self.weights",
        "named",
        {"rotary pairs are (i, i + K/2), across the whole head"},
    ),
    "falcon-40b-serial-float32": (
        "decoder.3.norm2",
        "named",
        {"the sub-layers follow one another (serial, not parallel)"},
    ),
    "granite-logits-multiplied-float32": (
        "logits",
        "named",
        {"the logits are multiplied by 0.5 instead of 2 (divided for multiplied, or the reverse)"},
    ),
    "granite-large-overflow-of-the-variance-float32": (
        "decoder.1.norm1",
        "named",
        {"the squares of the norm overflow in float16"},
    ),
    "olmo2-norm-of-each-head-float32": (
        "decoder.0.self.q_normed",
        "named",
        {"queries are normalized head by head, not over all heads together"},
    ),
    "phi-base-over-the-head-float32": (
        "decoder.0.self.weights",
        "named",
        {"the frequencies of rotary positions are those of the whole head"},
    ),
    "phi3-long-short-factors-for-long-float32": (
        "decoder.0.self.weights",
        "named",
        {"the short factors of longrope are used"},
    ),
    "qwen3-eps-0.0025-float32": ("decoder.3.norm2", "named", {"eps of the norm is 0.0025 instead of 1e-06"}),
    "qwen3-no-norm-of-q-and-k-float32": ("decoder.0.self.q_normed", "named", {"queries are not normalized"}),
    "qwen3-norm-after-the-rotation-float32": (
        "decoder.0.self.q_normed",
        "named",
        {"queries are normalized after the rotation, not before"},
    ),
    "qwen3-norms-of-q-and-k-exchanged-float32": (
        "decoder.0.self.q_normed",
        "named",
        {"queries are normalized with the parameters of keys"},
    ),
    "qwen3-padding-ignored-float32": (
        "decoder.0.self.weights",
        "named",
        {"the padding mask is missing, and rotary positions count the padding"},
    ),
    "qwen3-scale-of-hidden-by-heads-float32": (
        "decoder.0.self.weights",
        "named",
        {"the scale of the scores is 1/√(D/H), though a head is not D/H wide"},
    ),
    "qwen3-theta-37000-float32": ("decoder.0.self.weights", "named", {"rope_theta is 37000 instead of 10000"}),
    "qwen3-factor-yarn's-factor-by-the-formula-float32": (
        "decoder.0.self.weights",
        "named",
        {"the factor of yarn on cosines and sines is that of the formula, not the one that is stated"},
    ),
    "smollm3-NoPE-layers-rotated-float32": (
        "decoder.1.self.weights",
        "named",
        {"queries and keys are rotated, in a layer without rotary positions"},
    ),
    "t5-buckets-in-both-directions-float32": (
        "encoder.0.self.weights",
        "named",
        {"the buckets of relative positions are those of one direction"},
    ),
}


# dump of a drawn model -> its family, the site that the slip is found at, and the causes
DRAWN = {
    "clip-class-token-last": ("clip", "encoder.positions", {"the class token is last, not first"}),
    "deepseek_v2-factor-on-the-shared-expert": (
        "deepseek_v2",
        "decoder.3.ffn.output",
        {"the factor of the gates multiplies the shared expert too"},
    ),
    "deepseek_v2-greedy-no-norm-of-the-q-latent": (
        "deepseek_v2-greedy",
        "decoder.3.self.q_latent",
        {"the norm is missing"},
    ),
    "deepseek_v2-latent-keys-before-values": (
        "deepseek_v2",
        "decoder.3.self.weights",
        {"keys and values are cut one after another; they are stored per head"},
    ),
    "deepseek_v2-latent-rotation-in-the-other-layout": (
        "deepseek_v2",
        "decoder.0.self.weights",
        {"rotary pairs are halves instead of neighbours"},
    ),
    "deepseek_v3-correction-in-the-gates": (
        "deepseek_v3",
        "decoder.3.ffn.gates",
        {"the correction of the choice of experts is in the gates too"},
    ),
    "deepseek_v3-groups-ignored": ("deepseek_v3", "decoder.3.ffn.chosen", {"the groups of experts are ignored"}),
    "deepseek_v3-no-correction": (
        "deepseek_v3",
        "decoder.3.ffn.chosen",
        {"the correction of the choice of experts is missing"},
    ),
    "deepseek_v3-no-mscale": (
        "deepseek_v3",
        "decoder.3.self.weights",
        {"the scale of the scores is 1/√K", "the square of mscale is missing in the scale of the scores"},
    ),
    "dinov2-mean-and-deviation-of-ImageNet": (
        "dinov2",
        "pixels",
        {"the pixels are normalized by mean and deviation of ImageNet"},
    ),
    "dinov2-no-LayerScale-1": ("dinov2", "encoder.2.scale1", {"the factors of the features (LayerScale) are missing"}),
    "dinov2-not-cropped": ("dinov2", "pixels", {"the picture is not cropped after it is resized"}),
    "dinov2-registers-registers-after-the-patches": (
        "dinov2-registers",
        "encoder.positions",
        {"the registers are after the patches, not before them"},
    ),
    "dinov2-wide-positions-by-bilinear-with-align_corners": (
        "dinov2-wide",
        "encoder.positions",
        {"the positions are resized by the filter bilinear with align_corners"},
    ),
    "dinov3-no-class-token": ("dinov3", "encoder.embed", {"the class token is missing"}),
    "gpt_oss-experts-with-SiLU": ("gpt_oss", "decoder.3.ffn.output", {"the activation is silu (expected quick-gelu)"}),
    "gpt_oss-gate-and-up-of-experts-in-halves": (
        "gpt_oss",
        "decoder.3.ffn.output",
        {"gate and up are cut as halves; their columns alternate"},
    ),
    "gpt_oss-no-1-of-the-up-projection": (
        "gpt_oss",
        "decoder.3.ffn.output",
        {"the 1 that is added to the up projection is missing"},
    ),
    "lfm2-B-and-C-exchanged": (
        "lfm2",
        "decoder.3.shortconv.gate_in",
        {  # both give the first gate the second third
            "the thirds of the short convolution are taken as C, B, x (they are stored as B, C, x)",
            "the thirds of the short convolution are taken as x, B, C (they are stored as B, C, x)",
        },
    ),
    "lfm2-biases-biases-of-padding-in-the-windows": (
        "lfm2-biases",
        "decoder.1.shortconv.released",
        {  # the same, by what the projection made of the padding
            "padding is set to 0 before the projection, whose biases enter the windows of the convolution",
            "padding enters the windows of the convolution",
        },
    ),
    "lfm2-biases-convolution-with-silu": (
        "lfm2-biases",
        "decoder.3.shortconv.released",
        {"an activation (silu) follows the convolution"},
    ),
    "lfm2-biases-taps-turned-around": (
        "lfm2-biases",
        "decoder.3.shortconv.released",
        {"the taps of the convolution are turned around"},
    ),
    "lfm2-convolution-a-token-late": (
        "lfm2",
        "decoder.3.shortconv.released",
        {"the convolution is shifted by one: a token does not see itself"},
    ),
    "lfm2-padding-in-the-windows": (
        "lfm2",
        "decoder.0.shortconv.released",
        {"padding enters the windows of the convolution"},
    ),
    "mixtral-two-experts-exchanged": ("mixtral", "decoder.3.ffn.output", {"experts 1 and 3 are exchanged"}),
    "mamba2-D-after-the-step": (
        "mamba2",
        "decoder.3.recall.joined",
        {"D is multiplied by the values times Δ"},
    ),
    "mamba2-groups-in-turn": ("mamba2", "decoder.3.recall.joined", {"key heads are repeated in turn, not in blocks"}),
    "mamba2-norm-before-the-gate": (
        "mamba2",
        "decoder.3.recall.normed",
        {"the norm precedes the gate, it does not follow it"},
    ),
    "falcon_h1-gate-no-key-factor": (
        "falcon_h1-gate",
        "decoder.2.self.weights",
        {"the factor 1.4 of the keys is missing"},
    ),
    "olmoe-softmax-after-top-k": (
        "olmoe",
        "decoder.3.ffn.gates",
        {
            "the gates are softmax over the chosen experts alone",
            "the gates of the chosen experts are divided by their sum",
        },
    ),
    "phi3-fused-gate-and-up-alternate": (
        "phi3",
        "decoder.3.ffn.activated",
        {"gate and up are cut as alternating columns; they are halves"},
    ),
    "qwen2_moe-no-gate-of-the-shared-expert": (
        "qwen2_moe",
        "decoder.3.ffn.output",
        {"the gate of the shared expert is missing"},
    ),
    "qwen3_moe-one-expert": ("qwen3_moe", "decoder.3.ffn.chosen", {"1 expert computes each token, not 3"}),
    "qwen3_next-1-+-weight-of-a-state": (
        "qwen3_next",
        "decoder.3.recall.gated",
        {"the norm multiplies by 1 + weight, not by weight"},
    ),
    "qwen3_next-beta-without-sigmoid": (
        "qwen3_next",
        "decoder.3.recall.joined",
        {"the activation is missing (expected sigmoid)"},
    ),
    "qwen3_next-convolution-of-a-state-a-token-late": (
        "qwen3_next",
        "decoder.3.recall.joined",
        {"the convolution is shifted by one: a token does not see itself"},
    ),
    "qwen3_next-error-against-the-undecayed-state": (
        "qwen3_next",
        "decoder.3.recall.joined",
        {"the error of the delta rule is against the state before its decay, not after it"},
    ),
    "qwen3_next-heads-of-values-in-turn": (
        "qwen3_next",
        "decoder.3.recall.joined",
        {"key heads are repeated in turn, not in blocks"},
    ),
    "qwen3_next-padding-in-a-state": ("qwen3_next", "decoder.0.recall.joined", {"padding is written to the state"}),
    "qwen3_next-queries-and-gates-in-halves": (
        "qwen3_next",
        "decoder.1.self.q_normed",
        {"queries and gates are the halves of their projection (it has those of each head by turns)"},
    ),
    "qwen3_next-queries-and-keys-of-any-length": (
        "qwen3_next",
        "decoder.3.recall.joined",
        {"queries and keys are not normalized to length 1"},
    ),
    "siglip-patches-with-channels-last": (
        "siglip",
        "encoder.positions",
        {"the pixels of a patch are flattened with the channels last"},
    ),
    "siglip-resized-by-bilinear": ("siglip", "pixels", {"the picture is resized by the filter bilinear"}),
    "vit-patches-by-column": ("vit", "encoder.positions", {"the patches are taken column by column, not row by row"}),
    "vit-pixels-not-normalized": ("vit", "pixels", {"the pixels are not normalized"}),
}


def judge(name, why=True):
    dump = open_dump(str(REFERENCES / "slips" / f"{name}.npz"))
    families = [one for one in (*STORED, *VARIANTS, *drawn_models()) if name.startswith(f"{one}-")]
    return compare_with_model(open_checkpoint(place_of(max(families, key=len))), dump, Request(why=why))


def first_difference(report):
    return next((row for row in report.rows if row.differs), None)


@pytest.mark.parametrize("name", NAMED)
def test_a_slip_of_a_torch_model_is_named(name):
    report, (site, verdict, causes) = judge(name), NAMED[name]
    row = first_difference(report)
    assert (row.site, row.verdict, {cause.name for cause in row.causes}) == (site, verdict, causes)
    assert not report.same
    if verdict == "named":
        assert max(cause.remaining for cause in row.causes) * 100 <= row.added


@pytest.mark.parametrize("name", DRAWN)
def test_a_slip_of_experts_latents_or_images_is_named(name):
    family, site, causes = DRAWN[name]
    is_wide, tower = family.endswith("-wide"), ":vision" * (family in ("clip", "siglip"))
    checkpoint = open_checkpoint(f"{place_of(family.removesuffix('-wide'))}{tower}")
    is_pictured = checkpoint.config.patches and not is_wide
    report = compare_with_model(
        checkpoint,
        open_dump(str(REFERENCES / "slips" / f"{name}-float32.npz")),
        Request(why=True),
        image=np.asarray(Image.open(REFERENCES / "models" / "vit.png")) if is_pictured else None,
    )
    row = first_difference(report)
    assert (row.site, row.verdict, {cause.name for cause in row.causes}) == (site, "named", causes)


def test_a_slip_below_the_noise_of_its_dtype_is_no_difference():
    report = judge("bert-eps-0.001-bfloat16")
    assert report.same
    assert first_difference(report) is None


def test_rounding_of_what_is_nearly_equal_is_no_difference():
    report = judge("cohere-norms-clean-float32")  # heads of four numbers, layer norms of which cancel
    assert report.same
    assert {row.site for row in report.rows} >= {"decoder.0.self.q_normed", "decoder.0.self.k_normed"}


def test_without_why_the_comparison_ends_at_the_first_stage_that_differs():
    report = judge("llama-interleaved-float32", why=False)
    assert [row.site for row in report.rows if row.differs] == ["decoder.0.self.weights"] == [report.rows[-1].site]
    assert first_difference(report).causes == ()


def test_each_stage_is_judged_by_what_it_adds():
    report = judge("llama-interleaved-float32")
    later = next(row for row in report.rows if row.site == "decoder.0.ffn.output")
    assert later.largest > 0.1  # all of it inherited from the attention before
    assert later.inherited == pytest.approx(later.largest, rel=1e-3)
    assert later.added <= later.noise


def test_the_page_has_the_table_of_confusion():
    page = (ROOT / "attnkit" / "help" / "porting.md").read_text(encoding="utf-8")
    counts = json.loads((REFERENCES / "slips.json").read_text(encoding="utf-8"))
    for slip, by_dtype in counts.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {slip} |")]
        cells = [cell.strip() for cell in row.split("|")[2:4]]
        for cell, dtype in zip(cells, ("float32", "bfloat16"), strict=True):
            outcomes = by_dtype.get(dtype, {})
            total = sum(outcomes.values()) - outcomes.get("no effect", 0)
            assert cell.startswith(f"{outcomes.get('right', 0)} of {total}" if total else "–"), row
            assert ("undecidable" in cell) == ("undecidable" in outcomes), row


def test_no_slip_is_named_wrong_and_nearly_all_are_named_in_float32():
    counts = json.loads((REFERENCES / "slips.json").read_text(encoding="utf-8"))
    totals = {dtype: {} for dtype in ("float32", "bfloat16")}
    for by_dtype in counts.values():
        for dtype, outcomes in by_dtype.items():
            for outcome, number in outcomes.items():
                totals[dtype][outcome] = totals[dtype].get(outcome, 0) + number
    for outcomes in totals.values():
        assert outcomes.keys() <= {"right", "undecidable", "unknown", "no effect"}
    single = totals["float32"]
    assert single["right"] >= 0.95 * sum(number for outcome, number in single.items() if outcome != "no effect")
