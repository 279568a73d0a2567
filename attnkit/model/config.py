"""Model configuration: sizes, sub-layers, special tokens, and steps.

A model is a configuration, and parameters by layer name. Layer names, with STACK for encoder or decoder:

STACK.embed        table (N, D), types (M, D); of images w (C*P*P, D), b (D,), cls (D,), registers (R, D)
STACK.conv1 …      w (C*K, D), b (D,); gamma, beta (D,): convolutions of a sound (frame, C), their norms
STACK.feature_norm gamma, beta (E,): a norm of what they give
STACK.position_conv  w (D/groups*K, D), b (D,), g (K,): a convolution whose result is added, in place of positions
STACK.positions    table (P, D), learned positions
STACK.embed_norm   gamma, beta (D,): a norm of the embeddings
STACK.projection   w (E, D), b (D,): embeddings of another width to that of the layers; E is then that of all above
STACK.bias         table (buckets, H), relative positions as a bias on the scores, shared by the layers
STACK.relative     table (2*buckets, D), gamma, beta (D,): disentangled positions, shared by the layers
STACK.N.relative   wq, wk (D, H*K), bq, bk: their projections, unless these are those of self
STACK.N.self       wq (D, H*K), wk, wv (D, G*K), wo (H*K, D), bq, bk, bv, bo; gamma_q, gamma_k, beta_q, beta_k: norms of
                   queries and keys; sinks (H,); wg (D, H*K), bg: a gate of the heads
STACK.N.cross      the same, over the memory
STACK.N.shortconv  of a short convolution in place of self-attention: wb, wc, wx (D, D), the gates before and after it
                   and what it reads, w (K, D), wo (D, D), and the biases bb, bc, bx, b, bo (D,)
STACK.N.recall     of a state in place of keys: wq, wk (D, G*K), wv (D, H*V), wo (H*V, D), and biases; conv_q, conv_k,
                   conv_v (taps, …), conv_bias_q …: a convolution of these; wbeta, wdt (D, H), bbeta, dt_bias, A_log, D
                   (H,): its gates; wg (D, H*V), bg and gamma: the gate and the norm of what is read
STACK.N.ffn        w1 (D, F), b1, w2 (F, D), b2, w3 (D, F), b3
                   latent attention: wq_latent (D, Q), wkv_latent (D, R), gamma_q_latent, gamma_kv_latent, and wk_rotary
                   (D, P) of the key that all heads share; wq reads the latent of queries, wk and wv that of keys
STACK.N.norm1 …    gamma, beta (D,): norms before or after sub-layers, in the order of the sub-layers they belong to
STACK.N.output_norm1 …  the same, of the results of sub-layers before they are added
STACK.N.scale1 …   w (D,), a factor on each feature of the result of a sub-layer before it is added
STACK.N.ffn        of a mixture of experts: router (D, E), router_bias, correction (E,), shared_gate (D, 1)
STACK.N.expert.K, STACK.N.shared  of it, its feed-forward networks: the parameters of ffn above, of other widths
STACK.norm         gamma, beta (D,): a norm after the last layer
pooler             w (D, D), b: tanh(x w + b) of the first token
vector             w (D, E), b: the vector of a text or image in a space that it shares with the other kind; or probe
                   (D,), a query that attends to the states, with vector.cross, vector.norm and vector.ffn as in a stack
connector.norm, connector.projection, connector.ffn   gamma (D,); w (G, E), b (E,); w1 (G, E), w2 (E, E), biases: the
                   patches of a picture, some of which are one row of G features, to rows of a text of width E
head.dense, head.norm, head   w (D, H), b; gamma, beta (H,); w (H, N), b: hidden states to logits; H is D unless given
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeVar

from attnkit.errors import UsageError, with_article
from attnkit.model.formulas.convolution import Convolution, count_windows
from attnkit.model.formulas.dense_attention import LatentConfig
from attnkit.model.formulas.experts import ExpertConfig
from attnkit.model.formulas.norms import QueryKeyNorm
from attnkit.model.formulas.recall import RecallConfig
from attnkit.model.formulas.spectrogram import Spectrogram
from attnkit.model.formulas.time_tokens import TimeTokens
from attnkit.model.parameters import LATENT, LAYERS, MIXERS, TOOLS


@dataclass(frozen=True)
class PositionConfig:
    """How a model encodes positions.

    kind     none, learned, sinusoidal or rotary
    relative what distances add to the scores besides: "" for nothing; t5, a bias; disentangled (see relative.py);
             alibi, a slope of each head times the position of the key
    size     number of positions; 0: no limit
    first    the position of the first token: of learned ones its row of the table, of sinusoidal ones the number
    base     of the wavelengths of sinusoidal ones; layout: paper or halves
    rope     of rotary ones: rope_type, rope_theta and the fields that the type needs, as published; local_rope of
             layers with a window, {} if it is the same
    over_grid    whether rotary ones are the places of patches on the height and width of an image
    rotary_dim   features of a head that are rotated, 0 for all
    interleaved  whether pairs (0, 1), (2, 3), … are rotated instead of halves
    unrotated    numbers of the layers that do not rotate
    rounds_bias  whether alibi is rounded to bfloat16, and scaled as the scores are (Falcon)
    buckets, max_distance, of t5; of disentangled ones half the rows of the table, and the first distance without a row
             of its own, 0 for no shared rows
    terms    of disentangled ones: c2p, scores of queries with distances; p2c, of keys
    shares_projections  whether distances are projected as contents are
    """

    kind: str = "none"
    size: int = 0
    first: int = 0
    base: float = 10000.0
    layout: str = "paper"
    rope: Mapping[str, Any] = field(default_factory=dict)
    local_rope: Mapping[str, Any] = field(default_factory=dict)
    over_grid: bool = False
    rotary_dim: int = 0
    interleaved: bool = False
    unrotated: tuple[int, ...] = ()
    relative: str = ""
    rounds_bias: bool = False
    buckets: int = 32
    max_distance: int = 128
    terms: tuple[str, ...] = ()
    shares_projections: bool = False

    @property
    def longest(self) -> int:
        """The number of tokens of the longest text; 0: no limit."""
        return max(self.size - self.first, 0)


@dataclass(frozen=True)
class PatchConfig:
    """How an image is split into patches, and what tokens it becomes.

    height, width, patch_height, patch_width, channels   sizes of the images that the model was made for
    has_class    whether there is a class token before the patches
    registers    tokens between it and the patches, which have no learned position
    resampling   how learned positions are fitted to another grid: see RESAMPLINGS of patch_embedding.py
    """

    height: int
    width: int
    patch_height: int
    patch_width: int
    channels: int = 3
    has_class: bool = True
    registers: int = 0
    resampling: str = "bicubic"

    @property
    def before(self) -> int:
        """Number of tokens before those of the patches: the class token and the registers."""
        return self.has_class + self.registers

    def tokens(self, height: int, width: int) -> int:
        """Number of tokens of an image."""
        rows, columns = self.grid(height, width)
        return self.before + rows * columns

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the patches of an image.

        >>> PatchConfig(32, 32, 8, 8).grid(16, 24), PatchConfig(32, 32, 8, 4).tokens(16, 12)
        ((2, 3), 7)
        """
        return height // self.patch_height, width // self.patch_width

    def covered(self, image: Any) -> Any:
        """View the part of an image (..., height, width) that has patches.

        It is all of it, except in a model whose own images have a rest on the right or at the bottom without a patch.

        >>> import numpy as np
        >>> PatchConfig(23, 23, 7, 7).covered(np.ones((3, 30, 23))).shape
        (3, 28, 21)
        """
        if not (self.height % self.patch_height or self.width % self.patch_width):
            return image
        rows, columns = self.grid(*image.shape[-2:])
        return image[..., : rows * self.patch_height, : columns * self.patch_width]


