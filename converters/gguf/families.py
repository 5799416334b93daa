"""The families of decoders, by what tells them apart, and the sizes that a file gives its own."""

from __future__ import annotations

import math

import numpy as np

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.records import record
from bolt_numba.base.types import F32, Array
from bolt_numba.converters.gguf.container import Gguf, shown

MOST_LAYERS, MOST_SIZE, MOST_POSITIONS = 1 << 12, 1 << 24, 1 << 31
"""Layers, elements of a row, and positions that a decoder has at most."""
EPSILON, BASE = 1e-5, 10000.0
"""Of norms, and of angles, where a file says none."""
SHARPNESS = 1.702
"""By what SiLU multiplies within its exponent, where gates are bounded."""
TURNS = {"beta_fast": 32.0, "beta_slow": 1.0}
"""How often pairs of elements turn in the first context that yarn leaves as they are, and that it slows wholly."""


@record(frozen=True)
class Family:
    """What a decoder does other than llama.

    neighbours: whether rotary pairs are neighbours, as llama's rows are stored, or halves of a head.  centred: norms
    take the mean away first.  before, after: whether there are norms before attention and feed-forward layer, and
    behind them.  parallel: the feed-forward layer reads what attention does.  gated: whether it has gates.  fused:
    these are rows of its first matrix.  gelu: gates by it, not by SiLU.  bound: of gates and of what they let
    through, which is 1 more, where `SHARPNESS` is that of SiLU; 0: none.  second: the norm before the feed-forward
    layer.  summing: whether weights of chosen experts add up to 1.  scaled: embeddings times the root of their size.
    cap, last_cap: of scores and of logits where the file says none.  pattern: of so many layers the last sees all
    keys, the others a window; 0: all see all.  local_base: base of the angles of layers with a window; below 0: as
    in the others, where these are scaled.  unturned: of so many layers the last has no rotary embedding.  large:
    number of layers from which on the embedding's part of each head, not the head's own size, scales scores.
    divided: logits by the file's scale of them, else they are multiplied.
    """

    neighbours: bool = False
    centred: bool = False
    before: bool = True
    after: bool = False
    parallel: bool = False
    gated: bool = True
    fused: bool = False
    gelu: bool = False
    bound: float = 0.0
    second: str = "ffn_norm"
    summing: bool = True
    scaled: bool = False
    cap: float = 0.0
    last_cap: float = 0.0
    pattern: int = 0
    local_base: float = 0.0
    unturned: int = 0
    large: int = MOST_LAYERS + 1
    divided: bool = False


FAMILIES: dict[str, Family] = {
    "llama": Family(neighbours=True),
    "qwen2": Family(),
    "qwen2moe": Family(summing=False),
    "qwen3": Family(),
    "qwen3moe": Family(),
    "gpt-oss": Family(bound=7.0, second="post_attention_norm", pattern=2),
    "granite": Family(neighbours=True, divided=True),
    "granitemoe": Family(neighbours=True, divided=True),
    "olmo2": Family(before=False, after=True, pattern=4, local_base=-1.0),
    "command-r": Family(neighbours=True, centred=True, parallel=True),
    "cohere2": Family(neighbours=True, centred=True, parallel=True, pattern=4, unturned=4),
    "phi2": Family(centred=True, parallel=True, gated=False, gelu=True),
    "falcon": Family(centred=True, parallel=True, gated=False, gelu=True),
    "starcoder2": Family(centred=True, gated=False, gelu=True),
    "phi3": Family(fused=True, pattern=MOST_LAYERS + 1),
    "smollm3": Family(neighbours=True, unturned=4),
    "gemma": Family(gelu=True, scaled=True),
    "gemma2": Family(gelu=True, scaled=True, after=True, cap=50.0, last_cap=30.0, pattern=2, large=46),
    "gemma3": Family(gelu=True, scaled=True, after=True, pattern=6, local_base=10000.0, large=62),
}
"""By the architecture that files name.  Tensors tell of biases, fused queries, keys and values, their norms, experts,
and factors of angles."""


