"""What campaigns of measurements leave unsaid: who sent the load, how long requests were, which release ran.

A line may say each of it (docs/validate.md); these are the readings where it does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cost_models.setting import Client, ServingEngine, Setting
from search_spaces.hardware import Gpu
from search_spaces.layout import Layout
from search_spaces.model import Model, Scheme
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion
from tuner.validate_fields import Reason, SkippedError, share, word

_FRACTION: float | None = 0.95


def memory_flags(said: Mapping[str, Any], launch: Layout | None, model: Model, gpu: Gpu) -> dict[str, Any]:
    """launch: what the line's `flags` ask for, None where it says none.

    A line with flags says all that were given: what neither they nor a field of its own name is the engine's default.
    Of other lines the launch is not known. Their memory fraction is taken to be the largest with which most layouts
    start: who has to name one leaves no memory unused. Where it is too large, `tuner.validate_predict` takes the next
    smaller one that works.
    """
    if launch is None:
        fraction, stored = _FRACTION, _usual_kv_cache_dtype(model, gpu)
    else:
        fraction, stored = launch.mem_fraction_static, launch.kv_cache_dtype
    if said.get("mem_fraction_static") is not None:
        fraction = share(said, "mem_fraction_static", 1.0)
    return {"mem_fraction_static": fraction, "kv_cache_dtype": word(said, "kv_cache_dtype") or stored}


_COLLECTED = re.compile(r"aiconfigurator|inferencex|inferencemax", re.IGNORECASE)
_INFERENCEX_LENGTHS = frozenset({1024, 8192})
_WHOLE_THOUSAND = 1000


def client(said: Mapping[str, Any], engine: ServingEngine) -> Client:
    """Who sent the load. `client` of a line says it; else its source and its lengths tell the public campaigns.

    InferenceX (InferenceMAX before), itself or in aiconfigurator's collection: both lengths are 1024 or 8192. Some of
    these lines carry no date; they hold the same figures as dated ones.
    A burst: lines of SGLang in the collection without a date whose inputs are whole thousands of tokens long. Their
    times to first token grow with concurrency times length, as those of other engines in the same sweeps do not.
    """
    if named := word(said, "client"):
        if named not in set(Client):
            raise SkippedError(Reason.BAD_VALUE, f"client is one of {', '.join(Client)} (got {named!r})")
        return Client(named)
    if _COLLECTED.search(word(said, "source")) is None:
        return Client.STEADY
    input_tokens = said.get("isl")
    if input_tokens in _INFERENCEX_LENGTHS and said.get("osl") in _INFERENCEX_LENGTHS:
        return Client.INFERENCEX
    is_thousands = isinstance(input_tokens, int) and input_tokens % _WHOLE_THOUSAND == 0
    is_burst = engine is ServingEngine.SGLANG and is_thousands and not said.get("date")
    return Client.BURST if is_burst else Client.STEADY


_INFERENCEX_RATIO = 0.8


def length_ratio(said: Mapping[str, Any], sent_by: Client) -> float:
    """Mean length as a share of the stated one.

    `random_range_ratio` of a line: lengths are drawn evenly between that share of the stated length and all of it, as
    SGLang's and vLLM's load clients name it. Where a line does not say: the InferenceX campaigns draw from 0.8 on,
    others take every request as long as stated.
    """
    drawn_from = share(said, "random_range_ratio", _INFERENCEX_RATIO if sent_by is Client.INFERENCEX else 1.0)
    return (1 + drawn_from) / 2


_FP8_CACHE_FAMILIES = ("Qwen3_5", "GlmMoeDsa")


def _usual_kv_cache_dtype(model: Model, gpu: Gpu) -> str:
    """How the cache is taken to be stored where a line has neither `kv_cache_dtype` nor `flags`.

    No public campaign says. Their launch scripts ask for an FP8 cache for quantised models on data-centre Blackwell,
    and for the families of Qwen3.5 and GLM-5 everywhere: an assumption of this reading, not a rule of the engine.
    """
    is_blackwell = gpu.sm // 10 == 10 and model.quantization.scheme is not Scheme.NONE
    return "fp8_e4m3" if is_blackwell or model.architecture.startswith(_FP8_CACHE_FAMILIES) else "auto"


_FIRST_DAYS: tuple[tuple[str, int], ...] = (
    ("2025-08-23", 1), ("2025-09-12", 2), ("2025-10-06", 3), ("2025-10-26", 4), ("2025-11-06", 5), ("2025-12-03", 6),
    ("2026-01-01", 7), ("2026-01-23", 8), ("2026-02-23", 9), ("2026-04-05", 10), ("2026-05-07", 11), ("2026-05-16", 12),
    ("2026-06-11", 13), ("2026-06-26", 14), ("2026-07-10", 15), ("2026-07-25", 16), ("2026-08-08", 17),
    ("2026-08-21", 18), ("2026-09-04", 19), ("2026-09-18", 20), ("2026-10-01", 21), ("2026-10-15", 22),
    ("2026-10-30", 23),
)  # fmt: skip
"""When SGLang 0.5.N came out, to a day or so: from 0.5.9 on the time stamps inside the wheels."""

_RELEASE_UNKNOWN = 9
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def setting(engine: ServingEngine, version_word: str, said: Mapping[str, Any], sent_by: Client) -> Setting:
    """A line without a version ran the newest release of its day; without either, one of the middle of those measured.

    Rules are those of the nearest known release.
    """
    if engine is not ServingEngine.SGLANG:
        return Setting(engine=engine, client=sent_by)
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})", version_word.lower())
    if match is not None:
        asked = EngineVersion(*map(int, match.groups()))
    else:
        asked = EngineVersion(0, 5, _release_on(word(said, "date")))
    version = min(max(asked, OLDEST), NEWEST)
    release = asked.patch if (asked.major, asked.minor) == (0, 5) else 0
    return Setting(engine=engine, version=version, release=release if asked < OLDEST else None, client=sent_by)


def _release_on(day: str) -> int:
    if not _DAY.fullmatch(day):
        return _RELEASE_UNKNOWN
    return max((release for first, release in _FIRST_DAYS if first <= day), default=0)
