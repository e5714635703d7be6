"""A plain table: aligned columns, a line a row, as many columns as the width holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_GAP = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """priority: where the width is too small, columns of the highest number go first; those of 0 stay."""

    title: str
    cells: Sequence[str]
    is_number: bool = True
    priority: int = 0

    @property
    def width(self) -> int:
        return max(map(len, (self.title, *self.cells)))

    def at(self, row: int) -> str:
        text = self.title if row < 0 else self.cells[row]
        return text.rjust(self.width) if self.is_number else text.ljust(self.width)


def table_lines(columns: Sequence[Column], width: int) -> list[str]:
    """The titles and a line for each row; columns whose cells are all empty are left out."""
    shown = [column for column in columns if any(column.cells)]
    while sum(column.width + len(_GAP) for column in shown) - len(_GAP) > width:
        last = max(shown, key=lambda column: column.priority)
        if not last.priority:
            break
        shown.remove(last)
    if not shown:
        return []
    return [_GAP.join(column.at(row) for column in shown).rstrip() for row in range(-1, len(shown[0].cells))]
