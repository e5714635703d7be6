"""Reads shell text for the commands it would run, without running anything.

Variables that the text sets to literal words are expanded, arrays and defaults (`${TP:-8}`) too. What is only known
when the script runs stays in the words as a mark, so that the caller can say which variable it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")
_PROMPT = re.compile(r"^\s*[$#>] (?=\S)", re.MULTILINE)
_BRANCHES = frozenset({"if_statement", "elif_clause", "else_clause", "case_item", "while_statement", "for_statement"})
_ALL_ARGUMENTS = frozenset({"@", "*"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """words: as the program would get them. env: what the text sets in its environment."""

    words: tuple[str, ...]
    env: Mapping[str, str]


def commands(text: str) -> tuple[Command, ...]:
    """Every simple command of `text`, in order; those in `$(...)` apart."""
    plain = _PROMPT.sub("", text.replace("\r\n", "\n")) if not text.startswith("#!") else text.replace("\r\n", "\n")
    tree = _parser().parse(plain.encode())
    return tuple(_Reader().read(tree.root_node))


def mark(name: str) -> str:
    """What stands in a word for a value that is not known here."""
    return f"{_OPEN}{name}{_CLOSE}"


def unknown_in(word: str) -> str | None:
    """The first variable or command in `word` whose value is not known."""
    found = _MARK.search(word)
    return found[1] if found else None


def shown(word: str) -> str:
    """`word` with what is not known written as the script writes it."""
    return _MARK.sub(lambda found: found[1], word)


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def _text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


class _Reader:
    """Walks the text once, keeping what it sets. A value is the fields it would expand to; None: not known."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[str, ...] | None] = {}
        self._exported: set[str] = set()

    def read(self, node: Node, *, is_branch: bool = False) -> Iterator[Command]:
        match node.type:
            case "variable_assignment":
                self._assign(node, is_branch=is_branch)
            case "declaration_command":
                exports = bool(node.children) and node.children[0].type == "export"
                for child in node.named_children:
                    if child.type == "variable_assignment":
                        name = self._assign(child, is_branch=is_branch)
                    else:
                        name = _text(child)
                    if exports:
                        self._exported.add(name)
            case "command":
                yield self._command(node)
            case "command_substitution" | "process_substitution" | "heredoc_body" | "comment":
                return
            case _:
                inside = is_branch or node.type in _BRANCHES
                for child in node.children:
                    yield from self.read(child, is_branch=inside)

    def _assign(self, node: Node, *, is_branch: bool) -> str:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        name = _text(target).partition("[")[0] if target is not None else ""
        fields = () if value is None else self._value(value)
        if any(child.type == "+=" for child in node.children):
            before = self._values.get(name, ())
            is_array = value is not None and value.type == "array"
            if before is None or fields is None:
                fields = None
            else:
                fields = (*before, *fields) if is_array else ("".join((*before, *fields)),)
        elif is_branch and name in self._values and self._values[name] != fields:
            # Which of the branches is taken is not known here.
            fields = None
        self._values[name] = fields
        return name

    def _value(self, node: Node) -> tuple[str, ...] | None:
        if node.type == "array":
            return tuple(field for child in node.named_children for field in self._fields(child))
        fields = self._fields(node, splits=False)
        return (" ".join(fields),)

    def _command(self, node: Node) -> Command:
        env = {
            name: " ".join(fields) for name in sorted(self._exported) if (fields := self._values.get(name)) is not None
        }
        words: list[str] = []
        for child in node.children:
            if child.type == "variable_assignment":
                target, value = child.child_by_field_name("name"), child.child_by_field_name("value")
                if target is not None:
                    env[_text(target)] = "" if value is None else " ".join(self._fields(value, splits=False))
            elif child.type == "command_name":
                words += self._fields(child.children[0]) if child.children else [_text(child)]
            elif child.type not in {"file_redirect", "herestring_redirect", "heredoc_redirect"}:
                words += self._fields(child)
        return Command(words=tuple(words), env={k: v for k, v in env.items() if unknown_in(v) is None})

    def _fields(self, node: Node, *, splits: bool = True) -> list[str]:
        """The words that `node` expands to. splits: whether a value falls apart at its spaces."""
        text = _text(node)
        match node.type:
            case "string":
                joined = self._joined(node, text, 1)
                # "$@" and "${ARRAY[@]}" alone are as many words as there are, and may be none.
                fields = [] if joined == [""] and re.fullmatch(r'"\$\{?(@|\w+\[@\])\}?"', text) else joined
            case "raw_string":
                fields = [text[1:-1]]
            case "ansi_c_string":
                fields = [text[2:-1].encode().decode("unicode_escape", errors="replace")]
            case "concatenation":
                fields = self._joined(node, text, 0, splits=splits)
            case "simple_expansion" | "expansion":
                fields = self._expanded(node, splits=splits)
            case "command_substitution" | "arithmetic_expansion" | "process_substitution":
                fields = [mark(text)]
            case "comment":
                fields = []
            case _:
                fields = [re.sub(r"\\(.)", r"\1", text.replace("\\\n", ""), flags=re.DOTALL)]
        return fields

    def _joined(self, node: Node, text: str, edge: int, *, splits: bool = False) -> list[str]:
        """The parts of a string (edge 1: within its quotes) or of words without a space between them."""
        raw = text.encode()
        fields, at, is_empty = [""], edge, edge == 0
        for child in node.children:
            if child.type in {'"', "string_content"}:
                continue
            begin, end = child.start_byte - node.start_byte, child.end_byte - node.start_byte
            fields[-1] += _unescaped(raw[at:begin].decode(errors="replace"))
            parts = self._fields(child, splits=splits)
            at = end
            if parts:
                is_empty = False
                fields[-1] += parts[0]
                fields += parts[1:]
        fields[-1] += _unescaped(raw[at : len(raw) - edge].decode(errors="replace"))
        return [] if is_empty and fields == [""] else fields

    def _expanded(self, node: Node, *, splits: bool) -> list[str]:
        text = _text(node)
        inner = text[2:-1] if text.startswith("${") else text[1:]
        name, index, operator, default = _parts_of_expansion(inner)
        if name in _ALL_ARGUMENTS and not operator:
            return []  # a script that is started without arguments of its own
        known = name in self._values
        fields = self._values.get(name)
        if operator in {":-", "-", ":=", "="} and (not known or fields in {(), ("",)}):
            return _split([default], splits=splits) if "$" not in default else self._again(default, splits=splits)
        if operator not in {"", ":-", "-", ":=", "=", ":?", "?"} or fields is None:
            return [mark(text)]
        if index in _ALL_ARGUMENTS:
            return list(fields)
        return _split(list(fields[:1]) if len(fields) > 1 else list(fields), splits=splits)

    def _again(self, text: str, *, splits: bool) -> list[str]:
        """A default that itself names variables."""
        root = _parser().parse(f"x={text}".encode()).root_node
        value = next((c.child_by_field_name("value") for c in root.children if c.type == "variable_assignment"), None)
        return [mark(text)] if value is None else self._fields(value, splits=splits)


def _parts_of_expansion(inner: str) -> tuple[str, str, str, str]:
    """name, index, operator and its word: `ARGS[@]`, `TP:-8`."""
    match = re.fullmatch(r"(\w+|[@*#?])(?:\[([^\]]*)\])?(?:(:?[-=?+]|[#%/^,:@].*?)(.*))?", inner, re.DOTALL)
    if match is None:
        return inner, "", "unknown", ""
    return match[1], match[2] or "", match[3] or "", (match[4] or "").strip("\"'")


def _split(fields: list[str], *, splits: bool) -> list[str]:
    return [word for field in fields for word in field.split()] if splits else fields


def _unescaped(text: str) -> str:
    return re.sub(r'\\([$`"\\])', r"\1", text.replace("\\\n", ""))
