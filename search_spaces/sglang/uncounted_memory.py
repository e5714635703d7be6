"""What a launch says, outside of its layout, that the memory model does not count.

Paths are under `sglang/srt/` of 0.5.23.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from search_spaces.layout import Layout
from search_spaces.parts import Component
from search_spaces.sglang.model_defaults import UNQUANTIZED
from search_spaces.sglang.options import option_setting
from search_spaces.sglang.target import Target
from search_spaces.sglang.uncounted import (
    ALL,
    EVERY,
    LAYERS,
    POOL,
    ROUTED,
    STATIC,
    Effect,
    Part,
    Situation,
    Uncounted,
    UncountedOption,
)
from search_spaces.sglang.uncounted_cache_options import CACHE_OPTIONS
from search_spaces.sglang.uncounted_environment import ENVIRONMENT
from search_spaces.sglang.uncounted_weight_options import WEIGHT_OPTIONS
from search_spaces.sglang.versions import EngineVersion

OPTIONS = (*WEIGHT_OPTIONS, *CACHE_OPTIONS)

_GIB = 2**30

_QUANTISED_LAST = frozenset({"fp8", "mxfp8"})
"""Schemes under which a plain checkpoint's weights are built in its own type, loaded, and quantised only then
(layers/quantization/fp8.py:655 and :1565, :1151 and :2619)."""

_EIGHT_BITS = _QUANTISED_LAST | {"w8a8_int8", "w8a8_fp8", "modelopt_fp8", "auto-round-int8"}

_CONVERTED = frozenset({"nvfp4_online", "minimax_m3_nvfp4", "modelopt_fp4"})
"""Schemes that a checkpoint of another one is brought into while it loads (layers/quantization/nvfp4_online.py:60)."""

_BYTES_OF_TYPE = {"half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}

_MATRICES = EVERY - {Component.ROUTER, Component.OTHER}
"""Weights of the model's own type wherever the checkpoint is not quantised."""


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
    launch = Situation(asked=requested, run=effective, others=others, env=env, target=target, version=version)
    return (*_of_options(launch), *_of_environment(launch), *_of_types(launch), *_symmetric(effective))


def _of_options(launch: Situation) -> Iterator[Uncounted]:
    for option in OPTIONS:
        if option.name not in launch.others or not option.counts(value := launch.others[option.name]):
            continue
        if (option.gpu_only and launch.target.is_cpu) or not option.concerns(launch):
            continue
        written = option_setting(option.name, launch.version)
        flag = f"--{option.name.replace('_', '-')}" if written is None else written.names[0]
        shows = option.shows_value and not isinstance(value, bool)
        yield _told(
            option,
            launch,
            words=f"{flag} {value}" if shows else flag,
            does=option.does.format(value),
            most_bytes=value * _GIB if option.name == "cpu_offload_gb" else None,
        )


def _of_environment(launch: Situation) -> Iterator[Uncounted]:
    for variable in ENVIRONMENT:
        value = launch.env.get(variable.name)
        if value is None or (variable.counts is bool and _is_off(value)) or not variable.concerns(launch):
            continue
        words = f"{variable.name}={value}" if variable.shows_value else variable.name
        yield _told(variable, launch, words=words, does=variable.does)


def _told(
    option: UncountedOption, launch: Situation, *, words: str, does: str, most_bytes: float | None = None
) -> Uncounted:
    return Uncounted(
        words=words,
        does=does,
        effect=option.effect,
        stages=option.stages,
        part=option.part,
        components=option.components,
        most_share=option.most_share(launch),
        most_bytes=most_bytes,
        raises_fraction_to=_fraction(option, launch),
        decides=option.decides,
        changes_times=option.changes_times,
    )


def _fraction(option: UncountedOption, launch: Situation) -> float:
    """A static fraction that is asked for stays as it is."""
    if launch.asked.mem_fraction_static is not None:
        return launch.asked.mem_fraction_static
    return option.raises_fraction_to(launch)


def _is_off(value: str) -> bool:
    """As the engine reads a switch (environ.py, EnvBool)."""
    return value.lower() in ("", "0", "false", "no", "n")


def _of_types(launch: Situation) -> Iterator[Uncounted]:
    """Weights in another scheme or type than they are stored in."""
    requested, target = launch.asked, launch.target
    quantization = requested.quantization or launch.run.quantization
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
            components=LAYERS,
            most_share=1 / 2 if quantization in _EIGHT_BITS else 7 / 8,
            changes_times=requested.quantization is not None,
        )
    elif requested.quantization in _CONVERTED and not (stored or "").startswith("modelopt"):
        yield Uncounted(
            words=words,
            does="quantises weights anew",
            effect=Effect.FREES,
            stages=STATIC,
            components=ROUTED,
            most_share=1 / 2,
            changes_times=True,
        )
    size, own = _BYTES_OF_TYPE.get(requested.dtype, target.model.dtype_bytes), target.model.dtype_bytes
    if size != own:
        is_less = size < own
        yield Uncounted(
            words=f"--dtype {requested.dtype}",
            does=f"takes {size} bytes for each unquantised weight instead of {own}",
            effect=Effect.FREES if is_less else Effect.ADDS,
            stages=STATIC,
            components=_MATRICES,
            most_share=max(0.0, 1 - size / own),
            least_growth=size / own if not is_less and quantization in (None, UNQUANTIZED) and stored is None else 1.0,
            decides=not is_less,
            changes_times=True,
        )


def _symmetric(effective: Layout) -> Iterator[Uncounted]:
    """Symmetric memory for collectives, 4 GiB of it (arg_groups/memory_hook.py:349)."""
    if effective.enable_symm_mem:
        yield Uncounted(
            words="--enable-symm-mem",
            does="sets memory for collectives aside",
            effect=Effect.ADDS,
            stages=ALL,
            part=Part.BUFFERS,
        )
