"""The config.json of every family as versions of transformers write it in full, frozen.

    python tests/references/make_configs.py

in an environment with transformers 4.40.2, then 4.56.2, then 5.23.0 (no torch is needed). Each run adds to configs.json
what `to_dict()` of the version gives for the usual configuration of each family that the version knows, one in a line.
"""

import json
import os
import pathlib

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import transformers

PATH = pathlib.Path(__file__).parent / "configs.json"
FAMILIES = (
    "albert bamba bart bert bloom camembert clip clip_text_model clip_vision_model cohere cohere2 deberta-v2 "
    "deepseek_v2 deepseek_v3 dinov2 dinov2_with_registers dinov3_vit distilbert electra eurobert falcon falcon_h1 "
    "gemma gemma2 gemma3 gemma3_text gpt2 gpt_neo gpt_neox gpt_oss gptj granite granitemoehybrid gte hubert "
    "idefics3 jina_embeddings_v3 lfm2 lfm2_moe llama llava m2m_100 mamba2 marian mbart mistral mixtral modernbert "
    "moonshine mpnet mt5 nomic_bert olmo olmo2 olmo3 olmoe openai-gpt opt phi phi3 qwen2 qwen2_moe qwen3 qwen3_5 "
    "qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next roberta siglip siglip_text_model "
    "siglip_vision_model smollm3 smolvlm stablelm t5 vit wav2vec2 whisper xlm-roberta xlm-roberta"
)


def main() -> None:
    table = json.loads(PATH.read_text()) if PATH.exists() else {}
    for family in FAMILIES.split():
        try:
            values = transformers.AutoConfig.for_model(family).to_dict()
        except ValueError:  # a family that came later
            continue
        table[f"{family} {transformers.__version__}"] = json.loads(json.dumps(values, default=str))
    lines = (f"{json.dumps(name)}: {json.dumps(table[name])}" for name in sorted(table))
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
