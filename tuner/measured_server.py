"""What answers at an address: whether it is SGLang, which layout it runs, and how large its model's vocabulary is.

Everything that makes a measurement impossible ends here, before any load.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from textwrap import shorten
from typing import Any
from urllib.parse import urlsplit

import requests

from search_spaces.errors import MalformedError, UserError
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.flags import FlagError, flags_from_mapping, from_argv
from search_spaces.sglang.versions import EngineVersion
from search_spaces.workload import Workload
from tuner import asking
from tuner.detection import rules_of
from tuner.server_control import ask, said_count
from tuner.server_keys import ServerKeys
from tuner.sglang_answering import reason_of, sglang_info

_RANGE = re.compile(r"valid range is \[0, (\d+)\)")
_OUT_OF_ANY_VOCABULARY = 2**31 - 2
_FIRST_TOKEN_ID = 10
_SHAPE = (
    *("num_layers", "hidden_size", "num_attention_heads", "num_kv_heads", "head_dim"),
    *("num_experts", "experts_per_token", "moe_intermediate_size"),
)
"""What tells one model from another."""
_ASK_TIMEOUT_S = 10.0
_OLD_NAMES = ("enable_dp_attention", "enable_ep_moe", "enable_deepep_moe")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundServer:
    """layout: as it says that it runs. release: of SGLang. model: its name, as far as it is known. kv_tokens: of one
    replica; 0 where it does not say. simulated_because: empty for a real engine. clock_scale: of a simulated one's
    clock; infinite for an unpaced one. running: requests of others. tokenizer: a folder or hub id; empty without.
    """

    base_url: str
    release: str
    layout: Layout
    model: str
    vocab_size: int
    kv_tokens: int
    simulated_because: str = ""
    clock_scale: float = 1.0
    running: int = 0
    tokenizer: str = ""

    @property
    def is_simulated(self) -> bool:
        return bool(self.simulated_because)


def base_url_of(text: str) -> str:
    """`http://host:30000`, from an address with or without its scheme. Raises MalformedError."""
    url = text.strip()
    url = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise MalformedError(f"{shorten(text, 80)!r} is no address of a server: {error}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or re.search(r"\s", url):
        raise MalformedError(
            f"a server is named by its address, e.g. http://127.0.0.1:30000 (got {shorten(text, 80)!r})"
        )
    if "@" in parts.netloc:
        raise MalformedError("an address with a user in it is not taken: a key goes in by --api-key-env")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    base = f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise MalformedError(f"a server is named without a path: {base} instead of {shorten(text, 80)}")
    return base


def found_server(base_url: str, keys: ServerKeys, model: str | None, workload: Workload) -> FoundServer:
    """model: `--model`. Raises UserError where `workload` cannot be measured there."""
    info = sglang_info(base_url, keys)
    said = _model_said(info)
    served = asking.served(model) if model is not None else said
    release = str(info.get("version", ""))
    if served is not None:
        workload.check_against(served.model)
    _check_room(info, workload)
    told = _vocabulary_told(base_url, keys)
    vocab_size = _vocabulary(base_url, told, None if served is None else served.model)
    if model is not None and served is not None:
        _check_named(base_url, served.model, None if said is None else said.model, told)
    _check_answers(base_url, keys, vocab_size)
    mark = info.get("simulated")
    return FoundServer(
        base_url=base_url,
        release=release,
        layout=layout_said(info, rules_of(release)),
        model=served.model.name if served is not None else str(info.get("served_model_name") or info["model_path"]),
        vocab_size=vocab_size,
        kv_tokens=said_count(info, "max_total_num_tokens"),
        simulated_because="" if mark is None else str(mark.get("reason") or "it was started as a simulation"),
        clock_scale=1.0 if mark is None else float(mark.get("clock_scale") or "inf"),
        running=_running(base_url, keys),
        tokenizer="" if info.get("skip_tokenizer_init") else str(info.get("tokenizer_path") or info["model_path"]),
    )


def layout_said(info: Mapping[str, Any], version: EngineVersion) -> Layout:
    """From the arguments that a server says it runs with, as a launch with those flags is read."""
    names = {f.name for f in fields(Layout)} | set(_OLD_NAMES)
    default = vars(Layout())
    said = {
        name: value
        for name, value in info.items()
        if name in names and value is not None and value is not False and value != default.get(name)
    }
    try:
        return from_argv(flags_from_mapping(said, version), version).layout
    except (FlagError, MalformedError):
        # A value that no flag takes, or of another release: the sizes are what a layout is called by.
        sizes = {name: value for name, value in said.items() if name.endswith("_size") and type(value) is int}
        return Layout().changed(**sizes)


def _model_said(info: Mapping[str, Any]) -> asking.Served | None:
    try:
        return asking.served_elsewhere(str(info["model_path"]))
    except UserError:
        return None


def _check_room(info: Mapping[str, Any], workload: Workload) -> None:
    wanted = workload.tokens_per_request
    pool = said_count(info, "max_total_num_tokens")
    if 0 < pool < wanted:
        raise UserError(f"its KV cache has {pool} tokens, and one request of this load takes {wanted}")
    longest = said_count(info, "max_req_input_len")
    if 0 < longest < workload.input_tokens:
        raise UserError(f"it takes prompts of at most {longest} tokens (--input-tokens {workload.input_tokens})")


def _vocabulary_told(base_url: str, keys: ServerKeys) -> int | None:
    """How many token ids there are, as the server says when it is asked for one that no model has.

    SGLang 0.5.23 refuses such an id in `token_ids_logprob` (managers/tokenizer_manager.py:1527), while it takes any
    in a prompt.
    """
    asked = {"token_ids_logprob": [_OUT_OF_ANY_VOCABULARY], "return_logprob": True}
    found = _RANGE.search(_generated(base_url, keys, [_FIRST_TOKEN_ID], asked).text)
    return None if found is None else int(found[1])


def _vocabulary(base_url: str, told: int | None, model: Model | None) -> int:
    """As the server says, else the model's."""
    if told is not None and model is not None and told < model.vocab_size:
        raise UserError(
            f"{model.name} has {model.vocab_size} token ids, but the model that {base_url} serves has {told}; "
            "--model says which it is"
        )
    if told is not None:
        return told
    if model is None:
        raise UserError(f"{base_url} does not say which token ids its model has: name the model with --model")
    return model.vocab_size


