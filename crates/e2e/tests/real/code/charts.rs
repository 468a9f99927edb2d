//! Charts that are returned as data, because a program cannot read a chart's contents from an image.

use e2e::room::in_a_room;
use serde_json::{Value, json};

/// The title of each chart, with Python code that draws the chart on `axes`.
const DRAWINGS: [(&str, &str); 7] = [
    (
        "line",
        "axes.plot([1, 2, 3], [1, 4, 9], label='squares')\naxes.plot([1, 2], [5, float('nan')], label='other')",
    ),
    ("scatter", "axes.scatter([1, 2], [3, 4], label='dots')"),
    ("bar", "axes.bar(['Bern', 'Oslo'], [134, 709], label='people')"),
    ("lying", "axes.barh(['Bern', 'Oslo'], [134, 709])"),
    ("pie", "axes.pie([1, 3], labels=['small', 'large'])"),
    ("box", "axes.boxplot([[1, 2, 3, 4, 20], [2, 3, 4]])"),
    ("dates", "import datetime\naxes.plot([datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)], [1, 2])"),
];

#[test]
#[ignore = "starts real sandboxes"]
fn charts_are_told_as_data_with_titles_labels_and_units() {
    in_a_room(async |_, room| {
        let mut code = "import matplotlib.pyplot as plt\n".to_owned();
        for (name, drawing) in DRAWINGS {
            code.push_str(&format!(
                "figure, axes = plt.subplots()\n{drawing}\naxes.set_title('{name}')\naxes.set_xlabel('time (s)')\n\
                 axes.set_ylabel('way [m]')\n"
            ));
        }
        code.push_str("figure, both = plt.subplots(1, 2)\nboth[0].plot([1, 2])\nboth[1].bar(['a'], [1])\nfigure.suptitle('both')\n");
        let ran = room.run(&code).await.well();
        assert_eq!(ran.stderr, "");
        let charts: Vec<&Value> = ran.shown().iter().filter_map(|bundle| bundle.chart.as_ref()).collect();
        assert_eq!(charts.len(), DRAWINGS.len() + 1);
        let titles: Vec<_> = charts.iter().map(|chart| chart["title"].as_str().unwrap()).collect();
        assert_eq!(titles, ["line", "scatter", "bar", "lying", "pie", "box", "dates", "both"]);
        points(charts[0], charts[1], charts[6]);
        bars(charts[2], charts[3]);
        others(charts[4], charts[5], charts[7]);
    });
}

fn points(line: &Value, scatter: &Value, dates: &Value) {
    assert_eq!((&line["type"], &scatter["type"]), (&json!("line"), &json!("scatter")));
    for chart in [line, scatter] {
        assert_eq!((&chart["x_label"], &chart["x_unit"]), (&json!("time (s)"), &json!("s")));
        assert_eq!((&chart["y_label"], &chart["y_unit"]), (&json!("way [m]"), &json!("m")));
        assert_eq!((&chart["x_scale"], &chart["y_scale"]), (&json!("linear"), &json!("linear")));
        assert!(chart["x_ticks"].as_array().unwrap().len() > 2, "{chart}");
    }
    assert_eq!(line["elements"][0]["label"], "squares");
    assert_eq!(line["elements"][0]["points"], json!([[1.0, 1.0], [2.0, 4.0], [3.0, 9.0]]));
    assert_eq!(line["elements"][1]["points"], json!([[1.0, 5.0], [2.0, null]]), "JSON has no NaN");
    assert_eq!(scatter["elements"], json!([{ "label": "dots", "points": [[1.0, 3.0], [2.0, 4.0]] }]));
    assert_eq!(dates["x_scale"], "datetime");
    assert!(dates["elements"][0]["points"][1][0].as_str().unwrap().starts_with("2024-01-02"), "{dates}");
}

fn bars(standing: &Value, lying: &Value) {
    for (chart, group) in [(standing, "people"), (lying, "")] {
        assert_eq!(chart["type"], "bar");
        let elements = json!([{ "label": "Bern", "value": 134.0, "group": group }, { "label": "Oslo", "value": 709.0, "group": group }]);
        assert_eq!(chart["elements"], elements);
    }
    assert_eq!(standing["y_unit"], "m");
    // A horizontal bar chart is reported as if it were vertical, so its value axis is the y axis.
    assert_eq!(lying["y_unit"], "s");
}

fn others(pie: &Value, boxes: &Value, both: &Value) {
    assert_eq!(pie["type"], "pie");
    assert_eq!(pie["elements"][0], json!({ "label": "small", "angle": 90.0, "radius": 1 }));
    assert_eq!(boxes["type"], "box_and_whisker");
    let first = &boxes["elements"][0];
    assert_eq!((&first["median"], &first["outliers"]), (&json!(3.0), &json!([20.0])), "{boxes}");
    assert_eq!((&first["first_quartile"], &first["third_quartile"]), (&json!(2.0), &json!(4.0)));
    assert_eq!(boxes["elements"].as_array().unwrap().len(), 2);
    assert_eq!(both["type"], "superchart");
    let kinds: Vec<_> = both["elements"].as_array().unwrap().iter().map(|one| one["type"].clone()).collect();
    assert_eq!(kinds, ["line", "bar"]);
}
