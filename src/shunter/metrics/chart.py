"""Charts of several series: in the terminal, by plotille; as PNG or SVG, by matplotlib (the extra `plot`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from shunter.errors import ConfigError
from shunter.metrics.series import Bucket, Series, decimate
from shunter.terminal import clean, coloured, format_duration

STEP, TIME = "step", "time"
#: Colours of the lines, as terminals number them.
_COLOURS = ("36", "33", "35", "32", "31", "34")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BLANK, _DOTS = 0x2800, 0x28FF
_WIDEST_LABEL = 10
#: Points of a line in an image file.
_PICTURE_POINTS = 2000
#: Values farther from 0 are not drawn: the difference of two of them may overflow a float.
_GREATEST = 1e300


@dataclass
class Line:
    """A line of a chart: what the legend says, and the values."""

    label: str
    series: Series


@dataclass
class ChartAxes:
    """What the axes show.

    Args:
        by: STEP, or TIME since the first value of each line.
        logarithmic: whether the values' axis is; values that are not positive are then left out.
    """

    by: str = STEP
    logarithmic: bool = False

    def buckets(self, line: Line, count: int) -> list[Bucket]:
        """Return the values of a line at their positions on the axes."""
        origin = 0.0
        if self.by == TIME:
            origin = min((moment for moment in line.series.times if not math.isnan(moment)), default=0.0)
        found = []
        for bucket in decimate(line.series, count, by=self.by):
            bucket.x -= origin
            if self.logarithmic:
                if bucket.low <= 0:
                    continue
                bucket.low, bucket.high, bucket.last = map(math.log10, (bucket.low, bucket.high, bucket.last))
            if bucket.low >= -_GREATEST and bucket.high <= _GREATEST:
                found.append(bucket)
        return found

    def value_label(self, value: float) -> str:
        """Return a position on the y axis as text."""
        return short_number(10**value if self.logarithmic else value)

    def place_label(self, place: float) -> str:
        """Return a position on the x axis as text."""
        return format_duration(place) if self.by == TIME else short_number(place)


def short_number(value: float) -> str:
    """Return a number in at most nine characters."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e7:
        return str(int(value))
    return f"{value:.4g}"


def draw(
    lines: Sequence[Line],
    axes: ChartAxes,
    width: int,
    height: int,
    *,
    has_colours: bool,
    is_unicode: bool = True,
) -> list[str]:
    """Return a chart as lines of text.

    Each line of the chart ends in its letter, which the legend explains.

    Args:
        lines: what to draw.
        axes: what the axes show.
        width: columns of the whole chart.
        height: lines of the whole chart.
        has_colours: whether the terminal shows colours.
        is_unicode: whether it shows Braille patterns; otherwise asterisks stand for them.

    Raises:
        ConfigError: plotille is not installed.
    """
    try:
        from plotille import Canvas
    except ImportError:
        raise ConfigError("plots in the terminal need plotille", hint="pip install plotille") from None
    columns = max(width - _WIDEST_LABEL - 2, 10)
    rows = max(height - 3 - len(lines), 4)
    data = [axes.buckets(line, 2 * columns) for line in lines]
    everything = [bucket for buckets in data for bucket in buckets]
    if not everything:
        return ["no values that can be drawn"]
    left, right = min(b.x for b in everything), max(b.x for b in everything)
    low, high = min(b.low for b in everything), max(b.high for b in everything)
    bounds = (left, low, *(_above(left, right), _above(low, high)))
    dots = [[0] * columns for _ in range(rows)]
    inks = [[-1] * columns for _ in range(rows)]
    for number, buckets in enumerate(data):
        canvas = Canvas(columns, rows, *bounds)
        before = None
        for bucket in buckets:
            canvas.line(bucket.x, bucket.low, bucket.x, bucket.high)
            if before is not None:
                canvas.line(before.x, before.last, bucket.x, bucket.last)
            before = bucket
        for row, text in enumerate(canvas.plot().split("\n")[:rows]):
            for column, character in enumerate(text[:columns]):
                if _BLANK < ord(character) <= _DOTS:
                    dots[row][column] |= ord(character) - _BLANK
                    inks[row][column] = number
    cells = [[_cell(bits, is_unicode) for bits in row] for row in dots]
    for number, buckets in enumerate(data):
        if buckets and len(lines) > 1:
            column = int((buckets[-1].x - bounds[0]) / (bounds[2] - bounds[0]) * (columns - 1))
            share = (buckets[-1].last - bounds[1]) / (bounds[3] - bounds[1])
            row = rows - 1 - int(share * (rows - 1) + 0.5)
            cells[row][column], inks[row][column] = _LETTERS[number % len(_LETTERS)], number
    shown = [
        f"{label:>{_WIDEST_LABEL}} {'│' if is_unicode else '|'}{_inked(row, ink, has_colours)}"
        for label, row, ink in zip(_labels(axes, bounds, rows), cells, inks, strict=True)
    ]
    first, last = axes.place_label(left), axes.place_label(right)
    corner = " " * _WIDEST_LABEL + (" └" if is_unicode else " +")
    shown.append(corner + ("─" if is_unicode else "-") * columns)
    name = {STEP: "step", TIME: "time since the first value"}[axes.by]
    shown.append(" " * (_WIDEST_LABEL + 2) + first + name.center(columns - len(first) - len(last)) + last)
    return shown + _legend(lines, has_colours)


