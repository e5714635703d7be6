"""The syntax of shell text, as a tree; nothing is expanded here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from search_spaces.errors import MalformedError

_BLANK = {"-z": re.compile(r"""-z\s+["']?\$\{?(\w+)"""), "-n": re.compile(r"""-n\s+["']?\$\{?(\w+)""")}


def syntax_of(text: str) -> Node:
    """The root of the tree. Raises MalformedError for a quote that does not close, which hides what follows it."""
    root = parsed(text)
    if root.has_error and (quote := _unclosed_quote(root)) is not None:
        raise MalformedError(f"the quote {text_of(quote)[:1]} that opens on line {_line(quote)} does not close")
    return root


def parsed(text: str) -> Node:
    return _parser().parse(text.encode()).root_node


def text_of(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


def assigned_names(node: Node) -> set[str]:
    """Every variable that an assignment or a loop under `node` sets."""
    names = set()
    for each in _below(node):
        if each.type == "variable_assignment":
            target = each.child_by_field_name("name")
            names.add(text_of(target).partition("[")[0] if target is not None else "")
        elif each.type == "for_statement" and (variable := each.child_by_field_name("variable")) is not None:
            names.add(text_of(variable))
    return names


def found_blank(condition: str, operator: str) -> frozenset[str]:
    """Variables whose being blank `condition` asks for (operator -z), or denies (-n)."""
    return frozenset(_BLANK[operator].findall(condition))


def parts_of_expansion(inner: str) -> tuple[str, str, str, str]:
    """name, index, operator and its word: `ARGS[@]`, `TP:-8`."""
    match = re.fullmatch(r"(\w+|[@*#?])(?:\[([^\]]*)\])?(?:(:?[-=?+]|[#%/^,:@].*?)(.*))?", inner, re.DOTALL)
    if match is None:
        return inner, "", "unknown", ""
    return match[1], match[2] or "", match[3] or "", (match[4] or "").strip("\"'")


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def _below(root: Node) -> Iterator[Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children


def _unclosed_quote(root: Node) -> Node | None:
    for node in _below(root):
        if node.is_missing and node.type == '"' and node.parent is not None:
            return node.parent
        text = text_of(node) if node.type == "ERROR" else ""
        if text[:1] in {'"', "'"} and text.count(text[0]) % 2:
            return node
    return None


def _line(node: Node) -> int:
    return node.start_point[0] + 1
