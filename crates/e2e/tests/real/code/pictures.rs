//! Results that a run returns besides its output: values, displays and figures. Their position in the output
//! is recorded.

use api::code::{Bundle, RunResult};
use e2e::room::{Ran, Room, in_a_room};

/// Base64 encoding of the bytes with which every PNG file begins.
const PNG: &str = "iVBORw0KGgo";

#[test]
#[ignore = "starts real sandboxes"]
fn values_displays_and_figures_come_in_order_with_the_output() {
    in_a_room(async |_, room| {
        values(room).await;
        order(room).await;
        libraries(room).await;
        figures(room).await;
        letters(room).await;
        sizes(room).await;
    });
}

fn png(bundle: &Bundle) {
    let content = bundle.data["image/png"].as_str().unwrap();
    assert!(content.starts_with(PNG) && content.len() > 80, "{content}");
}

fn names(ran: &Ran) -> Vec<&str> {
    ran.shown().iter().filter_map(|bundle| bundle.name.as_deref()).collect()
}

async fn values(room: &Room) {
    for (code, value) in [
        ("6 * 7", "42"),
        ("x = 1\nx + 1", "2"),
        ("'text'", "'text'"),
        ("{'a': [1, 2]}", "{'a': [1, 2]}"),
        ("import numpy as np\nnp.arange(3)", "array([0, 1, 2])"),
        ("from __future__ import annotations\nf'{1 + 1}'", "'2'"),
    ] {
        let ran = room.run(code).await.well();
        assert_eq!((ran.value(), ran.results.len(), ran.stdout.as_str()), (value, 1, ""), "{code}");
    }
    for code in ["None", "1;", "x = 1", "print(1) or None", "def f(): return 1", "for n in range(2): n"] {
        assert!(room.run(code).await.well().results.is_empty(), "{code}");
    }
    // If a value's `__repr__` raises an exception, the run reports an error and does not crash.
    let ran = room.run("class Bad:\n    def __repr__(self): raise ValueError('no')\nBad()").await;
    assert!(ran.stderr.contains("ValueError: no"), "{ran:?}");
}

/// Checks that each result records how many output bytes were written before it.
async fn order(room: &Room) {
    let code = "import sys\nprint('one')\ndisplay(1)\nsys.stdout.write('two')\ndisplay(2)\nprint('err', file=sys.stderr)\n\
                import os\nos.write(1, b'raw')\ndisplay(3)\n4";
    let ran = room.run(code).await.well();
    let places: Vec<_> = ran.results.iter().map(|line| (line.stdout, line.stderr)).collect();
    assert_eq!(places, [(4, 0), (7, 0), (10, 4), (10, 4)], "{ran:?}");
    let shown: Vec<_> = ran.shown().iter().map(|bundle| bundle.data["text/plain"].clone()).collect();
    assert_eq!(shown, ["1", "2", "3", "4"]);
    assert!(matches!(ran.results[3].result, RunResult::Value(_)));
    assert_eq!(ran.stdout, "one\ntworaw");
    let code = "from IPython.display import clear_output, update_display, HTML\ndisplay(HTML('<b>'), display_id='mine')\n\
                update_display('new', display_id='mine')\nclear_output(wait=True)";
    let ran = room.run(code).await.well();
    let shown = ran.shown();
    assert_eq!((shown[0].id.as_deref(), shown[0].update, shown[1].update), (Some("mine"), false, true));
    assert_eq!(shown[0].data["text/html"], "<b>");
    assert_eq!(ran.results[2].result, RunResult::Clear { wait: true });
}

/// Checks that tables, images and charts from common libraries are captured.
async fn libraries(room: &Room) {
    let ran =
        room.run("import pandas as pd\npd.DataFrame({'city': ['Bern', '東京'], 'n': [1, 2]})").await.well();
    let data = &ran.shown()[0].data;
    assert!(data["text/html"].as_str().unwrap().contains("<td>東京</td>"), "{data:?}");
    assert!(data["text/plain"].as_str().unwrap().contains("Bern"), "{data:?}");
    let code =
        "from PIL import Image\nimage = Image.new('RGB', (9, 9), 'red')\nimage.show()\ndisplay(image)\nimage";
    let ran = room.run(code).await.well();
    assert_eq!(ran.shown().len(), 3, "{ran:?}");
    ran.shown().into_iter().for_each(png);
    for code in ["figure", "figure.show()"] {
        let ran = room
            .run(&format!("import plotly.express as px\nfigure = px.bar(x=['a'], y=[3])\n{code}"))
            .await
            .well();
        let shown = ran.shown();
        assert_eq!(shown.len(), 1, "{code}: {ran:?}");
        assert_eq!(shown[0].data["application/vnd.plotly.v1+json"]["data"][0]["type"], "bar");
        assert!(
            shown[0].data["text/html"].as_str().unwrap().contains("plotly"),
            "for whoever has no such renderer"
        );
    }
    let code = "from IPython.display import Latex, SVG, JSON, Markdown\n\
                display(Latex('$x$'), SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'), JSON({'a': 1}), Markdown('# m'))";
    let ran = room.run(code).await.well();
    let kinds: Vec<_> = ran.shown().iter().map(|bundle| bundle.data.keys().next().unwrap().clone()).collect();
    assert_eq!(kinds, ["text/latex", "image/svg+xml", "application/json", "text/markdown"]);
    assert_eq!(ran.shown()[2].data["application/json"]["a"], 1);
}

