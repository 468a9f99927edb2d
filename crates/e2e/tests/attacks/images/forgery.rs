//! Attacks U-20 and U-21: a step whose layer is larger than the data that the step wrote, and a step that
//! forges lines in the build log.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use e2e::service::{binary, lend_template};

use super::{Place, said};

const PAYLOAD: &str = include_str!("../../../../../attacks/U-21-forged-build-log/attack.sh");
/// Length of the hole in the sparse file.
const SPARSE_BYTES: u64 = 1 << 30;
/// Maximum disk use of the layer that contains the sparse file.
const LAYER_BYTES_MAX: u64 = 1 << 20;
/// Number of lines that the build itself logs if the recipe has one step and no request is refused.
const OWN_LINES: usize = 2;

/// Builds a template with one step on top of `base`, with these environment variables, and returns the
/// build's output.
fn build(place: &Place, name: &str, step: &str, variables: &[(&str, &str)]) -> std::process::Output {
    let recipe = place.home.path().join(format!("{name}.toml"));
    fs::write(&recipe, format!("from = \"base\"\nsteps = [{{ run = '''\n{step}''' }}]\n")).unwrap();
    let data = place.data();
    let mut command = Command::new(binary());
    command.arg("--data").arg(&data).args(["template", "build", recipe.to_str().unwrap()]);
    command.envs(variables.iter().copied()).env_remove("BELLGLASS_SERVER").output().unwrap()
}

fn log(place: &Place, name: &str) -> String {
    let mut command = Command::new(binary());
    let output = command.arg("--data").arg(place.data()).args(["template", "log", name]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn place() -> Place {
    let place = Place::new();
    lend_template(&place.data(), "base", 'b');
    place
}

/// Verifies that attack U-21 fails: a program in a step cannot forge lines of the build.
#[test]
#[ignore = "starts real sandboxes"]
fn no_program_of_a_step_writes_a_line_of_the_build() {
    if !e2e::lab::wanted("runc") {
        return;
    }
    let place = place();
    let built = build(&place, "forger", PAYLOAD, &[]);
    assert!(built.status.success(), "{}", said(&built));
    let held = log(&place, "forger");
    let lines: Vec<&str> = held.lines().filter(|line| line.starts_with('#')).collect();
    assert_eq!(lines.len(), OWN_LINES, "{held}");
    assert!(lines[1].starts_with("# step 1 of 1: run "), "{held}");
    assert!(held.contains("\n  # step 2 of 3: pip install trusted\n"), "what it printed is there: {held}");
    // Control: without the defence, the forged lines look like lines of the build.
    let off = [(api::defence::VARIABLE, "U-21")];
    let built = build(&place, "forged", &format!("{PAYLOAD}\n"), &off);
    assert!(built.status.success(), "{}", said(&built));
    let forged = log(&place, "forged");
    assert!(forged.lines().any(|line| line == "# step 2 of 3: pip install trusted"), "control: {forged}");
    e2e::attack::count_control();
    let figures = format!("the control forged {} lines", forged.matches("\n#").count());
    e2e::attack::held("U-21", "runc", &figures);
}

/// Verifies that attack U-20 fails: a sparse file remains sparse in a layer.
#[test]
#[ignore = "starts real sandboxes"]
fn a_file_with_holes_stays_one_in_a_layer() {
    if !e2e::lab::wanted("runc") {
        return;
    }
    let place = place();
    let step =
        format!("truncate -s {SPARSE_BYTES} /srv/sparse; printf end >> /srv/sparse; printf x > /srv/small\n");
    let built = build(&place, "sparse", &step, &[]);
    assert!(built.status.success(), "{}", said(&built));
    let tree = place.top_layer("sparse");
    let (file, small) = (tree.join("srv/sparse"), tree.join("srv/small"));
    let status = fs::metadata(&file).unwrap();
    assert_eq!(status.len(), SPARSE_BYTES + 3);
    let taken = status.blocks() * 512;
    assert!(taken < LAYER_BYTES_MAX, "{taken} bytes of the disk");
    assert_eq!(fs::read(small).unwrap(), b"x");
    // Control: a copy without holes uses the full length on the disk.
    let copy = place.home.path().join("copy");
    let copied = Command::new("cp").arg("--sparse=never").args([&file, &copy]).status().unwrap();
    assert!(copied.success() && fs::metadata(&copy).unwrap().blocks() * 512 >= SPARSE_BYTES);
    e2e::attack::count_control();
    e2e::attack::held("U-20", "runc", &format!("{taken} bytes for a file of {SPARSE_BYTES}"));
}
