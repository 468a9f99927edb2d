"""The data behind a figure, read from its artists: what a picture cannot say to a program.

Shapes are those that clients of code interpreters know: line, scatter, bar, pie, box_and_whisker, superchart, unknown.
"""

import math
import re
import sys
from itertools import pairwise

MOST_POINTS = 20_000
UNIT = re.compile(r"[(\[]([^()\[\]]+)[)\]]\s*$")


def of(figure):
    """The chart of a figure, or None where there is none or where reading it fails."""
    try:
        axes = [one for one in figure.axes if one.get_visible() and not is_colorbar(one)]
        with_data = [one for one in axes if one.has_data()] or axes[:1]
        if not with_data:
            return None
        parts = [chart(one) for one in with_data]
        if len(parts) == 1:
            whole = parts[0]
            whole["title"] = whole["title"] or suptitle(figure)
        else:
            whole = {"type": "superchart", "title": suptitle(figure), "elements": parts}
        return bounded(whole)
    except Exception:  # noqa: BLE001
        return None


def is_colorbar(axes):
    return axes.get_label() == "<colorbar>" or getattr(axes, "_colorbar", None) is not None


def suptitle(figure):
    text = getattr(figure, "_suptitle", None)
    return (text.get_text() or None) if text is not None else None


def chart(axes):
    """One pair of axes. What is drawn decides which chart it is."""
    from bellglass_interpreter import boxes

    if axes.name != "rectilinear":
        return unknown(axes)
    wedges = [patch for patch in axes.patches if type(patch).__name__ == "Wedge"]
    if wedges:
        return {"type": "pie", "title": title(axes), "elements": [wedge(one) for one in wedges]}
    bars = [one for one in axes.containers if type(one).__name__ == "BarContainer" and len(one)]
    if bars:
        return bar_chart(axes, bars)
    found = boxes.find(axes)
    if found:
        return {"type": "box_and_whisker", **labels(axes, found["horizontal"]), "elements": found["elements"]}
    series = all_series(axes)
    return point_chart(axes, series) if series else unknown(axes)


def unknown(axes):
    return {"type": "unknown", "title": title(axes), "elements": []}


def title(axes):
    return next((text for text in (axes.get_title(where) for where in ("center", "left", "right")) if text), None)


def labels(axes, swapped=False):
    """Title, labels and units. Charts that lie on their side are told as if they stood."""
    x, y = axes.get_xlabel() or None, axes.get_ylabel() or None
    if swapped:
        x, y = y, x
    return {"title": title(axes), "x_label": x, "y_label": y, "x_unit": unit(x), "y_unit": unit(y)}


def unit(label):
    match = UNIT.search(label or "")
    return match.group(1).strip() if match else None


def wedge(patch):
    return {"label": own_label(patch), "angle": number(patch.theta2 - patch.theta1), "radius": number(patch.r)}


def own_label(artist):
    """The label the user gave. Those that begin with an underscore are made up by the library."""
    label = str(artist.get_label() or "")
    return "" if label.startswith("_") else label


def bar_chart(axes, containers):
    """All bars, by group. Heights say nothing about where a bar stands, so its label is that of the tick below it."""
    horizontal = containers[0].orientation == "horizontal"
    axis = axes.yaxis if horizontal else axes.xaxis
    names = tick_names(axis)
    elements = []
    for container in containers:
        group = own_label(container)
        edges = [side(patch, horizontal) for patch in container.patches]
        touching = len(edges) > 1 and all(abs(a[1] - b[0]) < 1e-9 * max(1, abs(b[0])) for a, b in pairwise(edges))
        for patch, (start, end) in zip(container.patches, edges):
            value = patch.get_width() if horizontal else patch.get_height()
            elements.append(
                {"label": bar_label(axis, names, start, end, touching), "value": number(value), "group": group}
            )
    return {"type": "bar", **labels(axes, horizontal), "elements": elements}


def side(patch, horizontal):
    """From where to where a bar goes on the axis it stands on."""
    start, length = (patch.get_y(), patch.get_height()) if horizontal else (patch.get_x(), patch.get_width())
    return start, start + length


def bar_label(axis, names, start, end, touching):
    middle = (start + end) / 2
    if is_date(axis):
        return str(date(middle, axis))
    if names["fixed"] and names["at"]:
        nearest = min(names["at"], key=lambda at: abs(at - middle))
        if abs(nearest - middle) <= 0.5:
            return names["at"][nearest]
    return f"{start:g} to {end:g}" if touching else f"{middle:g}"


def tick_names(axis):
    """Texts of ticks by their place; `fixed` where the user or categories named them."""
    from matplotlib.ticker import FixedFormatter, FuncFormatter

    places = list(axis.get_majorticklocs())
    formatter = axis.get_major_formatter()
    texts = formatter.format_ticks(places)
    fixed = is_category(axis) or isinstance(formatter, (FixedFormatter, FuncFormatter))
    return {"fixed": fixed, "at": {float(place): str(text) for place, text in zip(places, texts) if text}}


