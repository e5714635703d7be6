"""`--engine-args` and other options whose value is a line of shell words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from search_spaces.errors import MalformedError, UserError
from search_spaces.layout import Layout
from search_spaces.sglang.flags import from_argv
from search_spaces.sglang.options import options_of
from search_spaces.sglang.versions import NEWEST
from tuner.server_keys import checked_key, keys_of

_SEARCHED_OR_PINNED = (
    "tp_size",
    "pp_size",
    "dp_size",
    "attn_dp_size",
    "attn_cp_size",
    "ep_size",
    "moe_dp_size",
    "moe_a2a_backend",
    "mem_fraction_static",
    "nnodes",
    "chunked_prefill_size",
    "page_size",
    "max_running_requests",
    "cuda_graph_max_bs_decode",
    "moe_runner_backend",
    "deepep_mode",
    "moe_dense_tp_size",
    "enable_dp_lm_head",
    "ep_num_redundant_experts",
)
"""What the search sets itself, or must know of to tell what is legal and what fits."""
_OURS = ("--model-path", "--model", "--host", "--port")
_DESTS = {"--host": "host", "--model-path": "model_path", "--port": "port"}
"""As they are parsed, which also finds the beginnings of their names."""


def shell_words(option: str, text: str) -> list[str]:
    """An option's value as the words that a shell would make of it. Raises MalformedError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise MalformedError(f"{option} cannot be read as shell words: {error} (got {text!r})") from None
    if not words:
        raise MalformedError(f"{option} is empty")
    return words


def skips_tokenizer(engine_args: Sequence[str]) -> bool:
    """Whether the engine is told to load no tokenizer; its parser takes the beginning of an option for the whole, as
    far as no other begins alike (argparse's abbreviations)."""
    option, least = "--skip-tokenizer-init", "--skip-t"
    return any(option.startswith(word) and word.startswith(least) for word in engine_args)


def program_of(text: str) -> tuple[str, ...]:
    """`--engine-command`: how SGLang is started, in whatever words, but nothing that the tuner itself decides."""
    words = shell_words("--engine-command", text)
    ours = {*_SEARCHED_OR_PINNED, "model_path", "port"}
    names = {name for name, option in options_of(NEWEST).items() if option.dest in ours}
    clash = sorted({word.partition("=")[0] for word in words[1:] if word.startswith("--")} & names)
    if clash:
        raise UserError(
            f"--engine-command may not hold {', '.join(clash)}: the tuner sets it; a layout flag is held fixed with "
            "--pin"
        )
    return tuple(words)


def extra_args_of(text: str) -> tuple[str, ...]:
    """`--engine-args`: passed on verbatim, but nothing that the tuner itself decides."""
    if not text.strip():
        return ()
    words = shell_words("--engine-args", text)
    keys = keys_of(words)
    for key in (keys.api_key, keys.admin_api_key):
        checked_key("--engine-args", key)
    names = {w.partition("=")[0] for w in words}
    clash = sorted(names & set(_OURS))
    if not clash:
        parsed = from_argv(words, NEWEST)
        clash = [option for option, dest in _DESTS.items() if dest in parsed.others]
        clash += [
            f"--{name.replace('_', '-')}"
            for name in _SEARCHED_OR_PINNED
            if getattr(parsed.layout, name) != getattr(Layout(), name)
        ]
    if clash:
        raise UserError(
            f"--engine-args may not hold {', '.join(clash)}: the tuner sets it; a layout flag is held fixed with --pin"
        )
    return tuple(words)