def _above(low: float, high: float) -> float:
    """Return the upper end of an axis: above the lower one even if all values are equal."""
    return high if high > low else low + (abs(low) or 1.0)


def _labels(axes: ChartAxes, bounds: tuple[float, ...], rows: int) -> list[str]:
    labels = [""] * rows
    for row in {0, rows // 2, rows - 1}:
        share = (rows - 1 - row) / max(rows - 1, 1)
        labels[row] = axes.value_label(bounds[1] + share * (bounds[3] - bounds[1]))
    return labels


def _cell(bits: int, is_unicode: bool) -> str:
    if not bits:
        return " "
    return chr(_BLANK + bits) if is_unicode else "*"


def _inked(cells: Sequence[str], inks: Sequence[int], has_colours: bool) -> str:
    text = ""
    for ink, group in groupby(zip(inks, cells, strict=True), key=itemgetter(0)):
        part = "".join(cell for _, cell in group)
        text += coloured(part, _COLOURS[ink % len(_COLOURS)]) if has_colours and ink >= 0 else part
    return text.rstrip()


def _legend(lines: Sequence[Line], has_colours: bool) -> list[str]:
    shown = []
    for number, line in enumerate(lines):
        series = line.series
        letter = _LETTERS[number % len(_LETTERS)]
        if has_colours:
            letter = coloured(letter, _COLOURS[number % len(_COLOURS)])
        facts = f"last {short_number(series.last)}, min {short_number(series.least)}"
        facts += f", max {short_number(series.greatest)}, {series.count} values"
        shown.append(f"{letter} {clean(line.label)}: {facts}")
    return shown


def save(lines: Sequence[Line], axes: ChartAxes, path: str, title: str) -> None:
    """Write a chart to an image file; the suffix of the path selects the format.

    Raises:
        ConfigError: matplotlib is not installed, or it does not know the format.
        OSError: the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "writing an image file needs matplotlib", hint="pip install 'shunter[plot]'"
        ) from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    plot = figure.add_subplot()
    linear = ChartAxes(axes.by)
    for line in lines:
        buckets = linear.buckets(line, _PICTURE_POINTS)
        places = [bucket.x for bucket in buckets]
        (drawn,) = plot.plot(places, [bucket.last for bucket in buckets], label=line.label, linewidth=1.2)
        if any(bucket.low < bucket.high for bucket in buckets):
            lows, highs = [bucket.low for bucket in buckets], [bucket.high for bucket in buckets]
            plot.fill_between(places, lows, highs, color=drawn.get_color(), alpha=0.2, linewidth=0)
    if axes.logarithmic:
        plot.set_yscale("log")
    plot.set_title(title)
    plot.set_xlabel("step" if axes.by == STEP else "seconds since the first value")
    plot.grid(visible=True, alpha=0.3)
    plot.legend()
    try:
        figure.savefig(path)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", hint="Use a file name that ends in .png or .svg.") from None