def converter(axis):
    return axis.get_converter() if hasattr(axis, "get_converter") else axis.converter


def is_category(axis):
    return "StrCategoryConverter" in type(converter(axis)).__name__


def is_date(axis):
    return "Date" in type(converter(axis)).__name__ or period(axis) is not None


def period(axis):
    """How long a step is on an axis that pandas has made of periods, or None on any other."""
    return getattr(axis.axes, "freq", None) if axis is axis.axes.xaxis else None


def all_series(axes):
    """Lines and clouds of points: label, x, y, and whether the points are joined."""
    found = []
    for line in axes.lines:
        if line.get_visible() and line.get_transform() == axes.transData and len(line.get_xdata()):
            joined = line.get_linestyle() not in ("None", "none", "", " ")
            found.append((own_label(line), line.get_xdata(orig=True), line.get_ydata(orig=True), joined))
    for cloud in axes.collections:
        if type(cloud).__name__ == "PathCollection" and cloud.get_visible():
            offsets = cloud.get_offsets()
            if len(offsets):
                found.append((own_label(cloud), offsets[:, 0], offsets[:, 1], False))
    return found


def point_chart(axes, series):
    """A line chart if most points are joined, else a scatter plot. Both tell of everything drawn."""
    joined = sum(len(x) for _, x, _, lined in series if lined)
    loose = sum(len(x) for _, x, _, lined in series if not lined)
    elements = [
        {"label": label, "points": [[a, b] for a, b in zip(values(x, axes.xaxis), values(y, axes.yaxis))]}
        for label, x, y, _ in series
    ]
    return {
        "type": "line" if joined >= loose else "scatter",
        **labels(axes),
        **scale("x", axes.xaxis, elements, 0),
        **scale("y", axes.yaxis, elements, 1),
        "elements": elements,
    }


def scale(name, axis, elements, index):
    first = next(
        (point[index] for element in elements for point in element["points"] if point[index] is not None), None
    )
    dates = is_date(axis) or (isinstance(first, str) and not is_category(axis))
    kind = "datetime" if dates else "categorical" if is_category(axis) else axis.get_scale()
    places = list(axis.get_majorticklocs())
    texts = axis.get_major_formatter().format_ticks(places)
    return {
        f"{name}_ticks": [date(place, axis) if is_date(axis) else number(place) for place in places],
        f"{name}_tick_labels": [str(text) for text in texts],
        f"{name}_scale": kind,
    }


def values(data, axis):
    """Coordinates as JSON has them: numbers, names, or moments."""
    data = list(data)[:MOST_POINTS]
    if is_date(axis):
        return [moment(item) if not is_number(item) else date(item, axis) for item in data]
    if is_category(axis):
        names = {place: name for name, place in (getattr(axis.units, "_mapping", None) or {}).items()}
        return [item if isinstance(item, str) else names.get(item, number(item)) for item in data]
    return [number(item) if is_number(item) else moment(item) for item in data]


def is_number(item):
    return isinstance(item, (int, float)) or hasattr(item, "__float__")


def number(item):
    """A finite number, or None. Masked points are such too."""
    try:
        value = float(item)
    except (TypeError, ValueError):
        return None
    if not math.isfinite(value):
        return None
    return int(value) if isinstance(item, int) and not isinstance(item, bool) else value


def date(place, axis):
    """A place on an axis of dates as a moment."""
    try:
        step = period(axis)
        if step is not None:
            return moment(sys.modules["pandas"].Period(ordinal=int(place), freq=step))
        return sys.modules["matplotlib.dates"].num2date(float(place)).replace(tzinfo=None).isoformat()
    except (ValueError, OverflowError, TypeError):
        return None


def moment(item):
    """What a user put on an axis, as a text that machines read."""
    if hasattr(item, "to_timestamp"):
        item = item.to_timestamp()
    if hasattr(item, "isoformat"):
        return item.isoformat()
    text = str(item)
    return None if text in ("NaT", "None", "nan", "--") else text


def bounded(whole):
    """Leaves out points beyond the most that are sent, and says so."""
    left = MOST_POINTS
    for part in whole["elements"] if whole["type"] == "superchart" else [whole]:
        kept = []
        for element in part["elements"]:
            count = len(element.get("points") or element.get("outliers") or (0,))
            if left <= 0 or (count > left and "points" not in element):
                whole["truncated"] = part["truncated"] = True
                break
            if count > left or count >= MOST_POINTS:
                element["points"] = element["points"][:left]
                whole["truncated"] = part["truncated"] = True
            left -= count
            kept.append(element)
        part["elements"] = kept
    return whole
