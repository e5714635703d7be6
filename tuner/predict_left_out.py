"""What of measured lines does not move predictions, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """set_aside: how many lines, by the reason that they give themselves. repeated: lines that stand above already.
    by_client: by who sent the load, how many lines whose times to first token and rates are not those of a load that
    is kept up.
    """

    set_aside: Mapping[str, int] = field(default_factory=dict)
    repeated: int = 0
    by_client: Mapping[str, int] = field(default_factory=dict)

    @property
    def told(self) -> tuple[str, ...]:
        """One sentence for each kind."""
        said = [f"set aside: {lines(number)}, {reason}" for reason, number in self.set_aside.items()]
        if self.repeated:
            said.append(f"repeated: {lines(self.repeated)}, the same as one above, so no measurement of its own")
        said += [
            f"of {lines(number)} sent by {client} the time per token counts alone: times to first token and rates are "
            "not those of a load that is kept up"
            for client, number in self.by_client.items()
        ]
        return tuple(said)

    @property
    def document(self) -> dict[str, Any]:
        return {
            "set_aside": dict(self.set_aside),
            "repeated": self.repeated,
            "tpot_alone_by_client": dict(self.by_client),
        }


NOTHING_LEFT_OUT = LeftOut()


def lines(number: int) -> str:
    return f"{number} line{'s' * (number != 1)}"