def _check_named(base_url: str, named: Model, said: Model | None, told: int | None) -> None:
    """named: by `--model`. said: the one that the server's path names, which its own word on token ids may belie.

    Raises UserError where the figures would stand under the name of another model than the one that is served. How the
    weights are quantised is not compared: a path often does not say.
    """
    if told is not None and told != named.vocab_size:
        raise UserError(
            f"--model {named.name} has {named.vocab_size} token ids, but the model that {base_url} serves has {told}"
        )
    if said is None or told not in {None, said.vocab_size}:
        return
    if said.vocab_size != named.vocab_size:
        raise UserError(
            f"--model {named.name} has {named.vocab_size} token ids, but {base_url} serves {said.name}, which has "
            f"{said.vocab_size}"
        )
    if differing := [name for name in _SHAPE if getattr(said, name) != getattr(named, name)]:
        name = differing[0]
        raise UserError(
            f"--model {named.name} is not what {base_url} serves: it says {said.name}, with {name} "
            f"{getattr(said, name)} instead of {getattr(named, name)}"
        )


def _check_answers(base_url: str, keys: ServerKeys, vocab_size: int) -> None:
    answer = _generated(base_url, keys, [min(_FIRST_TOKEN_ID, vocab_size - 1), vocab_size - 1], {})
    if answer.status_code != 200:
        said = shorten(" ".join(answer.text.split()), 200)
        raise UserError(
            f"{base_url} refuses a request of token ids below {vocab_size}: HTTP {answer.status_code}: {said}"
        )


def _generated(base_url: str, keys: ServerKeys, ids: list[int], more: Mapping[str, Any]) -> requests.Response:
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}, **more}
    try:
        return ask("POST", f"{base_url}/generate", keys=keys, body=body)
    except requests.RequestException as error:
        raise UserError(f"{base_url} does not answer a request: {reason_of(error)}") from None


def _running(base_url: str, keys: ServerKeys) -> int:
    try:
        loads = ask("GET", f"{base_url}/v1/loads", keys=keys, timeout_s=_ASK_TIMEOUT_S).json()["loads"]
        return sum(int(each["num_running_reqs"]) + int(each["num_waiting_reqs"]) for each in loads)
    except (requests.RequestException, ValueError, KeyError, TypeError):
        return 0
