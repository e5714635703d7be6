"""Reads shell text for the commands it would run, without running anything.

Variables that the text sets to literal words are expanded, arrays and defaults (`${TP:-8}`) too. What is only known
when the script runs stays in the words as a mark, so that the caller can say which variable it was and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tree_sitter import Node

from search_spaces.errors import MalformedError
from tuner.shell_syntax import assigned_names, found_blank, parsed, parts_of_expansion, syntax_of
from tuner.shell_syntax import text_of as _text

_OPEN, _CLOSE, _BECAUSE = "\ue000", "\ue001", "\ue002"
_MARK = re.compile(f"{_OPEN}([^{_CLOSE}{_BECAUSE}]*){_BECAUSE}([^{_CLOSE}]*){_CLOSE}")
_FIELD = re.compile(f"(?:{_OPEN}[^{_CLOSE}]*{_CLOSE}|\\S)+")
_NOT_LITERAL = "is not set to anything literal here"
_CONDITIONAL = "is set under a condition that only the running script knows"
_READ_IN = "is read in when the script runs"
_PROMPT = re.compile(r"^\s*[$>] (?=\S)", re.MULTILINE)
_LOOPS = frozenset({"while_statement", "for_statement", "c_style_for_statement"})
_READERS = frozenset({"read", "mapfile", "readarray"})
_SETS_NO_FLAGS = frozenset({"activate", "conda.sh", "profile", ".bashrc", ".bash_profile", ".profile"})
"""Files that are sourced for their PATH."""
_STEPS = frozenset({".", ":", "cd", "echo", "export", "mkdir", "module", "printf", "set", "source", "ulimit"})
"""Commands that `&&` follows as one step follows another, and not to ask something."""
_UNSET = ("\ue003",)
_BLANKS: tuple[tuple[str, ...], ...] = (_UNSET, (), ("",))
_ALL_ARGUMENTS = frozenset({"@", "*"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """words: as the program would get them. env: what the text sets in its environment. notes: what of the text is
    left out of account, in words.
    """

    words: tuple[str, ...]
    env: Mapping[str, str]
    notes: tuple[str, ...] = ()


def commands(
    text: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> tuple[Command, ...]:
    """Every simple command of `text`, in order; those in `$(...)` apart.

    arguments, environment: what the script is started with. Raises MalformedError for a quote that does not close, and
    for text that is nested too deeply.
    """
    plain = _PROMPT.sub("", text.replace("\r\n", "\n")) if not text.startswith("#!") else text.replace("\r\n", "\n")
    root = syntax_of(plain)
    try:
        return tuple(_Reader(arguments, environment or {}).read(root))
    except RecursionError:
        raise MalformedError("the script is nested too deeply to be read: give the launch alone") from None


def mark(name: str, because: str = _NOT_LITERAL) -> str:
    """What stands in a word for a value that is not known here."""
    return f"{_OPEN}{name}{_BECAUSE}{because}{_CLOSE}"


def unknown_in(word: str) -> str | None:
    """The first variable or command in `word` whose value is not known."""
    found = _MARK.search(word)
    return found[1] if found else None


def why_unknown(word: str) -> str:
    """What is said of the first variable in `word` whose value is not known."""
    found = _MARK.search(word)
    return found[2] if found else ""


def shown(word: str) -> str:
    """`word` with what is not known written as the script writes it."""
    return _MARK.sub(lambda found: found[1], word)


class _Reader:
    """Walks the text once, keeping what it sets.

    A value is the fields it would expand to; None where only the running script knows.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._arguments = tuple(arguments)
        self._values: dict[str, tuple[str, ...] | None] = {name: (value,) for name, value in environment.items()}
        self._exported = set(environment)
        self._why: dict[str, str] = {}
        self._sourced = ""

    def read(self, node: Node) -> Iterator[Command]:
        match node.type:
            case "variable_assignment":
                self._assign(node)
            case "declaration_command":
                self._declare(node)
            case "unset_command":
                for child in node.named_children:
                    self._values.pop(_text(child), None)
            case "command":
                yield (command := self._command(node))
                self._take_in(command.words)
            case "list":
                yield from self._listed(node)
            case "if_statement" | "case_statement":
                yield from self._chosen(node)
            case "subshell":
                before = dict(self._values)
                yield from self._each(node.children)
                self._values = before
            case "command_substitution" | "process_substitution" | "heredoc_body" | "comment":
                return
            case _:
                yield from self._looped(node) if node.type in _LOOPS else self._each(node.children)

    def _each(self, nodes: Sequence[Node]) -> Iterator[Command]:
        for node in nodes:
            yield from self.read(node)

    def _declare(self, node: Node) -> None:
        exports = bool(node.children) and node.children[0].type == "export"
        for child in node.named_children:
            name = self._assign(child) if child.type == "variable_assignment" else _text(child)
            if exports:
                self._exported.add(name)

    def _looped(self, node: Node) -> Iterator[Command]:
        """A loop runs any number of times, none among them."""
        before = dict(self._values)
        for name in assigned_names(node) & set(before):
            self._forget(name)
        yield from self._each(node.children)
        self._values = self._either([self._values, before])

    def _listed(self, node: Node) -> Iterator[Command]:
        """`a && b || c`: what follows a question is a branch."""
        asked: Node | None = None
        operator = ""
        for child in node.children:
            if child.type in {"&&", "||"}:
                operator = child.type
                continue
            before = dict(self._values)
            yield from self.read(child)
            if asked is not None and (operator == "||" or not _is_step(asked)):
                blank = found_blank(_text(asked), "-z" if operator == "&&" else "-n")
                self._values = self._either([self._values, before], blank)
            asked = child

    def _chosen(self, node: Node) -> Iterator[Command]:
        """One of several branches, or none where no `else` or `*)` takes what is left."""
        branches = [child for child in node.children if child.type in {"elif_clause", "else_clause", "case_item"}]
        condition = node.child_by_field_name("condition")
        before = dict(self._values)
        outcomes = []
        if node.type == "if_statement":
            yield from self._each([child for child in node.children if child not in branches])
            outcomes.append(self._values)
        for branch in branches:
            self._values = dict(before)
            yield from self._each(branch.children)
            outcomes.append(self._values)
        last = branches[-1] if branches else None
        if last is None or not (last.type == "else_clause" or _text(last).lstrip("(").startswith("*)")):
            outcomes.append(before)
        blank = found_blank(_text(condition), "-z") if condition is not None else frozenset[str]()
        self._values = self._either(outcomes, blank)

    def _either(
        self, outcomes: Sequence[Mapping[str, tuple[str, ...] | None]], asked_if_blank: frozenset[str] = frozenset()
    ) -> dict[str, tuple[str, ...] | None]:
        """What is known where any of `outcomes` may hold.

        asked_if_blank: what is set because it is blank (`[ -n "$TP" ] || TP=8`), and has its default then.
        """
        known: dict[str, tuple[str, ...] | None] = {}
        for name in sorted({name for values in outcomes for name in values}):
            found = [values.get(name, _UNSET) for values in outcomes]
            filled = [fields for fields in found if fields not in _BLANKS]
            if all(fields == found[0] for fields in found):
                known[name] = found[0]
            elif name in asked_if_blank and len(filled) == 1:
                known[name] = filled[0]
            else:
                known[name] = None
                if None not in found:
                    self._why[name] = _CONDITIONAL
        return known

    def _forget(self, name: str, why: str = _CONDITIONAL) -> None:
        self._values[name] = None
        self._why[name] = why

    def _take_in(self, words: Sequence[str]) -> None:
        """What a command sets that is not written here: `read TP`, `source ./env.sh`."""
        if len(words) > 1 and words[0] in _READERS:
            for name in words[1:]:
                self._forget(name, _READ_IN)
        elif len(words) > 1 and words[0] in {"source", "."} and Path(words[1]).name not in _SETS_NO_FLAGS:
            self._sourced = f"may be set by {shown(words[1])}, which is not read here"
            for name in list(self._values):
                self._forget(name, self._sourced)

    def _assign(self, node: Node) -> str:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        name = _text(target).partition("[")[0] if target is not None else ""
        fields = () if value is None else self._value(value)
        before = self._values.get(name, ())
        if any(child.type == "+=" for child in node.children):
            is_array = value is not None and value.type == "array"
            joined = (*(before or ()), *fields)
            self._values[name] = None if before is None else joined if is_array else ("".join(joined),)
        else:
            self._values[name] = fields
        return name

    def _value(self, node: Node) -> tuple[str, ...]:
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
        name, index, operator, default = parts_of_expansion(inner)
        if name in _ALL_ARGUMENTS and not operator:
            return list(self._arguments)
        fields = self._argument(int(name)) if name.isdigit() else self._values.get(name)
        known = fields is not None or name in self._values or bool(self._sourced)
        if operator in {":-", "-", ":=", "="} and (not known or fields in {(), ("",)}):
            return _split([default], splits=splits) if "$" not in default else self._again(default, splits=splits)
        if operator not in {"", ":-", "-", ":=", "=", ":?", "?"} or fields is None:
            is_forgotten = name in self._values and fields is None
            return [mark(text, self._why.get(name, _CONDITIONAL) if is_forgotten else self._sourced or _NOT_LITERAL)]
        if index in _ALL_ARGUMENTS:
            return list(fields)
        return _split(list(fields[:1]) if len(fields) > 1 else list(fields), splits=splits)

    def _argument(self, number: int) -> tuple[str, ...] | None:
        return (self._arguments[number - 1],) if 0 < number <= len(self._arguments) else None

    def _again(self, text: str, *, splits: bool) -> list[str]:
        """A default that itself names variables."""
        root = parsed(f"x={text}")
        value = next((c.child_by_field_name("value") for c in root.children if c.type == "variable_assignment"), None)
        return [mark(text)] if value is None else self._fields(value, splits=splits)


def _is_step(node: Node) -> bool:
    """Whether what `&&` waits for always succeeds where the script goes on at all."""
    if node.type == "list":
        return all(child.type == "&&" or _is_step(child) for child in node.children)
    if node.type == "command":
        name = node.child_by_field_name("name")
        return name is not None and _text(name) in _STEPS
    return node.type in {"declaration_command", "variable_assignment", "variable_assignments"}


def _split(fields: list[str], *, splits: bool) -> list[str]:
    """A mark is never split, whatever spaces what it stands for is written with."""
    return [word for field in fields for word in _FIELD.findall(field)] if splits else fields


def _unescaped(text: str) -> str:
    return re.sub(r'\\([$`"\\])', r"\1", text.replace("\\\n", ""))
