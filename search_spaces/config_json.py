"""A model's facts from the `config.json` that is published with its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.errors import MalformedError, UnsupportedError
from search_spaces.model import Indexer, Mla, Model
from search_spaces.quantization_config import Checkpoint, quantization_from_config

_MLA = "multi-head latent attention"
_DSA = "latent attention with a sparse indexer"
_GQA = "grouped-query attention"

_ATTENTION_OF: Mapping[str, str] = {
    "Qwen3MoeForCausalLM": _GQA,
    "Glm4MoeForCausalLM": _GQA,
    "GptOssForCausalLM": _GQA,
    "MixtralForCausalLM": _GQA,
    "DeepseekV3ForCausalLM": _MLA,
    "KimiK25ForConditionalGeneration": _MLA,
    "DeepseekV32ForCausalLM": _DSA,
    "GlmMoeDsaForCausalLM": _DSA,
}

ARCHITECTURES: tuple[str, ...] = tuple(sorted(_ATTENTION_OF))

_DTYPE_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}


def model_from_config(config: Mapping[str, Any], *, name: str, source: str) -> Model:
    """The `Model` that `config` (a parsed `config.json`) describes.

    Multimodal wrappers keep the language model's facts under `text_config`; they win over the top level.
    A checkpoint that names no dtype counts as bfloat16, which is how engines load it.

    Raises UnsupportedError for an architecture that is unknown or has no experts, and MalformedError for
    a field that is missing or not what it should be.
    """
    fields = _Fields(config, name)
    architecture = fields.architecture()
    if architecture not in _ATTENTION_OF:
        raise UnsupportedError(
            f"{name}: architecture {architecture} is not known here. Known: {', '.join(ARCHITECTURES)}"
        )
    attention = _ATTENTION_OF[architecture]
    num_experts = fields.count("n_routed_experts", "num_experts", "num_local_experts", default=0)
    if num_experts == 0:
        raise UnsupportedError(
            f"{name}: {architecture} without routed experts (n_routed_experts, num_experts and "
            "num_local_experts are all missing or 0); only Mixture-of-Experts models can be laid out"
        )
    num_layers = fields.count("num_hidden_layers")
    num_dense_layers = _num_dense_layers(fields, num_layers)
    moe_width = fields.count("moe_intermediate_size", "intermediate_size")
    heads = fields.count("num_attention_heads")
    hidden_size = fields.count("hidden_size")
    mla = _mla(fields) if attention is not _GQA else None
    window = _sliding_layers(fields, num_layers)
    return Model(
        name=name,
        architecture=architecture,
        num_layers=num_layers,
        num_dense_layers=num_dense_layers,
        hidden_size=hidden_size,
        vocab_size=fields.count("vocab_size"),
        num_attention_heads=heads,
        num_kv_heads=fields.count("num_key_value_heads", default=heads),
        head_dim=(
            mla.qk_nope_head_dim + mla.qk_rope_head_dim
            if mla is not None
            else fields.count("head_dim", default=hidden_size // heads)
        ),
        mla=mla,
        indexer=_indexer(fields) if attention is _DSA else None,
        num_experts=num_experts,
        experts_per_token=fields.count("num_experts_per_tok", "experts_per_token"),
        moe_intermediate_size=moe_width,
        shared_intermediate_size=fields.count("n_shared_experts", default=0) * moe_width,
        dense_intermediate_size=fields.count("intermediate_size") if num_dense_layers else 0,
        max_position_embeddings=fields.count("max_position_embeddings"),
        tie_word_embeddings=bool(fields.value("tie_word_embeddings")),
        dtype_bytes=_dtype_bytes(fields),
        quantization=quantization_from_config(
            fields.value("quantization_config"),
            Checkpoint(
                name=name,
                num_layers=num_layers,
                num_dense_layers=num_dense_layers,
                has_shared_experts=fields.count("n_shared_experts", default=0) > 0,
            ),
        ),
        source=source,
        sliding_window=fields.count("sliding_window", default=0) if window else 0,
        num_sliding_layers=window,
    )


class _Fields:
    """Reads typed values, the language model's own first, and says exactly what is missing."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        text = config.get("text_config")
        self._levels = [level for level in (text, config) if isinstance(level, Mapping)]
        self._config = config
        self._name = name

    def architecture(self) -> str:
        named = self._config.get("architectures")
        if not isinstance(named, list) or not named or not isinstance(named[0], str):
            raise MalformedError(
                f"{self._name}: config.json must name its class, "
                f'e.g. "architectures": ["Qwen3MoeForCausalLM"] (got {named!r})'
            )
        return named[0]

    def value(self, *keys: str) -> Any:
        """The first of `keys` that is set and not null, or None."""
        for key in keys:
            for level in self._levels:
                if level.get(key) is not None:
                    return level[key]
        return None

    def count(self, *keys: str, default: int | None = None) -> int:
        """A positive integer, or `default` where the field is absent or null."""
        found = self.value(*keys)
        if found is None:
            if default is None:
                raise MalformedError(
                    f"{self._name}: config.json lacks {' or '.join(keys)}, which {self.architecture()} needs"
                )
            return default
        smallest = 1 if default is None else 0
        if not isinstance(found, int) or isinstance(found, bool) or not smallest <= found <= _LARGEST:
            raise MalformedError(
                f"{self._name}: {keys[0]} must be an integer from {smallest} to {_LARGEST} (got {found!r})"
            )
        return found


_LARGEST = 2**24
"""Above any size of a model there is, and small enough to count through."""


def _num_dense_layers(fields: _Fields, num_layers: int) -> int:
    """Layers with a plain MLP.

    DeepSeek and GLM count the leading ones; Qwen3 lists them and may thin the experts out to every
    n-th layer.
    """
    leading = fields.count("first_k_dense_replace", default=0)
    listed = set(fields.value("mlp_only_layers") or ())
    step = fields.count("decoder_sparse_step", default=1) or 1
    return sum(layer < leading or layer in listed or (layer + 1) % step != 0 for layer in range(num_layers))


def _mla(fields: _Fields) -> Mla:
    return Mla(
        q_lora_rank=fields.count("q_lora_rank", default=0),
        kv_lora_rank=fields.count("kv_lora_rank"),
        qk_rope_head_dim=fields.count("qk_rope_head_dim"),
        qk_nope_head_dim=fields.count("qk_nope_head_dim"),
        v_head_dim=fields.count("v_head_dim"),
    )


def _indexer(fields: _Fields) -> Indexer:
    return Indexer(
        num_heads=fields.count("index_n_heads"),
        head_dim=fields.count("index_head_dim"),
        top_k=fields.count("index_topk"),
    )


def _sliding_layers(fields: _Fields, num_layers: int) -> int:
    kinds = fields.value("layer_types")
    if not isinstance(kinds, list):
        return 0
    return sum(kind == "sliding_attention" for kind in kinds[:num_layers])


def _dtype_bytes(fields: _Fields) -> int:
    dtype = str(fields.value("torch_dtype", "dtype") or "bfloat16")
    if dtype not in _DTYPE_BYTES:
        raise UnsupportedError(
            f"unquantised weights of type {dtype} are not known here. Known: {', '.join(_DTYPE_BYTES)}"
        )
    return _DTYPE_BYTES[dtype]
