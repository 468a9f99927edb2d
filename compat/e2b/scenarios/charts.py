"""What code draws: pictures, tables, and the data of charts."""

from __future__ import annotations

import base64
from typing import Any

from scenario import Stage, now, scenario

PNG = b"\x89PNG\r\n\x1a\n"
PLOT = "import matplotlib.pyplot as plt\n"


async def drawn(stage: Stage, code: str) -> Any:
    """The one result that code has."""
    ran = await now((await stage.interpreter()).run_code(PLOT + code))
    assert ran.error is None, ran.error.traceback
    assert len(ran.results) == 1, ran.results
    return ran.results[0]


@scenario(code=True)
async def chart_is_a_picture(stage: Stage) -> None:
    result = await drawn(stage, "plt.plot([1, 3, 2]); plt.show()")
    assert base64.b64decode(result.png).startswith(PNG)
    assert {"png", "chart"} <= set(result.formats()), result.formats()
    assert result.is_main_result is False


@scenario(code=True)
async def chart_line(stage: Stage) -> None:
    code = "plt.plot([1, 2, 3], [4, 6, 5], label='way'); plt.title('T'); plt.xlabel('time (s)'); plt.ylabel('way (m)'); plt.show()"
    chart = (await drawn(stage, code)).chart
    assert (chart.type.value, chart.title) == ("line", "T"), chart
    assert (chart.x_label, chart.y_label, chart.x_unit, chart.y_unit) == ("time (s)", "way (m)", "s", "m"), vars(chart)
    assert (chart.x_scale.value, chart.y_scale.value) == ("linear", "linear")
    (line,) = chart.elements
    assert line.label == "way" and [tuple(point) for point in line.points] == [(1, 4), (2, 6), (3, 5)], vars(line)


@scenario(code=True)
async def chart_bar(stage: Stage) -> None:
    chart = (await drawn(stage, "plt.bar(['a', 'b'], [3, 5]); plt.title('B'); plt.show()")).chart
    assert (chart.type.value, chart.title) == ("bar", "B"), chart
    assert [(one.label, float(one.value)) for one in chart.elements] == [("a", 3), ("b", 5)], chart.elements


@scenario(code=True)
async def chart_pie(stage: Stage) -> None:
    chart = (await drawn(stage, "plt.pie([1, 3], labels=['a', 'b']); plt.title('P'); plt.show()")).chart
    assert (chart.type.value, chart.title) == ("pie", "P"), chart
    assert [(one.label, round(one.angle)) for one in chart.elements] == [("a", 90), ("b", 270)], chart.elements


@scenario(code=True)
async def chart_table(stage: Stage) -> None:
    ran = await now((await stage.interpreter()).run_code("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})"))
    (table,) = ran.results
    assert "<table" in table.html and "<td>x</td>" in table.html, table.html
    assert table.is_main_result and "a" in table.text, table.text
    # What it holds is told as text and as HTML.
    assert table.data is None, table.data
    stage.differs("Sandbox.run_code", "results have no `data`: tables are returned as `text` and `html`")


@scenario(code=True)
async def chart_many_in_one_run(stage: Stage) -> None:
    code = PLOT + "for n in range(3):\n    plt.plot([n, 1]); plt.show()\n'last'"
    ran = await now((await stage.interpreter()).run_code(code))
    assert [bool(one.png) for one in ran.results] == [True, True, True, False], ran.results
    assert ran.text == "last", ran.text


@scenario(code=True)
async def chart_rich_results(stage: Stage) -> None:
    code = (
        "from IPython.display import display, HTML, Markdown, JSON, Latex, SVG\n"
        "svg = SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')\n"
        "for one in (HTML('<b>h</b>'), Markdown('# m'), JSON({'j': 1}), Latex('$l$'), svg):\n"
        "    display(one)"
    )
    ran = await now((await stage.interpreter()).run_code(code))
    assert ran.error is None, ran.error
    html, markdown, json, latex, svg = ran.results
    assert (html.html, markdown.markdown, json.json, latex.latex) == ("<b>h</b>", "# m", {"j": 1}, "$l$"), ran.results
    assert "<svg" in svg.svg, svg.svg
