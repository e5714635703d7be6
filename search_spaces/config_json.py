"""A model's facts from the `config.json` that is published with its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from search_spaces.architectures.attention import SPARSE_LATENT
from search_spaces.architectures.reading import LARGEST, Checkpoint, Fields
from search_spaces.architectures.table import ARCHITECTURES as _BUILT
from search_spaces.architectures.vision import vision_of
from search_spaces.errors import MalformedError, UnsupportedError
from search_spaces.model import Indexer, Mla, Model
from search_spaces.parts import PLAIN, Block, Component, Projection, Tensor
from search_spaces.quantization_config import has_fp8_kv, method_of, quantization_of, stored_modules

ARCHITECTURES: tuple[str, ...] = tuple(sorted(_BUILT))

_PROMOTING = frozenset({"KimiK25ForConditionalGeneration", "KimiK3ForConditionalGeneration"})
"""Classes whose config takes the text model's quantisation as its own (configs/kimi_k25.py:158, kimi_k3.py:113)."""

_DTYPE_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}


def model_from_config(
    config: Mapping[str, Any], *, name: str, source: str, hf_quant_config: Mapping[str, Any] | None = None
) -> Model:
    """The `Model` that `config` (a parsed `config.json`) describes.

    hf_quant_config: the parsed `hf_quant_config.json` of checkpoints made by ModelOpt; the engine reads it where
        `config.json` has no `quantization_config`.

    Multimodal wrappers keep the language model's facts under `text_config`; they win over the top level.
    A checkpoint that names no dtype counts as bfloat16, which is how engines load it.

    Raises UnsupportedError for an architecture that is unknown, and MalformedError for a field that is missing or
    not what it should be.
    """
    fields = Fields(config, name)
    architecture = fields.architecture()
    if architecture not in _BUILT:
        raise UnsupportedError(
            f"{name}: architecture {architecture} is not known here: its layers, and how they divide over GPUs, have "
            f"to be described first (search_spaces/architectures). Known: {', '.join(ARCHITECTURES)}"
        )
    raw_quantization = fields.value("quantization_config")
    if raw_quantization is None:
        raw_quantization = hf_quant_config
    checkpoint = Checkpoint(
        fields=fields,
        stored=stored_modules(raw_quantization, name),
        dtype_bytes=_dtype_bytes(fields),
    )
    blocks = _blocks(checkpoint, architecture)
    num_draft_layers = fields.value("num_nextn_predict_layers")
    linear_attention = fields.inner("linear_attn_config")
    heads = fields.count("num_attention_heads")
    mla = _mla(fields)
    routed = next((block.experts for block in blocks if block.experts is not None), None)
    windows = [block.kv.window for block in blocks if block.kv is not None and block.kv.window]
    return Model(
        name=name,
        architecture=architecture,
        num_layers=checkpoint.num_layers,
        num_dense_layers=sum(block.experts is None and bool(_width(block, Component.DENSE)) for block in blocks),
        hidden_size=checkpoint.hidden_size,
        vocab_size=fields.count("vocab_size"),
        num_attention_heads=heads,
        num_kv_heads=fields.count("num_key_value_heads", default=heads),
        head_dim=(
            mla.qk_nope_head_dim + mla.qk_rope_head_dim
            if mla is not None
            else fields.count("head_dim", default=checkpoint.hidden_size // heads)
        ),
        mla=mla,
        indexer=_indexer(fields) if architecture in SPARSE_LATENT else None,
        num_experts=routed.count if routed else 0,
        experts_per_token=_experts_per_token(fields) if routed else 0,
        moe_intermediate_size=routed.width if routed else 0,
        shared_intermediate_size=_most(blocks, Component.SHARED),
        dense_intermediate_size=_most(blocks, Component.DENSE),
        max_position_embeddings=fields.count("max_position_embeddings"),
        tie_word_embeddings=_ties(fields),
        dtype_bytes=checkpoint.dtype_bytes,
        quantization=replace(
            quantization_of(blocks),
            method=method_of(raw_quantization),
            is_in_config=bool(config.get("quantization_config") or (architecture in _PROMOTING and raw_quantization)),
            block_size=_block_size(config.get("quantization_config")),
        ),
        source=source,
        sliding_window=max(windows, default=0),
        num_sliding_layers=len(windows),
        blocks=blocks,
        vision=vision_of(fields, checkpoint.hidden_size, checkpoint.dtype_bytes),
        state_dtype_bytes=_DTYPE_BYTES.get(str(fields.value("mamba_ssm_dtype", "mamba_ssm_cache_dtype")), 4),
        v_head_dim=_v_head_dim(fields, mla),
        has_attention_sinks=(
            architecture == "GptOssForCausalLM"
            or fields.flag("add_swa_attention_sink_bias")
            or fields.flag("add_full_attention_sink_bias")
        ),
        context_length=_context_length(fields),
        lm_head_storage=(
            checkpoint.stored.storage("lm_head") if method_of(raw_quantization).startswith("modelopt") else PLAIN
        ),
        num_draft_layers=num_draft_layers if isinstance(num_draft_layers, int) else None,
        draft_layer=(
            _draft_layer(checkpoint, architecture, method_of(raw_quantization))
            if num_draft_layers == 1 and _BUILT[architecture].drafts == "counted"
            else None
        ),
        is_kda=bool(linear_attention is not None and linear_attention.listed("kda_layers")),
        has_fp8_kv=has_fp8_kv(raw_quantization),
    )


def _blocks(checkpoint: Checkpoint, architecture: str) -> tuple[Block, ...]:
    """One block a layer; equal ones are the same object."""
    build = _BUILT[architecture].block
    known: dict[Block, Block] = {}
    built = (build(checkpoint, layer) for layer in range(checkpoint.num_layers))
    return tuple(known.setdefault(block, block) for block in built)


def _draft_layer(checkpoint: Checkpoint, architecture: str, method: str) -> Block:
    """A decoder layer with experts, two norms and a projection of embedding and hidden state into one.

    ModelOpt's NVFP4 leaves it unquantised (models/deepseek_nextn.py:75, glm4_moe_nextn.py:50).
    """
    if method == "modelopt_fp4":
        checkpoint = replace(checkpoint, stored=stored_modules(None, checkpoint.fields.name))
    layer = _BUILT[architecture].block(checkpoint, checkpoint.num_layers - 1)
    hidden = checkpoint.hidden_size
    joined = Projection(
        component=Component.DRAFT, outputs=(hidden,), inputs=2 * hidden, element_bytes=checkpoint.dtype_bytes
    )
    norms = Tensor(component=Component.DRAFT, size=3 * hidden, element_bytes=checkpoint.dtype_bytes)
    return replace(layer, parts=(*layer.parts, joined, norms))


def _most(blocks: tuple[Block, ...], component: Component) -> int:
    return max((_width(block, component) for block in set(blocks)), default=0)


def _width(block: Block, component: Component) -> int:
    """Width of the MLP of `component` in a block, or 0: what its down projection reads."""
    for part in reversed(block.parts):
        if isinstance(part, Projection) and part.component is component:
            return part.inputs
    return 0


def _experts_per_token(fields: Fields) -> int:
    return fields.count(
        "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts", "moe_top_k"
    )


def _mla(fields: Fields) -> Mla | None:
    """Latent attention, where the config has the rank of its keys and values."""
    if not fields.count("kv_lora_rank", default=0):
        return None
    return Mla(
        q_lora_rank=fields.count("q_lora_rank", default=0),
        kv_lora_rank=fields.count("kv_lora_rank"),
        qk_rope_head_dim=fields.count("qk_rope_head_dim"),
        qk_nope_head_dim=fields.count("qk_nope_head_dim"),
        v_head_dim=fields.count("v_head_dim"),
    )


def _indexer(fields: Fields) -> Indexer:
    return Indexer(
        num_heads=fields.count("index_n_heads"),
        head_dim=fields.count("index_head_dim"),
        top_k=fields.count("index_topk"),
        shares_topk="shared" in fields.listed("indexer_types") or bool(fields.value("index_topk_pattern")),
    )


def _v_head_dim(fields: Fields, mla: Mla | None) -> int:
    if mla is not None:
        return mla.v_head_dim
    return fields.count("v_head_dim", "head_dim", default=0) or fields.count("hidden_size") // fields.count(
        "num_attention_heads"
    )


