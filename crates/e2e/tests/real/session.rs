//! Runs a notebook of about thirty cells in a context, and compares their results with the expected results.
//! Then nbconvert executes the same notebook with a Jupyter kernel in the same sandbox, and the results must
//! be the same.

use api::code::{Bundle, Language, RunResult};
use api::exec::Outcome;
use api::limits::Limits;
use e2e::room::{Ran, Room, in_a_room_with, python};
use serde::Deserialize;
use serde_json::{Value, json};

/// A cell of the notebook with its expected results.
#[derive(Deserialize)]
struct Cell {
    source: String,
    code: i32,
    error: Option<String>,
    /// Media types of each displayed result, in order.
    types: Vec<Vec<String>>,
}

/// Jupyter packages that are needed in addition to the packages of the template.
const JUPYTER: [&str; 2] = ["nbconvert", "ipykernel"];
/// Python program that executes the notebook in the working directory and prints the results of each cell.
const CONVERT: &str = r#"
import json, os, subprocess, sys
# The template's choice is for programs without a notebook.
os.environ.pop("MPLBACKEND", None)
done = subprocess.run([sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--allow-errors", "--output", "done.ipynb",
                       "session.ipynb"], capture_output=True, text=True)
if done.returncode:
    raise SystemExit(done.stderr)
told = []
for cell in json.load(open("done.ipynb"))["cells"]:
    outputs = cell["outputs"]
    shown = [sorted(one["data"]) for one in outputs if one["output_type"] in ("display_data", "execute_result")]
    errors = [one["ename"] for one in outputs if one["output_type"] == "error"]
    text = "".join("".join(one["text"]) for one in outputs if one["output_type"] == "stream")
    told.append({"types": shown, "error": (errors or [None])[0], "text": text})
print(json.dumps(told))
"#;

/// Each cell displays results with the same types as in Jupyter, and no glyph is missing.
#[test]
#[ignore = "starts real sandboxes"]
fn a_session_shows_what_a_notebook_shows() {
    let cells: Vec<Cell> = serde_json::from_str(include_str!("session/session.json")).unwrap();
    assert!(cells.len() >= 30);
    let limits = Limits {
        memory_bytes: 2 << 30,
        tmp_bytes: 256 << 20,
        cpu_millis: 2000,
        pids: 512,
        ..Limits::default()
    };
    in_a_room_with(limits, &["python-packages"], async |_, room| {
        let ours = session(room, &cells).await;
        // Skip Jupyter under gVisor, where a kernel takes minutes to start and displays the same results.
        if room.is_container() {
            compare(&cells, &ours, &notebook(room, &cells).await);
        }
    });
}

/// Runs all cells in one context and returns the types that each cell displayed.
async fn session(room: &Room, cells: &[Cell]) -> Vec<Vec<Vec<String>>> {
    let context = room.context(Language::Python).await;
    let mut all = Vec::new();
    for (number, cell) in cells.iter().enumerate() {
        let ran = room.cell(&context, &cell.source).await;
        let place = format!("cell {number}: {:?}: {} {}", cell.source, ran.stdout, ran.stderr);
        assert_eq!(ran.end.outcome, Outcome::Exited { code: cell.code }, "{place}");
        assert!(!ran.stderr.contains("Glyph"), "{place}");
        assert!(!ran.end.state_lost && ran.restarted().is_none(), "{place}");
        let error = ran.results.iter().any(|line| matches!(line.result, RunResult::Error(_)));
        assert_eq!(error.then(|| ran.error().name.clone()), cell.error, "{place}");
        let shown = representations(&ran);
        assert_eq!(shown, cell.types, "{place}");
        all.push(shown);
    }
    let info = room.client.context(&room.id, &context).await.unwrap();
    assert_eq!((info.cells, info.restarts), (cells.len() as u64, 0));
    all
}

fn representations(ran: &Ran) -> Vec<Vec<String>> {
    // Do not count updates, because in a notebook an update replaces an earlier display instead of adding
    // one.
    let shown = ran.shown().into_iter().filter(|bundle: &&Bundle| !bundle.update);
    shown.map(|bundle| bundle.data.keys().cloned().collect()).collect()
}

/// Executes the cells with Jupyter and returns the results of each cell.
async fn notebook(room: &Room, cells: &[Cell]) -> Vec<Value> {
    let cells: Vec<Value> = cells
        .iter()
        .enumerate()
        .map(|(number, cell)| {
            json!({
                "cell_type": "code", "id": format!("c{number}"), "metadata": {}, "outputs": [], "execution_count": null,
                "source": cell.source,
            })
        })
        .collect();
    let kernel = json!({ "name": "python3", "display_name": "Python 3", "language": "python" });
    let notebook =
        json!({ "cells": cells, "metadata": { "kernelspec": kernel }, "nbformat": 4, "nbformat_minor": 5 });
    let text = serde_json::to_string(&notebook).unwrap();
    let write = format!("open('session.ipynb', 'w').write({})", serde_json::to_string(&text).unwrap());
    room.run(&write).await.well();
    let mut spec = python(CONVERT);
    if let Some(code) = &mut spec.code {
        code.requirements = JUPYTER.map(str::to_owned).to_vec();
    }
    let told = room.exec(&spec).await.well();
    serde_json::from_str(told.stdout.lines().last().unwrap()).unwrap()
}

fn compare(cells: &[Cell], ours: &[Vec<Vec<String>>], theirs: &[Value]) {
    assert_eq!(ours.len(), theirs.len());
    let mut different = Vec::new();
    for ((cell, ours), theirs) in cells.iter().zip(ours).zip(theirs) {
        let types: Vec<Vec<String>> = serde_json::from_value(theirs["types"].clone()).unwrap();
        assert!(!theirs["text"].as_str().unwrap().contains("Glyph"), "{theirs}");
        if types != *ours || theirs["error"].as_str() != cell.error.as_deref() {
            different.push(format!("{:?}: ours {ours:?}, Jupyter's {theirs}", cell.source));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}