class DecoderSizes:
    """The numbers of a decoder, as the keys of its file give them.

    unsupported: a line for each that has no meaning here.  Raises InvalidModelError for what no decoder has.
    """

    def __init__(self, found: Gguf) -> None:
        self.file, self.values = found.file, found.values
        self.unsupported: list[str] = []
        self.arch = found.text("general.architecture")
        if self.arch not in FAMILIES:
            self.unsupported.append(f"architecture '{self.arch}', wanted one of {', '.join(FAMILIES)}")
            return
        self.family = FAMILIES[self.arch]
        self.layers = self.whole("block_count", most=MOST_LAYERS)
        self.width, self.inner = self.whole("embedding_length"), self.whole("feed_forward_length")
        self.heads = self.whole("attention.head_count")
        self.kv_heads = self.whole("attention.head_count_kv", self.heads)
        self.head = self.whole("attention.key_length", max(1, self.width // self.heads))
        self.turned = self.whole("rope.dimension_count", self.head)
        self.context = self.whole("context_length", most=MOST_POSITIONS)
        self.window = self.whole("attention.sliding_window", 0, most=MOST_POSITIONS)
        self.epsilon = self.real(f"attention.layer_norm_{'' if self.family.centred else 'rms_'}epsilon", EPSILON)
        self.experts = self.whole("expert_count", 0)
        self.used = self.whole("expert_used_count", self.experts)
        self.expert_inner = self.whole("expert_feed_forward_length", self.inner)
        self.shared_inner = self.whole("expert_shared_feed_forward_length", self.inner)
        self.scales = {what: self.real(f"{what}_scale", 0.0) or 1.0 for what in ("embedding", "residual", "logit")}
        self.cap = self.real("attn_logit_softcapping", self.family.cap)
        self.last_cap = self.real("final_logit_softcapping", self.family.last_cap)
        self._want(self.used <= self.experts, "expert_used_count", self.used, f"at most {self.experts}")
        self._want(self.heads % self.kv_heads == 0, "attention.head_count", self.heads, f"{self.kv_heads} times some")
        fits = self.turned % 2 == 0 and self.turned <= self.head
        self._want(fits, "rope.dimension_count", self.turned, f"an even number up to {self.head}")
        self._list_unsupported()

    def _list_unsupported(self) -> None:
        if self.whole("attention.value_length", self.head) != self.head:
            self.unsupported.append("values of another size than keys")
        if self.family.divided and self.values.get(f"{self.arch}.rope.scaling.finetuned", True) is not True:
            self.unsupported.append("granite without rotary embedding")
        if self.values.get(f"{self.arch}.attention.causal", True) is not True:
            self.unsupported.append("attention to later positions")

    def whole(self, key: str, default: int | None = None, most: int = MOST_SIZE) -> int:
        """A whole number above 0, or its default; a row of them where all layers have the same."""
        found = self.values.get(f"{self.arch}.{key}", default)
        if isinstance(found, np.ndarray) and found.size and found.dtype.kind in "iu":
            if (found != found[0]).any():
                self.unsupported.append(f"{key} that differs between layers")
            found = found[0].item()
        fits = type(found) is int and (0 < found <= most or found == default)
        self._want(fits, key, shown(found), f"a whole number from 1 to {most}")
        return int(found)  # type: ignore[arg-type]  # it fits

    def real(self, key: str, default: float) -> float:
        """A finite number that is not negative, or its default."""
        found = self.values.get(f"{self.arch}.{key}", default)
        fits = type(found) in (int, float) and 0 <= found < math.inf
        self._want(fits, key, shown(found), "a finite number that is not negative")
        return float(found)

    def _want(self, holds: bool, key: str, got: object, wanted: str) -> None:
        if not holds:
            raise InvalidModelError(f"{self.file}: key '{self.arch}.{key}': got {got}, wanted {wanted}")

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        given = self.real("attention.scale", 0.0)
        return given or 1 / math.sqrt(self.head if self.layers < self.family.large else self.width / self.heads)

    def window_of(self, layer: int) -> int:
        """Keys that a layer sees, itself included; below 0: all."""
        pattern = self.family.pattern
        return self.window if self.window and pattern and (layer + 1) % pattern else -1

    # --- angles ------------------------------------------------------------------------------------------------------

    def angles(self, local: bool) -> tuple[Array, float]:
        """Angles of a position, f32 [turned / 2], and what their sines are multiplied by.

        local: of layers with a window.
        """
        base = self.real("rope.freq_base", BASE)
        if local and self.family.local_base:
            base = self.real("rope.freq_base_swa", max(self.family.local_base, 0.0) or base)
        self._want(base > 1, "rope.freq_base", base, "more than 1")
        pairs = np.arange(self.turned // 2)
        plain = base ** (-2 * pairs / self.turned)
        kind = self.values.get(f"{self.arch}.rope.scaling.type", "linear")
        if kind not in ("none", "linear", "yarn", "longrope"):
            self.unsupported.append(f"rope scaling '{kind!s:.40}', wanted none, linear, yarn or longrope")
        sines = self.real("rope.scaling.attn_factor", 1.0)
        if (local and self.family.local_base) or kind == "none":
            return plain.astype(F32), 1.0 if local and self.family.local_base else sines
        factor = self.real("rope.scaling.factor", 1.0) or 1.0  # files have 0 for none
        if kind == "yarn":
            ends = [self._pair_of(base, self.real(f"rope.scaling.yarn_{key}", turns)) for key, turns in TURNS.items()]
            low, high = max(0, math.floor(ends[0])), min(self.turned - 1, math.ceil(ends[1]))
            slow = np.clip((pairs - low) / max(0.001, high - low), 0, 1)
            return (plain * (1 - slow + slow / factor)).astype(F32), sines * (1 + 0.1 * math.log(factor))
        return (plain / factor).astype(F32), sines

    @property
    def first_context(self) -> int:
        """Positions that the model was first trained with."""
        return self.whole("rope.scaling.original_context_length", self.context, MOST_POSITIONS)

    def _pair_of(self, base: float, turns: float) -> float:
        """Which pair of elements turns so many times in the first context."""
        at = self.first_context / (2 * math.pi * max(turns, 1e-9))
        return self.turned * math.log(at) / (2 * math.log(base))
