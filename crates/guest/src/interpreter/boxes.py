"""Box plots, which leave nothing behind but lines: found again by how these lie to each other."""

import sys

from bellglass_interpreter import charts

CLOSE = 1e-6
NOTCHED = 11


def find(axes):
    """The boxes of these axes and whether they lie on their side, or None where there are none."""
    lines = [(list(line.get_xdata()), list(line.get_ydata()), line) for line in axes.lines]
    lines = [(x, y, line) for x, y, line in lines if all(map(charts.is_number, [*x, *y]))]
    frames = [*patch_frames(axes), *line_frames(lines)]
    if not frames:
        return None
    for horizontal in (False, True):
        boxes = [box(axes, frame, lines, horizontal) for frame in frames]
        if all(boxes):
            return {"horizontal": horizontal, "elements": boxes}
    return None


def line_frames(lines):
    """Closed lines of the few points that a box or a notched box has."""
    for x, y, _ in lines:
        if len(x) in (5, NOTCHED) and x[0] == x[-1] and y[0] == y[-1]:
            yield x, y


def patch_frames(axes):
    """Boxes that are filled. The last of their points only closes them."""
    for patch in axes.patches:
        if type(patch).__name__ == "PathPatch":
            vertices = patch.get_path().vertices[:-1]
            if len(vertices) in (4, 5, NOTCHED - 1, NOTCHED):
                yield vertices[:, 0].tolist(), vertices[:, 1].tolist()


def box(axes, frame, lines, horizontal):
    """One box: its quartiles from the frame, the rest from lines on its middle. None if it is no such box."""
    across, along = reversed(frame) if horizontal else frame
    left, right, low, high = min(across), max(across), min(along), max(along)
    if len(along) >= NOTCHED - 1:
        # A notch may reach further than the box does.
        low, high = sorted((along[0], along[5]))
    middle, reach = (left + right) / 2, CLOSE * max(1.0, abs(right - left), abs(high - low))
    if horizontal:
        lines = [(y, x, line) for x, y, line in lines]
    near = [(x, y, line) for x, y, line in lines if x and all(left - reach <= at <= right + reach for at in x)]
    centred = [(x, y, line) for x, y, line in near if all(abs(at - middle) <= reach for at in x)]
    ends = [at for x, y, _ in centred if len(x) == 2 and touches(y, low, high, reach) for at in y]
    level = [y[0] for x, y, _ in near if len(x) in (2, 3) and max(x) - min(x) > reach and max(y) - min(y) <= reach]
    medians = [at for at in level if low - reach <= at <= high + reach]
    if not ends or not medians:
        return None
    inside = [at for at in medians if at not in (min(ends), max(ends))] or medians
    outliers = [at for _, y, line in centred if are_outliers(line) for at in y]
    return {
        "label": label(axes.yaxis if horizontal else axes.xaxis, middle),
        "min": charts.number(min(ends)),
        "first_quartile": charts.number(low),
        "median": charts.number(inside[-1]),
        "third_quartile": charts.number(high),
        "max": charts.number(max(ends)),
        "outliers": [charts.number(at) for at in outliers[: charts.MOST_POINTS]],
    }


def are_outliers(line):
    """Whether a line is of loose points, other than the mark of a mean."""
    mean = sys.modules["matplotlib"].rcParams["boxplot.meanprops.marker"]
    return line.get_linestyle() in ("None", "none", "", " ") and line.get_marker() != mean


def touches(ends, low, high, reach):
    """Whether a whisker begins at an edge of the box."""
    return any(abs(at - edge) <= reach for at in ends for edge in (low, high))


def label(axis, middle):
    """The text of the tick that is nearest."""
    named = charts.tick_names(axis)["at"]
    if not named:
        return f"{middle:g}"
    return named[min(named, key=lambda at: abs(at - middle))]
