"""Tests of running code: results, errors, contexts and artifacts."""

from __future__ import annotations

import base64

from conftest import Way

FIGURE = """
import matplotlib.pyplot as plt
plt.plot([1, 2, 3])
print("drawn")
{"a": 1}
"""


async def test_code_shows_its_value_and_its_figures(way: Way) -> None:
    async with way.sandbox("interpreter") as sandbox:
        heard: list[object] = []
        ran = await way.do(sandbox.run_code(FIGURE, on_result=heard.append, on_stdout=heard.append))
        assert (ran.text, ran.stdout, ran.exit_code, ran.error) == ("{'a': 1}", "drawn\n", 0, None)
        figure = next(one for one in ran.results if one.png)
        assert base64.b64decode(figure.png)[:4] == b"\x89PNG" and figure.name == "figure_1.png"
        assert heard[0] == "drawn\n" and set(map(id, ran.results)) == set(map(id, heard[1:]))
        data, _ = figure._repr_mimebundle_()
        assert data["image/png"] == figure.png
        assert ran.text == "{'a': 1}" and ran.figures == [figure]


async def test_code_that_raises_is_told_with_its_traceback(way: Way) -> None:
    async with way.sandbox("interpreter") as sandbox:
        ran = await way.do(sandbox.run_code("x = 1\nraise ValueError('no')"))
        assert (ran.error.name, ran.error.message, ran.exit_code) == ("ValueError", "no", 1)
        assert ran.error.frames[-1]["line"] == 2 and ran.stderr.endswith("ValueError: no\n")


async def test_a_context_keeps_its_variables_until_it_is_restarted(way: Way) -> None:
    async with way.sandbox("interpreter") as sandbox:
        context = await way.do(sandbox.contexts.create())
        await way.do(sandbox.run_code("a = 41", context=context))
        assert (await way.do(sandbox.run_code("a + 1", context=context.id))).text == "42"
        assert "a" in [one.name for one in await way.do(sandbox.contexts.variables(context))]
        assert (await way.do(sandbox.contexts.restart(context))).restarts == 1
        assert (await way.do(sandbox.run_code("a", context=context))).error.name == "NameError"
        assert (await way.do(sandbox.contexts.interrupt(context))).id == context.id
        await way.do(sandbox.contexts.remove(context))
        assert await way.do(sandbox.contexts.list()) == []


async def test_other_languages_run_too(way: Way) -> None:
    async with way.sandbox("interpreter") as sandbox:
        assert (await way.do(sandbox.run_code("echo $((6 * 7))", language="bash"))).stdout == "42\n"


async def test_artifacts_outlive_their_sandbox(way: Way) -> None:
    async with way.sandbox("interpreter") as sandbox:
        ran = await way.do(
            sandbox.run_code("import os; os.mkdir('out'); open('out/a.csv', 'w').write('1,2')", artifacts=["out"])
        )
        (kept,) = await way.do(sandbox.artifacts.list(ran.id))
        assert (kept.name, kept.mime, kept.size_bytes) == ("a.csv", "text/csv", 3)
    assert await way.do(sandbox.artifacts.download(kept)) == b"1,2"
    assert await way.do(sandbox.artifacts.list()) == [kept]
