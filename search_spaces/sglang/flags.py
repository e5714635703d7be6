"""A layout as the engine's command-line flags, and back.

A field of `Layout` carries the name under which sglang 0.5.23 keeps the flag (its parser's `dest`), so that the
table of options says how each release writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from search_spaces.errors import MalformedError, UnsupportedError
from search_spaces.layout import Layout
from search_spaces.sglang import old_spellings
from search_spaces.sglang.argument_parser import is_value, mentions
from search_spaces.sglang.flag_errors import FlagError, nearest_option
from search_spaces.sglang.options import Arity, Option, options_of
from search_spaces.sglang.versions import NEWEST, EngineVersion
from search_spaces.verdict import Adjustment

__all__ = ["FlagError", "ParsedFlags", "flags_from_mapping", "from_argv", "nearest_option", "to_argv"]

_DP_ATTENTION = "enable_dp_attention"
_DP_ATTENTION_SOURCE = "arg_groups/parallel_hook.py:39"
_ATTN_DP_SINCE = EngineVersion(0, 5, 22)

_DEFAULTS = {each.name: each.default for each in fields(Layout)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedFlags:
    """rest: every word that is not about the layout, verbatim and in order.
    adjustments: what reading a deprecated spelling moved.
    others: the values of the options in `rest`, by the engine's own names (`model_path`).
    """

    layout: Layout
    rest: tuple[str, ...]
    adjustments: tuple[Adjustment, ...] = ()
    others: Mapping[str, Any] = field(default_factory=dict, hash=False)


def to_argv(layout: Layout, version: EngineVersion = NEWEST) -> tuple[str, ...]:
    """The flags that launch `layout`; only what differs from the engine's default.

    Raises UnsupportedError where `version` has no words for it.
    """
    changed = {name: value for name, default in _DEFAULTS.items() if (value := getattr(layout, name)) != default}
    last: list[str] = []
    if version < _ATTN_DP_SINCE and "attn_dp_size" in changed:
        if layout.dp_size != 1:
            raise UnsupportedError(
                f"SGLang {version} spells attention data parallelism --dp-size and so cannot combine it with "
                f"replicas (dp_size={layout.dp_size}, attn_dp_size={layout.attn_dp_size})"
            )
        last = ["--dp-size", str(changed.pop("attn_dp_size")), "--enable-dp-attention"]
    last += old_spellings.words_for(changed, version)
    words: list[str] = []
    for name, value in changed.items():
        option = old_spellings.option_of_field(name, version)
        if option is None:
            raise UnsupportedError(f"SGLang {version} has no flag for {name} (asked for {value!r})")
        words += _written(option, name, value)
    return (*words, *last)


def from_argv(argv: Sequence[str], version: EngineVersion = NEWEST) -> ParsedFlags:
    """Reads a launch's flags as `version`'s own argument parser does; the last mention of a flag wins.

    `--dp-size N --enable-dp-attention` becomes attention data parallelism of N: since 0.5.22 the engine itself
    moves it (0.5.23 arg_groups/parallel_hook.py:39), before it had no other spelling.

    Raises FlagError where the engine would exit with 2; what it refuses later is read.
    """
    values: dict[str, Any] = {}
    special: dict[str, Any] = {}
    others: dict[str, Any] = {}
    rest: list[str] = []
    for mention in mentions(argv, version):
        dest = mention.option.dest
        name = old_spellings.FIELD_OF_DEST.get(dest, dest)
        if name in _DEFAULTS:
            values[name] = mention.value
        elif dest == _DP_ATTENTION or dest in old_spellings.DESTS:
            special[dest] = mention.value
        else:
            others[dest] = mention.value
            rest += mention.words
    layout = replace(Layout(), **{**old_spellings.fields_of(special, version), **values})
    if not special.get(_DP_ATTENTION) or layout.attn_dp_size != 1 or layout.dp_size == 1:
        return ParsedFlags(layout=layout, rest=tuple(rest), others=others)
    moved = replace(layout, attn_dp_size=layout.dp_size, dp_size=1)
    return ParsedFlags(
        layout=moved,
        rest=tuple(rest),
        adjustments=_moved_dp(layout.dp_size) if version >= _ATTN_DP_SINCE else (),
        others=others,
    )


def flags_from_mapping(flags: Mapping[str, Any], version: EngineVersion = NEWEST) -> tuple[str, ...]:
    """`{"tp-size": 8, "enable-dp-attention": true}` as a launch's words.

    Keys are option names, with or without dashes in front. `true` is the bare flag, `false` its `--no-` form where
    `version` has one and else nothing, `null` nothing; a list gives several values, an object its JSON. A switch may
    have its `true` and `false` as a string.

    Raises MalformedError.
    """
    words: list[str] = []
    for key, value in flags.items():
        name = f"--{str(key).lstrip('-').replace('_', '-')}"
        if name == "--":
            raise MalformedError(f"a flag is named as SGLang names it, e.g. tp-size (got {key!r})")
        match _of_switch(name, value, version):
            case None:
                continue
            case True:
                words.append(name)
            case False:
                negated = f"--no-{name.removeprefix('--')}"
                words += [negated] if negated in options_of(version) else []
            case list() | tuple():
                words += [name, *map(str, value)]
            case dict():
                words += [name, json.dumps(value)]
            case int() | float() | str():
                words += _valued(name, value)
            case _:
                raise MalformedError(f"{key} takes a number, a word, true, false, null or a list (got {value!r})")
    return tuple(words)


def _of_switch(name: str, value: Any, version: EngineVersion) -> Any:
    option = options_of(version).get(name)
    if isinstance(value, str) and option is not None and option.arity in {Arity.NONE, Arity.NEGATABLE}:
        return {"true": True, "false": False}.get(value.lower(), value)
    return value


def _moved_dp(groups: int) -> tuple[Adjustment, ...]:
    return (
        Adjustment(name="dp_size", before=str(groups), after="1", source=_DP_ATTENTION_SOURCE),
        Adjustment(name="attn_dp_size", before="default 1", after=str(groups), source=_DP_ATTENTION_SOURCE),
    )


def _written(option: Option, name: str, value: Any) -> list[str]:
    own = f"--{name.replace('_', '-')}"
    flag = own if own in option.names else option.names[0]
    if option.arity is Arity.NEGATABLE:
        return [flag if value else option.names[-1]]
    if option.arity is Arity.NONE:
        return [flag]
    if option.is_list:
        return [flag, *map(str, value)]
    return _valued(flag, value)


def _valued(flag: str, value: Any) -> list[str]:
    text = str(value)
    return [flag, text] if is_value(text) else [f"{flag}={text}"]
