"""Models that carry states, beside transformers: python tests/benchmarks/states.py [FAMILY…]

For each a random model of some 30 million parameters: seconds to read a prompt of 256 tokens, milliseconds of a token
after it (the median of three runs taken in turn, on one core), the largest difference of their logits, and the bytes
of the cache after 1k, 8k and 64k tokens, of which the states are the same.
"""

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
import statistics
import sys
import tempfile
import time
import warnings

import numpy as np
import torch
import transformers

from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.inputs import layers
from attnkit.interpret import cost

PROMPT, TOKENS, RUNS = 256, 60, 3
MODELS = {  # the class of a family, and what differs from the defaults of its configuration
    "lfm2": ("Lfm2ForCausalLM", {
        "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 2048, "block_multiple_of": 64,
        "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4,
        "layer_types": ["conv", "conv", "full_attention"] * 4,
    }),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", {
        "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128, "linear_num_key_heads": 4,
        "linear_num_value_heads": 8, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    }),
    "mamba2": ("Mamba2ForCausalLM", {
        "vocab_size": 8192, "hidden_size": 512, "num_hidden_layers": 12, "num_heads": 16, "head_dim": 64,
        "state_size": 64, "n_groups": 1,
    }),
    "granitemoehybrid": ("GraniteMoeHybridForCausalLM", {
        "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1024, "shared_intermediate_size": 1024,
        "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "num_local_experts": 0,
        "mamba_n_heads": 16, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_n_groups": 1,
        "layer_types": ["mamba", "mamba", "mamba", "attention"] * 2,
    }),
    "falcon_h1": ("FalconH1ForCausalLM", {
        "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "mamba_d_ssm": 768, "mamba_n_heads": 12,
        "mamba_d_head": 64, "mamba_d_state": 64, "mamba_n_groups": 1,
    }),
}  # fmt: skip


def time_attnkit(core: model.Model, ids: np.ndarray) -> tuple[float, float, np.ndarray]:
    decoder, start = model.CachedDecoder(core), time.perf_counter()
    decoder(ids[:, :PROMPT])
    read = time.perf_counter()
    for token in ids[0, PROMPT:]:
        logits = decoder(np.array([[token]]))
    return read - start, (time.perf_counter() - read) / TOKENS, logits


def time_transformers(peer: torch.nn.Module, ids: np.ndarray) -> tuple[float, float, np.ndarray]:
    start = time.perf_counter()
    with torch.no_grad():
        output = peer(torch.tensor(ids[:, :PROMPT]), use_cache=True)
        name = "past_key_values" if "past_key_values" in output else "cache_params"
        read = time.perf_counter()
        for token in ids[0, PROMPT:]:
            output = peer(torch.tensor([[token]]), use_cache=True, **{name: output[name]})
    return read - start, (time.perf_counter() - read) / TOKENS, output.logits[:, -1].numpy()


def measure(family: str) -> None:
    name, changes = MODELS[family]
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    peer = kind(kind.config_class(**changes)).eval()
    ids = np.random.default_rng(0).integers(3, peer.config.vocab_size, (1, PROMPT + TOKENS))
    with tempfile.TemporaryDirectory() as folder:
        peer.save_pretrained(folder)
        checkpoint = open_checkpoint(folder)
        core = layers.core_model(checkpoint)
        runs = [(time_attnkit(core, ids), time_transformers(peer, ids)) for _ in range(RUNS)]
        shapes = cost.count_model(checkpoint)
    for at, side in enumerate(("attnkit", "transformers")):
        prompt, token = (statistics.median(run[at][place] for run in runs) for place in (0, 1))
        print(f"{family:16} {side:12} prompt {prompt:6.3f} s, token {1000 * token:6.2f} ms")
    ours, theirs = (runs[-1][at][2] for at in (0, 1))
    print(f"{family:16} logits differ by {np.abs(ours - theirs).max() / np.abs(theirs).max():.1e} of the largest")
    held = [4 * cost.count_cache(shapes, tokens) for tokens in (1 << 10, 1 << 13, 1 << 16)]
    print(f"{family:16} cache {held} bytes, states {4 * cost.count_states(shapes.config)} of them")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for chosen in sys.argv[1:] or MODELS:
        measure(chosen)
