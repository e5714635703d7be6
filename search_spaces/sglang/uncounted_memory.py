"""What a launch says, outside of its layout, that the memory model does not count.

Paths are under `sglang/srt/` of 0.5.23.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.model_defaults import UNQUANTIZED
from search_spaces.sglang.options import option_setting
from search_spaces.sglang.target import Target
from search_spaces.sglang.uncounted_options import ALL, ENVIRONMENT, OPTIONS, POOL, STATIC, Effect
from search_spaces.sglang.versions import EngineVersion
from search_spaces.verdict import Stage

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncounted:
    """words: as they stand in the launch. does: what they do, told after them.

    stages: where memory runs out sooner or later for it.
    most_bytes: what it frees on each GPU at most, but for one layer; None where nothing is known.
    """

    words: str
    does: str
    effect: Effect
    stages: frozenset[Stage]
    most_bytes: float | None = None

    @property
    def may_free(self) -> bool:
        return self.effect is not Effect.ADDS

    @property
    def decides(self) -> bool:
        """Whether it may need so much more that nothing can be said to fit."""
        return self.effect is Effect.EITHER and Stage.WEIGHTS in self.stages


_QUANTISED_LAST = frozenset({"fp8", "mxfp8"})
"""Schemes under which a plain checkpoint's weights are built in its own type, loaded, and quantised only then
(layers/quantization/fp8.py:655 and :1565, :1151 and :2619)."""

_CONVERTED = frozenset({"nvfp4_online", "minimax_m3_nvfp4", "modelopt_fp4"})
"""Schemes that a checkpoint of another one is brought into while it loads (layers/quantization/nvfp4_online.py:60)."""

_BYTES_OF_TYPE = {"half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}


def uncounted_memory(
    others: Mapping[str, Any],
    requested: Layout,
    effective: Layout,
    target: Target,
    version: EngineVersion,
    env: Mapping[str, str],
) -> tuple[Uncounted, ...]:
    """What of a launch the memory model does not count.

    others: the values of options outside of the layout, by the engine's own names.
    """
    return (
        *_of_options(others, target, version),
        *_of_environment(env, target.model),
        *_of_types(requested, effective, target),
        *_symmetric(effective),
    )


def _of_options(others: Mapping[str, Any], target: Target, version: EngineVersion) -> Iterator[Uncounted]:
    for option in OPTIONS:
        if option.name not in others or not option.counts(value := others[option.name]):
            continue
        if not option.concerns(target.model) or (option.gpu_only and target.is_cpu):
            continue
        written = option_setting(option.name, version)
        flag = f"--{option.name.replace('_', '-')}" if written is None else written.names[0]
        shows = option.shows_value and not isinstance(value, bool)
        yield Uncounted(
            words=f"{flag} {value}" if shows else flag,
            does=option.does.format(value),
            effect=option.effect,
            stages=option.stages,
            most_bytes=value * _GIB if option.name == "cpu_offload_gb" else None,
        )


def _of_environment(env: Mapping[str, str], model: Model) -> Iterator[Uncounted]:
    for variable in ENVIRONMENT:
        value = env.get(variable.name)
        if value is None or (variable.counts is bool and _is_off(value)) or not variable.concerns(model):
            continue
        words = f"{variable.name}={value}" if variable.shows_value else variable.name
        yield Uncounted(words=words, does=variable.does, effect=variable.effect, stages=variable.stages)


def _is_off(value: str) -> bool:
    """As the engine reads a switch (environ.py, EnvBool)."""
    return value.lower() in ("", "0", "false", "no", "n")


def _of_types(requested: Layout, effective: Layout, target: Target) -> Iterator[Uncounted]:
    """Weights in another scheme or type than they are stored in."""
    quantization = requested.quantization or effective.quantization
    words = f"--quantization {quantization}"
    if requested.quantization is None:
        words = f"the engine's own choice of {words}"
    stored = target.checkpoint_quantization
    if quantization not in (None, UNQUANTIZED) and stored is None:
        is_last = quantization in _QUANTISED_LAST
        yield Uncounted(
            words=words,
            does="quantises weights" + (" only once all of them are loaded as they are stored" if is_last else ""),
            effect=Effect.FREES,
            stages=POOL if is_last else STATIC,
        )
    elif requested.quantization in _CONVERTED and not (stored or "").startswith("modelopt"):
        yield Uncounted(words=words, does="quantises weights anew", effect=Effect.FREES, stages=STATIC)
    size = _BYTES_OF_TYPE.get(requested.dtype, target.model.dtype_bytes)
    if size != target.model.dtype_bytes:
        is_less = size < target.model.dtype_bytes
        yield Uncounted(
            words=f"--dtype {requested.dtype}",
            does=f"takes {size} bytes for each unquantised weight instead of {target.model.dtype_bytes}",
            effect=Effect.FREES if is_less else Effect.ADDS,
            stages=STATIC,
        )


def _symmetric(effective: Layout) -> Iterator[Uncounted]:
    """Symmetric memory for collectives, 4 GiB of it (arg_groups/memory_hook.py:349)."""
    if effective.enable_symm_mem:
        yield Uncounted(
            words="--enable-symm-mem", does="sets memory for collectives aside", effect=Effect.ADDS, stages=ALL
        )