class ConvolutionLayer(NamedTuple):
    """A convolution over the frames of a sound.

    inputs, filters  channels before and after it
    size             frames of a window
    options          how the window moves
    activation       after it
    norm             before that: layer (of each frame), channel (of each channel, over all frames), group (of all
                     channels and frames together), or "" for none
    norm_last        whether it is after the activation
    is_scaled        whether its weights have a length at each place of a window, the parameter g
    reads_samples    whether its input is a sound, whose samples have no axis of channels
    """

    inputs: int
    filters: int
    size: int
    options: Convolution
    activation: str = "gelu"
    norm: str = ""
    norm_last: bool = False
    is_scaled: bool = False
    reads_samples: bool = False

    @property
    def window(self) -> int:
        """The numbers that a filter reads at once.

        >>> ConvolutionLayer(8, 8, 3, Convolution(groups=2)).window
        12
        """
        return self.inputs // self.options.groups * self.size

    def frames(self, count: int) -> int:
        """How many frames it makes of some.

        >>> ConvolutionLayer(1, 4, 10, Convolution((5,))).frames(80)
        15
        """
        return count_windows(count, self.size, self.options)


@dataclass(frozen=True)
class ConnectorConfig:
    """How the patches of a picture become rows of the embeddings of a text.

    width      of the text
    grouping   of patches to rows: shuffle (those of a block side by side), mean (of a block), patches (each by itself,
               without the class token), or all (each token)
    block      rows and columns of a block
    layers     after that: norm, projection, ffn
    norm, eps, activation   of these, where those of the tower are others
    """

    width: int
    grouping: str
    layers: tuple[str, ...]
    block: int = 1
    norm: str = "layer"
    eps: float = 1e-5
    activation: str = "gelu"

    def grouped_width(self, width: int) -> int:
        """Features of a row of patches of a width.

        >>> ConnectorConfig(8, "shuffle", (), block=2).grouped_width(3)
        12
        """
        return width * self.block**2 if self.grouping == "shuffle" else width

    def rows(self, patches: PatchConfig, grid: tuple[int, int]) -> int:
        """How many rows a picture becomes.

        >>> ConnectorConfig(8, "mean", (), block=2).rows(PatchConfig(32, 32, 8, 8), (4, 4))
        4
        """
        before = patches.before if self.grouping == "all" else 0
        return before + (grid[0] // self.block) * (grid[1] // self.block)


POSITION_CONVOLUTION = "position_conv"  # the part whose result is added to its input


class SoundConfig(NamedTuple):
    """What a model of sounds reads, and how the text of one begins.

    spectrogram  its numbers; None: the model reads the samples
    positions    of the encoder, after the convolutions; 0: no limit
    convolutions  by part of the encoder, in their order; one of positions is the last
    languages    language -> its token; tasks: transcribe and translate -> their tokens
    no_timestamps  the token after which a text has no times, before those of times; None: there is none
    latest_begin   how many times after 0 may begin a text; None: any
    banned_first   tokens that are never the first of a text
    forced         tokens that a text begins with, if it is not told another language or task
    """

    spectrogram: Spectrogram | None
    positions: int
    convolutions: Mapping[str, ConvolutionLayer]
    languages: Mapping[str, int] = {}
    tasks: Mapping[str, int] = {}
    no_timestamps: int | None = None
    latest_begin: int | None = None
    banned_first: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()

    @property
    def samples(self) -> int:
        """The samples that the encoder reads at once; 0: any number.

        >>> SoundConfig(Spectrogram(), 1500, {}).samples / 16000
        30.0
        """
        return 2 * self.positions * self.spectrogram.hop if self.spectrogram else 0

    def frames_after(self, part: str, frames: int) -> int:
        """Count the frames of the convolution `part`, "" for the last one.

        frames  of the first one, or samples

        >>> one = ConvolutionLayer(1, 4, 10, Convolution((5,)))
        >>> sound = SoundConfig(None, 0, {"conv1": one, "conv2": one})
        >>> [sound.frames_after(part, 80) for part in ("conv1", "")]
        [15, 2]
        """
        for name, cut in self.convolutions.items():
            frames = cut.frames(frames)
            if name == part:
                break
        return frames

    def frames_before(self, part: str, states: int) -> int:
        """The windows of a convolution whose states the encoder counts, or samples.

        part  "" for the samples; the least number that suffices, and of a padded convolution one stride for each state

        >>> one = ConvolutionLayer(1, 4, 10, Convolution((5,)))
        >>> sound = SoundConfig(None, 0, {"conv1": one, "conv2": one})
        >>> [sound.frames_before(part, 2) for part in ("conv2", "conv1", "")]
        [2, 15, 80]
        """
        frames = states
        for name, cut in reversed([*self.convolutions.items()]):
            if name == part:
                break
            if name != POSITION_CONVOLUTION:
                stride = cut.options.stride[0]
                frames = frames * stride if any(cut.options.padding) else (frames - 1) * stride + cut.size
        return frames


@dataclass(frozen=True)
class StackConfig:
    """One stack of layers.

    windows     for each layer the number of keys before a query that it may attend to, and after it unless causal;
                -1 for all; () for no limits
    mixers      for each layer the part that mixes its tokens, of MIXERS in parameters.py, or several that read the same
                input, separated by spaces; () for attention
    first_norm  whether there is a norm before the first sub-layer of all, with norm_first
    activation  of its networks; "": that of the model
    networks    whether layers have a feed-forward network
    """

    layers: int
    heads: int
    hidden: int
    kv_heads: int
    head_dim: int
    vocab: int = 0
    causal: bool = False
    cross: bool = False
    final_norm: bool = False
    windows: tuple[int, ...] = ()
    mixers: tuple[str, ...] = ()
    first_norm: bool = True
    activation: str = ""
    networks: bool = True


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of generation, by id.

    start   first token of a decoder; None: the prompt itself
    eos     tokens that end a text
    banned  tokens that are never generated
    """

    start: int | None = None
    eos: tuple[int, ...] = ()
    pad: int | None = None
    bos: int | None = None
    forced_bos: int | None = None
    forced_eos: int | None = None
    banned: tuple[int, ...] = ()


class AttentionRules(NamedTuple):
    """The rules of one layer of attention, which every way to compute it reads.

    scale     of the scores; None: the default of the score function
    factor    the same as a number
    window    keys before and after a query that it may attend to; -1: no limit
    softcap   c: scores become c tanh(s/c); 0 is off
    is_gated  whether the heads of each token have gates
    norm      of queries and keys: see QueryKeyNorm; None: there is none
    latent    how queries, keys and values come from latent vectors; None: they are projected directly
    clip      queries, keys and values are clipped to -clip … clip; 0 is off
    key_scale  factor on keys
    rotation  rotary, local_rotary of layers with a window and a rotation of their own, or grid_rotary of patches; "":
              no rotation
    rope      of that rotation; rotary_dim: features of a head that it rotates; interleaved: as in PositionConfig
    relative  what distances add to the scores, as in PositionConfig
    """

    stack: str
    heads: int
    kv_heads: int
    head_dim: int
    scale: float | None
    factor: float
    is_cross: bool = False
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    is_gated: bool = False
    norm: QueryKeyNorm | None = None
    latent: LatentConfig | None = None
    clip: float = 0.0
    key_scale: float = 1.0
    rotation: str = ""
    rope: Mapping[str, Any] = {}
    rotary_dim: int = 0
    interleaved: bool = False
    relative: str = ""

    @property
    def value_dim(self) -> int:
        """Features of a value head."""
        return self.latent.value if self.latent else self.head_dim

    @property
    def shared_key(self) -> str:
        """A key for what all layers of the stack with these positions share."""
        return f"{self.stack}.{self.rotation}"


@dataclass(frozen=True)
class Similarity:
    """The logit of a text and an image: scaled, shifted cosine, then function."""

    scale: float
    bias: float = 0.0
    function: str = "softmax"

    @property
    def formula(self) -> str:
        """How the logits are computed, as text."""
        return "s cos(image, text)" + " + b" * (self.bias != 0)

    def logits(self, cosines: Any) -> Any:
        """The logits of cosines.

        >>> Similarity(2.0, -1.0).logits(0.5)
        0.0
        """
        return self.scale * cosines + self.bias


@dataclass(frozen=True)
class Config:
    """One Transformer.

    norm          layer or rms, with eps; before each sub-layer (norm_first), of its result before that is added
                  (norm_output), or both, or else after its residual
    parallel      whether the feed-forward network reads what attention reads, with norm_first
    layer_scale   whether the features of the results of sub-layers have factors, with norm_first
    qk_norm       the scope of a norm of queries and keys, see QueryKeyNorm; "": there is none
    gates_heads   whether each token has a gate for each number of the heads of self-attention, before wo
    clip          bound of queries, keys and values; 0 is off
    key_scale     factor on keys
    score         the score function of queries and keys
    scale         of the scores; None: 1/sqrt(K); divided by the number of the layer, from 1, with scale_by_layer
    latent        of latent attention; None: queries, keys and values are projected directly
    experts       of mixtures of experts in place of feed-forward networks; None: there are none
    ffn_limit     see `limit` of feed_forward; 0 is off
    gate_scale    factor on what the activation of a network reads
    recall        of layers that keep a state, the mixer `recall`; None: there are none
    taps          tokens that a short convolution reads, its own included
    softcap, logit_softcap   c: scores, or logits, become c tanh(s/c); 0 is off
    head_activation  after head.dense; "": as activation
    embed_width   of embeddings that a projection maps to width, before positions are added (projects_first) or after;
                  0: there is none
    head_width    of head.dense and head.norm; 0: as width
    embed_scale   factor on embeddings; residual_scale: on the results of sub-layers before they are added; logit_scale:
                  on hidden states before the head
    factors       part of a layer -> factor on what it reads, and on its result besides residual_scale, with norm_first
    types         number of segment embeddings
    pooler, head, transform   whether it has these layers (transform: head.dense and head.norm)
    head_norm     whether head.norm follows head.dense
    classes       names of the logits of a classifier
    frame_labels  number of the labels of each frame of a sound, of which CTC makes a text; 0: there are none
    task          what the classes are of: sequence, token, or question (the ends of an answer); "": see `pooling`
    pooling       the vector that a classifier of whole texts or images reads: first (the first token's), pooler, mean
                  (of the tokens), late (the same, of what head.dense and head.norm make of each token), last (the last
                  token's), concat (of the last token, the maximum and the mean), or patches (the first token's and the
                  mean of those of the patches)
    vector_width     of the space of the vectors of whole texts or images, of which `vector` makes one; 0: there is none
    connector     of the tower of pictures of a model of texts; None: it is none
    vector_pooling   the state that it reads: cls (the first token's), end (of the first end token), largest (of the
                  token with the largest id), or last (of the last token, padding or not); or probe: see `has_probe`
    text_length   tokens that every text is padded to, which attention does not mask; 0: no padding
    label_function   of the logits: softmax, sigmoid (several labels may hold), or none (numbers)
    """

    family: str
    width: int
    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    norm: str = "layer"
    eps: float = 1e-5
    norm_first: bool = False
    norm_output: bool = False
    parallel: bool = False
    layer_scale: bool = False
    activation: str = "relu"
    positions: PositionConfig = field(default_factory=PositionConfig)
    score: str = "scaled-dot"
    scale: float | None = None
    scale_by_layer: bool = False
    softcap: float = 0.0
    qk_norm: str = ""
    gates_heads: bool = False
    clip: float = 0.0
    key_scale: float = 1.0
    latent: LatentConfig | None = None
    experts: ExpertConfig | None = None
    ffn_limit: float = 0.0
    gate_scale: float = 1.0
    recall: RecallConfig | None = None
    taps: int = 0
    embed_width: int = 0
    projects_first: bool = False
    head_width: int = 0
    embed_scale: float = 1.0
    embed_norm: bool = False
    residual_scale: float = 1.0
    factors: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    types: int = 0
    patches: PatchConfig | None = None
    sound: SoundConfig | None = None
    connector: ConnectorConfig | None = None
    pooler: bool = False
    head: bool = True
    transform: bool = False
    head_norm: bool = True
    head_activation: str = ""
    classes: tuple[str, ...] = ()
    frame_labels: int = 0
    task: str = ""
    pooling: str = "first"
    vector_width: int = 0
    vector_pooling: str = ""
    text_length: int = 0
    label_function: str = "softmax"
    special: SpecialTokens = field(default_factory=SpecialTokens)

    def stack(self, name: str) -> StackConfig:
        """The encoder, the decoder, or the encoder's sizes for `vector`.

        UsageError if the model has none.
        """
        pooled = self.encoder if self.has_probe else None
        stack = {"encoder": self.encoder, "decoder": self.decoder, "vector": pooled}.get(name)
        if stack is None:
            raise UsageError(f"{with_article(self.family)} model has no {name}")
        return stack

    @property
    def stacks(self) -> tuple[str, ...]:
        """The names of its stacks, in the order they run."""
        return tuple(name for name in ("encoder", "decoder") if getattr(self, name) is not None)

    @property
    def has_probe(self) -> bool:
        """Whether a learned query makes the vector of the states: the stack `vector`."""
        return self.vector_pooling == "probe"

    @property
    def pooled_width(self) -> int:
        """The width of what the head reads."""
        return self.width * ({"concat": 3, "patches": 2}.get(self.pooling, 1) if self.classes else 1)

    def activation_of(self, layer: str) -> str:
        """The activation of the network of a layer: that of its stack, or of the model.

        >>> sizes = {"layers": 1, "heads": 1, "hidden": 4, "kv_heads": 1, "head_dim": 2}
        >>> decoder = StackConfig(**sizes, activation="silu")
        >>> config = Config("moonshine", 2, encoder=StackConfig(**sizes), decoder=decoder, activation="gelu")
        >>> config.activation_of("encoder.0.ffn"), config.activation_of("decoder.0.ffn")
        ('gelu', 'silu')
        """
        stack = {"encoder": self.encoder, "decoder": self.decoder}.get(parse_layer_name(layer)[0])
        return getattr(stack, "activation", "") or self.activation

    def network_options(self, layer: str) -> dict[str, Any]:
        """The options of `feed_forward` in a layer, without those that are off."""
        scale = {"scale": self.gate_scale} if self.gate_scale != 1 else {}
        return {"activation": self.activation_of(layer)} | ({"limit": self.ffn_limit} if self.ffn_limit else {}) | scale

    @property
    def memory_width(self) -> int:
        """The width of the encoder's hidden states, which the decoder attends to."""
        return self.width

    def input_width(self, stack: str, layer: int) -> int:
        """Width of the input of a layer of a stack."""
        return self.width

    @cached_property
    def attention_rules(self) -> dict[str, AttentionRules]:
        """The rules of every layer of attention by its name."""
        steps = [step for stack in (*self.stacks, *["vector"] * self.has_probe) for step in self.plan(stack)]
        return {step.layer: find_attention_rules(self, step.layer) for step in steps if step.attends}

    def plan(self, stack: str) -> "list[Step]":
        """All steps of a stack, from ids (or patches) to its last hidden states.

        >>> small = StackConfig(layers=0, heads=1, hidden=4, kv_heads=1, head_dim=2, vocab=5, final_norm=True)
        >>> config = Config("gpt2", 2, decoder=small, positions=PositionConfig("learned"))
        >>> [step.op for step in config.plan("decoder")]
        ['embed', 'posenc', 'layernorm']
        """
        if stack == "connector" and self.connector:
            return connector_steps(self.connector)
        chosen = self.stack(stack)
        if stack == "vector":
            norm = Step("layernorm", "vector.norm", saves_residual=True)
            return [Step("attend", "vector.cross"), norm, Step("ffn", "vector.ffn", "saved")]
        steps = [Step("embed", f"{stack}.embed")] if chosen.vocab or self.patches else []
        is_sound = self.sound is not None and stack == "encoder"
        convolutions = [*self.sound.convolutions] if self.sound and is_sound else []
        if is_sound:
            steps = [Step("conv", f"{stack}.{part}") for part in convolutions if part != POSITION_CONVOLUTION]
            steps += [Step("layernorm", f"{stack}.feature_norm")] * (POSITION_CONVOLUTION in convolutions)
        projection = [Step("linear", f"{stack}.projection")] if self.embed_width else []
        if self.projects_first:
            steps += projection
        if POSITION_CONVOLUTION in convolutions:
            steps.append(Step("conv", f"{stack}.{POSITION_CONVOLUTION}", "input"))
        if self.positions.kind in ("learned", "sinusoidal"):
            steps.append(Step("posenc", f"{stack}.positions"))
        if self.embed_norm:
            steps.append(Step("layernorm", f"{stack}.embed_norm"))
        if not self.projects_first:
            steps += projection
        for number in range(chosen.layers):
            steps += layer_steps(self, stack, number)
        return [*steps, Step("layernorm", f"{stack}.norm")] if chosen.final_norm else steps

    def layer_names(self) -> list[str]:
        """Names of all layers that may have parameters, in the order of a forward pass."""
        names = []
        for stack in self.stacks:
            layers = [name for step in self.plan(stack) for name in self.with_experts(step.layer)]
            names += _with_relative_positions(self.positions, stack, layers)
        transform = ["head.dense", *["head.norm"] * self.head_norm] if self.transform else []
        names += [step.layer for step in self.plan("connector")] if self.connector else []
        names += ["vector"] * bool(self.vector_width)
        names += [step.layer for step in self.plan("vector")] if self.has_probe else []
        return names + ["pooler"] * self.pooler + transform + ["head"] * self.head

    @property
    def time_tokens(self) -> TimeTokens | None:
        """The tokens of times in the text of a sound; None: there are none."""
        sound, eos = self.sound, self.special.eos
        first = None if sound is None or sound.no_timestamps is None else sound.no_timestamps + 1
        if sound is None or first is None or not eos or first >= self.stack("decoder").vocab:
            return None
        return TimeTokens(first, eos[0], sound.latest_begin)

    def mixture(self, layer: str) -> ExpertConfig | None:
        """The experts of a layer; None if it is no mixture of experts."""
        _, number, part = parse_layer_name(layer)
        is_mixture = part == "ffn" and self.experts is not None and number not in self.experts.dense
        return self.experts if is_mixture else None

    def with_experts(self, layer: str) -> list[str]:
        """A layer, and the networks of its experts."""
        experts = self.mixture(layer)
        if experts is None:
            return [layer]
        name = layer.removesuffix(".ffn")
        numbered = [f"{name}.expert.{number}" for number in range(experts.count)]
        return [layer, *numbered, *[f"{name}.shared"] * bool(experts.shared)]

    def convolution(self, layer: str) -> ConvolutionLayer:
        """The convolution of a layer; UsageError if it is none."""
        _, _, part = parse_layer_name(layer)
        if self.sound is None or part not in self.sound.convolutions:
            raise UsageError(f"{layer} is no convolution of {with_article(self.family)} model", "--layer")
        return self.sound.convolutions[part]

    def position_count(self, stack: str) -> int:
        """The number of positions of a stack; 0: no limit."""
        return self.sound.positions if self.sound and stack == "encoder" else self.positions.longest

    def parameter_shape(self, layer: str, name: str) -> tuple[int, ...]:
        """Shape of a parameter of a layer.

        >>> small = StackConfig(layers=1, heads=2, hidden=8, kv_heads=1, head_dim=3, vocab=9)
        >>> Config("llama", 4, decoder=small).parameter_shape("decoder.0.self", "wk")
        (4, 3)
        """
        stack_name, _, part = parse_layer_name(layer)
        patches, positions = self.patches, self.positions
        cut = self.sound.convolutions.get(part) if self.sound else None
        if not stack_name:
            return _head_shape(self, part, name)
        if self.connector and stack_name == "connector":
            return _connector_shape(self.connector, self.width, part, name)
        stack = self.stack(stack_name)
        sizes = {
            "model": self.result_width(layer) if part in EMBEDDING or cut else self.width,
            "heads": stack.heads * stack.head_dim,
            "key heads": stack.kv_heads * stack.head_dim,
            "hidden": self._hidden_width(stack, part),
            "expert": self.experts.count if self.experts else 0,
            "one": 1,
            "vocab": stack.vocab,
            "segment": self.types,
            "register": patches.registers if patches else 0,
            "pixel": patches.channels * patches.patch_height * patches.patch_width if patches else 0,
            "embedding": self.embed_width,
            "position": self.position_count(stack_name) + positions.first,
            "window": cut.window if cut else 0,
            "place": cut.size if cut else self.taps,
            "channel": self.width,
            "bucket": positions.buckets,
            "distance": 2 * positions.buckets,
            "head": stack.heads,
            "query norm": stack.head_dim * (1 if self.qk_norm == "head" else stack.heads),
            "key norm": stack.head_dim * (1 if self.qk_norm == "head" else stack.kv_heads),
        }
        if self.recall and part == "recall":
            sizes |= self.recall.sizes
        if self.latent and part == "self":
            sizes |= {
                "query latent": self.latent.query_rank or self.width,
                "latent": self.latent.rank,
                "content heads": stack.heads * self.latent.content,
                "value heads": stack.heads * self.latent.value,
                "rotary": self.latent.rotary,
            }
            return tuple(sizes[axis] for axis in LATENT.get(name, LAYERS[part].get(name, ())))
        return tuple(sizes[axis] for axis in LAYERS[part][name])

    def _hidden_width(self, stack: StackConfig, part: str) -> int:
        widths = {"expert": self.experts.hidden, "shared": self.experts.shared} if self.experts else {}
        return widths.get(part, stack.hidden)

    def result_width(self, layer: str) -> int:
        """Width of what the step of a layer computes, without its residual."""
        if self.connector and layer.startswith("connector."):
            own = layer in ("connector.group", "connector.norm")
            return self.connector.grouped_width(self.width) if own else self.connector.width
        narrow = EMBEDDING[:2] if self.projects_first else EMBEDDING
        part = parse_layer_name(layer)[2]
        if self.sound and part in self.sound.convolutions:
            return self.sound.convolutions[part].filters
        return self.embed_width if self.embed_width and part in narrow else self.width

    def fixes_shapes(self, layer: str) -> bool:
        """Whether products have fixed shapes, so that other texts change no bits.

        Those of an encoder of text do, and of its head; a decoder computes one text at a time, as fast as it can.
        """
        is_shared = self.encoder is None or self.patches is not None or self.sound is not None
        return not is_shared and (self.decoder is None or parse_layer_name(layer)[0] == "encoder")

    @property
    def is_recurrent(self) -> bool:
        """Whether all layers are recurrent, without keys and values of their tokens."""
        return False

    def mixers(self, stack: str, number: int) -> list[str]:
        """The parts of a layer that mix its tokens, keys of MIXERS.

        >>> small = StackConfig(2, 2, 8, 1, 4, mixers=("shortconv", "recall self"))
        >>> [Config("lfm2", 8, decoder=small).mixers("decoder", number) for number in range(2)]
        [['shortconv'], ['recall', 'self']]
        """
        mixers = self.stack(stack).mixers
        return mixers[number].split() if mixers else ["self"]

    @cached_property
    def states(self) -> dict[str, dict[str, dict[str, int]]]:
        """What layers of the decoder keep of earlier tokens beside keys and values.

        The sizes of the axes of each part, without a batch, by the layer and the name of the part: see STATES.

        >>> small = StackConfig(2, 2, 8, 1, 4, mixers=("shortconv", "self"))
        >>> Config("lfm2", 8, decoder=small, taps=3).states
        {'decoder.0.shortconv': {'window': {'place': 2, 'model': 8}}}
        """
        layers = range(self.decoder.layers) if self.decoder else range(0)
        parts = [f"decoder.{number}.{part}" for number in layers for part in self.mixers("decoder", number)]
        return {layer: STATES[part](self) for layer in parts if (part := parse_layer_name(layer)[2]) in STATES}

    @property
    def carries_states(self) -> bool:
        """Whether layers keep states of all earlier tokens, which cannot be cut to fewer."""
        return bool(self.states)

    @property
    def source_states(self) -> "SourceStates | None":
        """The last states of the encoder that a decoder begins with, or None."""
        return None

    def needs_memory(self, step: "Step") -> bool:
        """Whether a step reads the memory, or begins with the states of its encoder.

        >>> Config("t5", 2).needs_memory(Step("attend", "decoder.0.cross"))
        True
        """
        return parse_layer_name(step.layer)[2] == "cross"

    def head_states(self, stack: str) -> dict[str, str]:
        """The sites of the states of a stack that its head can read, by layer.

        `embedding` is the state before layer 0.

        >>> small = StackConfig(layers=1, heads=1, hidden=4, kv_heads=1, head_dim=2, vocab=5, final_norm=True)
        >>> Config("gpt2", 2, decoder=small, norm_first=True).head_states("decoder")
        {'embedding': 'decoder.embed', 'decoder.0': 'decoder.0.ffn.residual'}
        """
        names = {}
        for step in self.plan(stack):
            number = parse_layer_name(step.layer)[1]
            if step.layer != f"{stack}.norm":
                names["embedding" if number is None else f"{stack}.{number}"] = step.trace_name
        return names

    @property
    def pools_late(self) -> bool:
        """Whether a head pools what its dense layer makes of each token."""
        return self.is_head_pooled and self.pooling == "late"

    @property
    def is_head_pooled(self) -> bool:
        """Whether the head reads one vector of the whole text or image, not each token."""
        return bool(self.classes) and self.task in ("", "sequence")


class SourceStates(NamedTuple):
    """The last states of an encoder: their layers, width and parts.

    A state has one part, the hidden state, and a second in an LSTM, its cell.
    """

    layers: int
    width: int
    parts: int


class Step(NamedTuple):
    """One operation of a forward pass, with the parameters of one layer.

    op              a row of GROUPS: embed, conv, posenc, layernorm, linear, attend, recall, shortconv, ffn or rnn
    adds_residual   "input": its input is added to its result; "saved": the input that a step before it saved; "": no;
                    "concat": its input is put beside its result, along the last axis
    saves_residual  whether its input is saved for the residual after a later step
    reads_saved     whether it reads what a step before it saved, and the result before it is saved in its place
    scale           factor on its result before a residual is added or the next step reads it
    result          the site of its result in the graph; "": the last of its nodes
    """

    op: str
    layer: str
    adds_residual: str = ""
    saves_residual: bool = False
    reads_saved: bool = False
    scale: float = 1.0
    result: str = ""

    @property
    def trace_name(self) -> str:
        """The name of its result in a trace, which may be a residual sum."""
        sums = {"concat": f"{self.layer}.concat", "": self.result or self.layer}
        return sums.get(self.adds_residual, f"{self.layer}.residual")

    @property
    def attends(self) -> bool:
        """Whether it reads keys and values of other tokens, by the rules of its layer."""
        return self.op == "attend"

    @property
    def changes_saved(self) -> bool:
        """Whether the input of this step is saved for later residuals."""
        return self.saves_residual or self.reads_saved


Value = TypeVar("Value")


def walk_steps(
    steps: Iterable[Step],
    x: Value,
    apply: Callable[[Step, Value], Value],
    add: Callable[[Step, Value, Value], Value],
    saved: Value | None = None,
) -> Value:
    """Take a value through steps, with their residuals.

    The value is an array, or anything that a reader of a plan knows of one.

    apply  (step, what it reads) -> its result
    add    (step, its result, its residual) -> the sum of both, or both side by side
    saved  what a step before these saved for the residual of one of them [x]

    >>> steps = [Step("layernorm", "norm", saves_residual=True), Step("ffn", "ffn", "saved")]
    >>> walk_steps(steps, "x", lambda step, x: f"{step.layer}({x})", lambda step, y, x: f"{y} + {x}")
    'ffn(norm(x)) + x'
    """
    saved = x if saved is None else saved
    for step in steps:
        if step.reads_saved:
            x, saved = saved, x
        saved = x if step.saves_residual else saved
        if step.adds_residual:
            x = add(step, apply(step, x), saved if step.adds_residual == "saved" else x)
        else:
            x = apply(step, x)
    return x


def find_attention_rules(config: Config, layer: str) -> AttentionRules:
    """The rules of a layer of attention: heads, scale, window and positions.

    >>> small = StackConfig(layers=2, heads=2, hidden=8, kv_heads=1, head_dim=4, causal=True, windows=(-1, 5))
    >>> rules = find_attention_rules(Config("mistral", 8, decoder=small), "decoder.1.self")
    >>> rules.factor, rules.window
    (0.5, (5, -1))
    """
    name, number, part = parse_layer_name(layer)
    stack, positions, at = config.stack(name), config.positions, number or 0
    factor = config.scale
    if factor is None:
        factor = 1 / math.sqrt(max(stack.head_dim, 1)) if config.score == "scaled-dot" else 1.0
    factor = factor / (at + 1) if config.scale_by_layer else factor
    scale = factor if config.scale_by_layer else config.scale
    common = AttentionRules(name, stack.heads, stack.kv_heads, stack.head_dim, scale, factor, part == "cross")
    if common.is_cross:
        return common
    window = stack.windows[at] if stack.windows else -1
    is_rotated = positions.kind == "rotary" and at not in positions.unrotated
    is_local = is_rotated and window >= 0 and bool(positions.local_rope)
    return common._replace(
        causal=stack.causal,
        window=(window, -1 if stack.causal else window) if window >= 0 else (-1, -1),
        softcap=config.softcap,
        is_gated=config.gates_heads,
        norm=QueryKeyNorm(config.norm, config.eps, config.qk_norm) if config.qk_norm else None,
        latent=config.latent,
        clip=config.clip,
        key_scale=config.key_scale,
        rotation=f"{'grid_' * positions.over_grid}{'local_' * is_local}rotary" if is_rotated else "",
        rope=positions.local_rope if is_local else positions.rope,
        rotary_dim=positions.rotary_dim or stack.head_dim,
        interleaved=positions.interleaved,
        relative=positions.relative,
    )


# a mixer -> the parts of the state that its layer carries, as `Config.states` has them
STATES: Mapping[str, Callable[[Config], dict[str, dict[str, int]]]] = {
    "recall": lambda config: config.recall.states if config.recall else {},
    "shortconv": lambda config: {"window": {"place": config.taps - 1, "model": config.width}},
}


def connector_steps(connector: ConnectorConfig) -> list[Step]:
    """Steps from the last states of a tower of pictures to rows of a text.

    >>> [step.layer for step in connector_steps(ConnectorConfig(8, "shuffle", ("projection",), block=2))]
    ['connector.group', 'connector.projection']
    """
    return [Step("group", "connector.group"), *(Step(TOOLS[name], f"connector.{name}") for name in connector.layers)]


def layer_steps(config: Config, stack: str, number: int) -> list[Step]:
    """Steps of one layer: every sub-layer with its residual and its norm.

    >>> small = StackConfig(layers=1, heads=1, hidden=4, kv_heads=1, head_dim=2)
    >>> [step.layer for step in layer_steps(Config("bert", 2, encoder=small), "encoder", 0)]
    ['encoder.0.self', 'encoder.0.norm1', 'encoder.0.ffn', 'encoder.0.norm2']
    """
    mixers, sizes = config.mixers(stack, number), config.stack(stack)
    parts = [*mixers, *["cross"] * sizes.cross, *["ffn"] * sizes.networks]
    name, steps = f"{stack}.{number}", list[Step]()
    for order, part in enumerate(parts, start=1):
        is_branch = order > 1 and (config.parallel or part in mixers)
        before, after = config.factors.get(part, (1.0, 1.0))
        norm = Step(
            "layernorm", f"{name}.norm{order}", saves_residual=not is_branch, reads_saved=is_branch, scale=before
        )
        work = Step(MIXERS.get(part, TOOLS[part]), f"{name}.{part}")
        has_norm = config.norm_first and not (number == 0 and order == 1 and not config.stack(stack).first_norm)
        if config.norm_output:
            result = Step("layernorm", f"{name}.output_norm{order}", "saved", scale=config.residual_scale)
            steps += [norm, work, result] if has_norm else [work._replace(saves_residual=True), result]
            continue
        if config.layer_scale:
            steps += [norm, work, Step("linear", f"{name}.scale{order}", "saved", scale=config.residual_scale)]
            continue
        work = work._replace(adds_residual="saved" if has_norm else "input", scale=config.residual_scale * after)
        steps += [norm] * has_norm + [work] if config.norm_first else [work, norm._replace(saves_residual=False)]
    return steps


@cache
def parse_layer_name(layer: str) -> tuple[str, int | None, str]:
    """Split a layer name into stack, number and part; "" and None for none.

    The number of an expert is left out.

    >>> parse_layer_name("decoder.3.cross"), parse_layer_name("encoder.norm"), parse_layer_name("head.dense")
    (('decoder', 3, 'cross'), ('encoder', None, 'norm'), ('', None, 'head.dense'))
    """
    match = re.fullmatch(r"(encoder|decoder|vector|connector)\.(?:([0-9]+)\.)?(\w+)(?:\.[0-9]+)?", layer)
    if not match:
        return "", None, layer
    return match[1], None if match[2] is None else int(match[2]), match[3]


EMBEDDING = ("embed", "feature_norm", "positions", "embed_norm")  # layers before a projection


def _with_relative_positions(positions: PositionConfig, stack: str, layers: list[str]) -> list[str]:
    """Insert the layers that hold the relative positions of a stack."""
    if not positions.relative:
        return layers
    first = next((at for at, layer in enumerate(layers) if parse_layer_name(layer)[1] == 0), len(layers))
    if positions.relative == "t5":
        return [*layers[:first], f"{stack}.bias", *layers[first:]]
    names = [*layers[:first], f"{stack}.relative"]
    for layer in layers[first:]:
        _, number, part = parse_layer_name(layer)
        names += [f"{stack}.{number}.relative"] * (part == "self" and not positions.shares_projections)
        names.append(layer)
    return names


def _connector_shape(connector: ConnectorConfig, width: int, part: str, name: str) -> tuple[int, ...]:
    """Shape of a parameter of a connector, after a tower of some width."""
    inner, outer = connector.grouped_width(width), connector.width
    if part == "norm":
        return (inner,)
    if name.startswith("b"):
        return (outer,)
    return (outer, outer) if name == "w2" else (inner, outer)


def _head_shape(config: Config, part: str, name: str) -> tuple[int, ...]:
    """Shape of a parameter of the pooler or of a layer of the head."""
    width = config.width
    inner = (config.head_width or width) if config.transform else config.pooled_width
    words = len(config.classes) or config.frame_labels or config.stack(config.stacks[-1]).vocab
    rows, out = {"pooler": (width, width), "vector": (width, config.vector_width), "head": (inner, words)}.get(
        part, (width, inner)
    )
    return {"w": (rows, out), "b": (out,), "gamma": (out,), "beta": (out,), "probe": (width,)}[name]
