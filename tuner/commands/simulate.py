"""`tune simulate`: the simulated server on its own."""

from __future__ import annotations

import typer


def simulate(context: typer.Context) -> None:
    """The simulated SGLang server on its own: `tune simulate --port P -- FLAGS`. Labelled as such everywhere."""
    from tuner import asking  # noqa: PLC0415
    from tuner.simulator.__main__ import main as serve  # noqa: PLC0415

    words = [w for w in context.args if w != "--"]
    for option, default in (("--model-path", asking.STORY_MODEL), ("--cluster", asking.STORY_CLUSTER)):
        if not any(w == option or w.startswith(f"{option}=") for w in words):
            words = [option, default, *words]
    raise typer.Exit(serve(words))
