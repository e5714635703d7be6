"""The same plot as a file: PNG, SVG or HTML."""

from __future__ import annotations

import html
import io
from pathlib import Path

from cost_models.prediction import COVERAGE
from search_spaces.errors import MalformedError, UserError
from tuner.predict_plot import curves
from tuner.predict_space import Ranking

KINDS = (".png", ".svg", ".html")


def check_plot_path(word: str) -> Path:
    """`--plot`. Raises MalformedError."""
    path = Path(word).expanduser()
    if path.suffix.lower() not in KINDS:
        raise MalformedError(f"--plot writes a file that ends in {', '.join(KINDS)} (got {word!r})")
    if path.is_dir() or not path.parent.is_dir():
        raise MalformedError(f"--plot {word}: {'a folder' if path.is_dir() else 'its folder does not exist'}")
    return path


def write_figure(ranking: Ranking, path: Path) -> None:
    """Raises UserError where the file cannot be written."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    front, *drawn = curves(ranking)
    best = ranking.best.prediction
    for place, curve in enumerate(drawn):
        axes.plot(
            curve.x,
            curve.y,
            marker="o",
            markersize=4,
            linewidth=1.5 if place else 2.5,
            label=curve.legend,
            zorder=2 + len(drawn) - place,
        )
    axes.plot(
        front.x,
        front.y,
        "s",
        markersize=9,
        markerfacecolor="none",
        color="0.3",
        label=front.name,
        zorder=len(drawn) + 3,
    )
    for place, point in enumerate(best.points):
        per_gpu = point.output_tok_per_s_interval
        axes.plot(
            [1 / point.tpot_s] * 2,
            [per_gpu.low / best.layout.num_gpus, per_gpu.high / best.layout.num_gpus],
            color="0.6",
            linewidth=1,
            label=None if place else f"where {100 * COVERAGE:.0f} % of measurements of the first should lie",
        )
    if measured := measured_points(ranking):
        axes.plot(*zip(*measured, strict=True), "x", color="black", label="measured", zorder=len(drawn) + 4)
    axes.set_xlabel("output tokens per second per user")
    axes.set_ylabel("output tokens per second per GPU")
    axes.set_title(title(ranking))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    buffer = io.BytesIO()
    kind = path.suffix.lower()
    figure.savefig(buffer, format="png" if kind == ".png" else "svg", dpi=150)
    content = buffer.getvalue() if kind != ".html" else _page(ranking, buffer.getvalue().decode())
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UserError(f"--plot {path} cannot be written: {error.strerror}") from None


def measured_points(ranking: Ranking) -> list[tuple[float, float]]:
    """Tokens per second per user and per GPU of each; a throughput that was not told is what its times make of it."""
    if ranking.evidence is None:
        return []
    tokens = ranking.workload.output_tokens
    found = []
    for each in ranking.evidence.compared:
        seen = each.measured
        ttft_s = each.ttft_s if seen.ttft_s is None else seen.ttft_s
        rate = seen.output_tok_per_s or seen.concurrency * tokens / (ttft_s + (tokens - 1) * seen.tpot_s)
        found.append((1 / seen.tpot_s, rate / seen.layout.num_gpus))
    return found


def title(ranking: Ranking) -> str:
    load = ranking.workload
    return (
        f"predicted: {ranking.model.name} on {ranking.cluster.name}, SGLang {ranking.version}, "
        f"{load.input_tokens} tokens in, {load.output_tokens} out"
    )


def _page(ranking: Ranking, svg: str) -> bytes:
    drawing = svg[svg.index("<svg") :]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title(ranking))}</title></head>\n<body>{drawing}</body></html>\n"
    ).encode()