def _context_length(fields: Fields) -> int:
    scaling = fields.value("rope_scaling")
    factor = 1
    if (
        isinstance(scaling, Mapping)
        and "original_max_position_embeddings" not in scaling
        and scaling.get("rope_type") != "llama3"
    ):
        factor = scaling.get("factor", 1)
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor <= LARGEST:
            raise MalformedError(f"{fields.name}: rope_scaling.factor must be a positive number (got {factor!r})")
    return int(factor * fields.count("max_position_embeddings"))


def _block_size(raw: object) -> int:
    block = raw.get("weight_block_size") if isinstance(raw, Mapping) else None
    return block[0] if isinstance(block, list) and block and isinstance(block[0], int) else 0


def _ties(fields: Fields) -> bool:
    """Gemma ties its embeddings where nothing is said (transformers' Gemma4TextConfig)."""
    return fields.flag("tie_word_embeddings", default=fields.architecture().startswith("Gemma"))


def _dtype_bytes(fields: Fields) -> int:
    dtype = str(fields.value("torch_dtype", "dtype") or "bfloat16")
    if dtype not in _DTYPE_BYTES:
        raise UnsupportedError(
            f"unquantised weights of type {dtype} are not known here. Known: {', '.join(_DTYPE_BYTES)}"
        )
    return _DTYPE_BYTES[dtype]
