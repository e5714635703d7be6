"""Commands that start something else than an SGLang server, and are easily taken for one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_ENGINES = {
    "vLLM": re.compile(r"vllm(?:\.entrypoints\..*)?|(?:.*/)?vllm(?:-openai)?(?::.*)?"),
    "TensorRT-LLM": re.compile(r"trtllm-(?:serve|llmapi-launch)|(?:.*/)?tensorrt-llm(?:/.*)?(?::.*)?"),
    "LMDeploy": re.compile(r"lmdeploy"),
    "TGI": re.compile(r"text-generation-launcher"),
    "llama.cpp": re.compile(r"llama-server"),
}
_PARTS_OF_SGLANG = re.compile(r"(?:sglang\.|.*sglang/)?(?P<name>bench_\w+|launch_router|check_env|test\.\S+)(?:\.py)?")
_ROUTER = re.compile(r"sglang(?:_router(?:\.\w+)?|-router)")

_NAMES_ONLY = frozenset(
    {
        "[",
        "[[",
        "alias",
        "awk",
        "cat",
        "echo",
        "egrep",
        "fgrep",
        "grep",
        "head",
        "htop",
        "kill",
        "killall",
        "less",
        "ls",
    }
    | {"man", "pgrep", "pip", "pkill", "printf", "ps", "rg", "sed", "tail", "test", "top", "watch", "whereis", "which"}
)
_BEFORE = re.compile(r"sudo|env|command|exec|[A-Za-z_]\w*=.*", re.DOTALL)


def only_names_it(words: Sequence[str]) -> bool:
    """Whether `words` name a server to print it, to look for it or to end it, and start none."""
    first = next((word for word in words if not _BEFORE.fullmatch(word)), "")
    return Path(first).name in _NAMES_ONLY


def said_of(words: Sequence[str]) -> str:
    """What `words` start instead of an SGLang server; empty where that is not known."""
    if only_names_it(words):
        return ""
    for word in words:
        for engine, named in _ENGINES.items():
            if named.fullmatch(word) or named.fullmatch(Path(word).name):
                return f"this starts {engine}, not SGLang: give the launch in SGLang's own flags, after --"
        if part := _PARTS_OF_SGLANG.fullmatch(word):
            return (
                f"{part['name']} is a tool of SGLang and starts no server here: give the launch flags alone, after --"
            )
        if _ROUTER.fullmatch(word):
            return "this starts SGLang's router: give the launch of one of its servers, after --"
    return ""
