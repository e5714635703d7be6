"""What campaigns of measurements leave unsaid: who sent the load, how long requests were, which release ran.

A line may say each of it (docs/validate.md); these are the readings where it does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cost_models.setting import Client, ServingEngine, Setting
from search_spaces.hardware import Gpu
from search_spaces.layout import Layout
from search_spaces.model import Model, Scheme
from search_spaces.sglang.foreign_flags import OTHER_WORDS
from search_spaces.sglang.options import choices_of
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion
from tuner.validate_fields import Reason, SkippedError, bad, day, share, word

_FRACTION = 0.95


def memory_flags(said: Mapping[str, Any], launch: Layout | None, model: Model, gpu: Gpu) -> dict[str, Any]:
    """launch: what the line's `flags` ask for, None where it says none.

    A line with flags says all that were given: what neither they nor a field of its own name is the engine's default.
    Of other lines the launch is not known. Their memory fraction is taken to be the largest with which most layouts
    start: who has to name one leaves no memory unused. Where it is too large, `tuner.validate_predict` takes the next
    smaller one that works.
    """
    if launch is None:
        usual, stored = _FRACTION, _usual_kv_cache_dtype(model, gpu)
        fraction: float | None = _launchable(said, usual, "mem_fraction_static")
    else:
        stored = launch.kv_cache_dtype
        fraction = _launchable(said, launch.mem_fraction_static, "flags: mem-fraction-static")
    return {"mem_fraction_static": fraction, "kv_cache_dtype": _kv_cache_dtype(said) or stored}


def _launchable(said: Mapping[str, Any], launched: float | None, name: str) -> float | None:
    """The line's own fraction, else `launched`, which `name` says: one with which a server can start."""
    own = said.get("mem_fraction_static")
    if own is not None:
        launched, name = share(said, "mem_fraction_static", 1.0), "mem_fraction_static"
    if launched is not None and not 0 < launched < 1:
        value = launched if own is None else own
        raise SkippedError(Reason.BAD_VALUE, f"{name} is a share above 0 and below 1 (got {value})")
    return launched


def _kv_cache_dtype(said: Mapping[str, Any]) -> str:
    """As SGLang names it, in some release; other engines' names are translated."""
    named = word(said, "kv_cache_dtype").lower()
    named = OTHER_WORDS.get(("kv_cache_dtype", named), named)
    known = dict.fromkeys(each for version in (NEWEST, OLDEST) for each in choices_of("kv_cache_dtype", version))
    if named and named not in known:
        raise bad(said, "kv_cache_dtype", f"kv_cache_dtype is one of {', '.join(known)}")
    return named


_COLLECTED = re.compile(r"aiconfigurator|inferencex|inferencemax", re.IGNORECASE)
_INFERENCEX_LENGTHS = frozenset({1024, 8192})
_WHOLE_THOUSAND = 1000


def client(said: Mapping[str, Any], engine: ServingEngine, input_tokens: int, output_tokens: int) -> Client:
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
    if {input_tokens, output_tokens} <= _INFERENCEX_LENGTHS:
        return Client.INFERENCEX
    is_thousands = input_tokens % _WHOLE_THOUSAND == 0
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
_RELEASE = re.compile(r"(?:sglang)?[\s=:@v-]*(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """version: whose rules apply. patch: `Setting.release`. is_known: False where a word names none: then a guess."""

    version: EngineVersion = NEWEST
    patch: int | None = None
    is_known: bool = True


def release_of(engine: ServingEngine, version_word: str, said: Mapping[str, Any]) -> Release:
    """A line without a version ran the newest release of its day; without either, one of the middle of those measured.

    So is a line read whose word is no release, such as `main` or `0.5`. Rules are those of the nearest known release.
    """
    on = day(said, "date")
    if engine is not ServingEngine.SGLANG:
        return Release()
    is_known = not version_word
    asked = EngineVersion(0, 5, _release_on(on))
    if match := _RELEASE.match(version_word):
        major, minor, patch = int(match[1]), int(match[2]), match[3]
        if patch is not None or (major, minor) != (0, 5):
            asked = EngineVersion(major, minor, int(patch or 0))
            is_known = patch is not None and asked <= NEWEST
    version = min(max(asked, OLDEST), NEWEST)
    patch_0_5 = asked.patch if (asked.major, asked.minor) == (0, 5) else 0
    return Release(version=version, patch=patch_0_5 if asked < OLDEST else None, is_known=is_known)


def setting(engine: ServingEngine, release: Release, sent_by: Client) -> Setting:
    return Setting(
        engine=engine,
        version=release.version,
        release=release.patch,
        is_release_known=release.is_known,
        client=sent_by,
    )


def _release_on(on: str) -> int:
    """on: a day, or empty."""
    if not on:
        return _RELEASE_UNKNOWN
    return max((release for first, release in _FIRST_DAYS if first <= on), default=0)
