"""gpt-oss: experts with bounded gates, sinks in attention, biases, and windows in every other layer."""

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.mixtral import MOST_EXPERTS
from attnkit.checkpoints.weights import Layers, Share, TensorSpec, Weights
from attnkit.model.config import Config
from attnkit.model.experts import ExpertConfig

VARIANT_OF = llama
FIELDS = llama.WINDOWED | {
    "experts": "num_local_experts", "chosen experts": "num_experts_per_tok", "expert width": "intermediate_size",
    "gate bound": "swiglu_limit",
}  # fmt: skip
MIXTURE = f"{llama.LAYER}.mlp"
ALPHA = 1.702  # of the activation, as in quick-GELU


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    if raw.get_float("swiglu_alpha", ALPHA) != ALPHA:
        raise raw.error(f"swiglu_alpha {raw.values['swiglu_alpha']} is not supported (use {ALPHA})")
    packing = raw.get_object("quantization_config")
    packing.get_choice("quant_method", {"mxfp4": ""}, "mxfp4")
    packing.ignore("modules_to_not_convert")  # which the tensors state
    raw.get_choice("hidden_act", {"silu": "silu"}, "silu")  # which names no activation of this family
    chosen = raw.get_int("num_experts_per_tok", 4)
    raw.ignore("initial_context_length")
    raw.expect(experts_per_token=chosen)  # stated twice
    config = llama.read_config(
        raw,
        stored,
        theta=150000.0,
        size=131072,
        head_dim=64,
        eps=raw.get_float("rms_norm_eps", 1e-5),
        activation="quick-gelu",
        ffn_limit=raw.get_float("swiglu_limit", 7.0),
        experts=ExpertConfig(
            count=raw.get_int("num_local_experts", 128, most=MOST_EXPERTS),
            chosen=chosen,
            hidden=raw.get_int("intermediate_size"),
            score="chosen",
        ),
    )
    layers = config.stack("decoder").layers
    kinds = [llama.FULL if number % 2 else llama.SLIDING for number in range(layers)]
    return llama.limit_layers(raw, config, kinds, window=128)


def map_layers(raw: ConfigReader) -> Layers:
    is_biased, count = raw.get_bool("attention_bias", True), raw.get_int("num_local_experts", 128)
    hidden = raw.get_int("intermediate_size")
    layers = llama.map_llama(raw, qkv_bias=is_biased, output_bias=is_biased)
    sinks = {"sinks": TensorSpec((f"{llama.LAYER}.self_attn.sinks",))}

    def spec(name: str, share: Share) -> TensorSpec:
        return TensorSpec((f"{MIXTURE}.experts.{name}",), share=share, stacked=count)

    # the columns of gate and linear part take turns
    shares = {"1": Share(0, 1, 2, groups=hidden), "3": Share(1, 1, 2, groups=hidden), "2": Share()}
    files = {"1": "gate_up_proj", "3": "gate_up_proj", "2": "down_proj"}
    expert = {f"w{digit}": spec(files[digit], share) for digit, share in shares.items()}
    expert |= {f"b{digit}": spec(f"{files[digit]}_bias", share) for digit, share in shares.items()}
    router = {
        "router": TensorSpec((f"{MIXTURE}.router.weight",), transposed=True),
        "router_bias": TensorSpec((f"{MIXTURE}.router.bias",)),
    }
    return {
        **layers,
        "decoder.{n}.self": {**layers["decoder.{n}.self"], **sinks},
        "decoder.{n}.router": router,
        "decoder.{n}.expert": expert,
    }