/// Checks requirement A5.12: each figure is captured once, even if it is not saved, and figures are named in
/// order.
async fn figures(room: &Room) {
    let two = "import matplotlib.pyplot as plt\nfor n in (1, 2):\n    plt.figure()\n    plt.plot([1, n])\n    plt.title(f'plot {n}')";
    let ran = room.run(two).await.well();
    assert_eq!(names(&ran), ["figure_1.png", "figure_2.png"]);
    ran.shown().into_iter().for_each(png);
    let titles: Vec<_> = ran.shown().iter().map(|one| one.chart.as_ref().unwrap()["title"].clone()).collect();
    assert_eq!(titles, ["plot 1", "plot 2"]);
    assert_eq!(ran.stderr, "");
    // The next run starts without figures, because no figure of an earlier run is kept in memory.
    let ran = room.run("import matplotlib.pyplot as plt\nprint(plt.get_fignums())").await.well();
    assert_eq!((names(&ran).len(), ran.stdout.as_str()), (0, "[]\n"));
    // A figure that the code saves is still displayed. A figure that the code closes is not.
    let saved = format!("{two}\nplt.savefig('saved.png')\nplt.close(1)");
    let ran = room.run(&saved).await.well();
    assert_eq!(names(&ran), ["figure_1.png"]);
    assert_eq!(ran.shown()[0].chart.as_ref().unwrap()["title"], "plot 2");
    assert_eq!(room.sh("head -c 8 saved.png | tail -c 7 | head -c 3").await, "PNG");
    // A call to `show` displays the figure at that point, and only once.
    let code = "import matplotlib.pyplot as plt\nprint('before')\nplt.plot([1, 2])\nplt.show()\nprint('after')\nplt.show()";
    let ran = room.run(code).await.well();
    assert_eq!((names(&ran), ran.results[0].stdout), (vec!["figure_1.png"], 7), "{ran:?}");
    let code = "import matplotlib.pyplot as plt\nfigure, axes = plt.subplots()\naxes.plot([1])\nfigure";
    let ran = room.run(code).await.well();
    assert_eq!(
        (names(&ran), ran.results.len()),
        (vec!["figure_1.png"], 1),
        "as a value it is not shown again: {ran:?}"
    );
    // A failing run still displays the figures that it drew. A figure that cannot be rendered does not fail
    // the run.
    let ran = room.run("import matplotlib.pyplot as plt\nplt.plot([1])\n1/0").await;
    assert_eq!(
        (ran.code(), names(&ran), ran.error().name.as_str()),
        (1, vec!["figure_1.png"], "ZeroDivisionError")
    );
    let code = "import matplotlib.pyplot as plt\nplt.title('$\\\\frac{$')\nplt.plot([1]);";
    let ran = room.run(code).await.well();
    assert!(names(&ran).is_empty() && ran.stderr.contains("could not be drawn"), "{ran:?}");
    let ran = room.run("import seaborn as sns\nimport numpy as np\nsns.heatmap(np.eye(3));").await.well();
    assert_eq!(names(&ran), ["figure_1.png"]);
}

/// Checks that CJK, Arabic and emoji labels are rendered. Matplotlib would warn about each missing glyph.
async fn letters(room: &Room) {
    let code = "import matplotlib.pyplot as plt\nplt.plot([1, 2], label='العربية')\nplt.title('漢字 かな 한국어 😀📊')\nplt.xlabel('Ωж ∑√')\nplt.legend();";
    let ran = room.run(code).await.well();
    assert_eq!((ran.stderr.as_str(), ran.shown().len()), ("", 1));
    // The image already contains the font cache, so no run builds it.
    assert_eq!(room.sh("ls -A ~/.cache ~/.config 2>/dev/null | wc -l").await, "0");
}

/// Checks that an oversized result is replaced by its size and types, and that the run continues.
async fn sizes(room: &Room) {
    let ran = room
        .run("from IPython.display import HTML\ndisplay(HTML('x' * 9_000_000))\nprint('on')\n7")
        .await
        .well();
    assert_eq!((ran.stdout.as_str(), ran.value()), ("on\n", "7"));
    let RunResult::Omitted { bytes, types } = &ran.results[0].result else { panic!("{ran:?}") };
    assert!(*bytes > 9_000_000 && types.contains(&"text/html".to_owned()), "{types:?}");
    let ran = room.run("for n in range(6):\n    display('y' * 7_000_000)\nprint('on')").await.well();
    assert_eq!(ran.stdout, "on\n");
    let omitted = ran.results.iter().filter(|line| matches!(line.result, RunResult::Omitted { .. })).count();
    assert_eq!((ran.results.len(), omitted), (6, 2), "all together have a bound");
    assert!(ran.end.results_bytes < 32_000_000);
}
