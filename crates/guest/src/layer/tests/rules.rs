//! Tests of the rules for each kind of entry.

use super::archive::Head;
use super::*;

/// Attribute by which overlays recognize an opaque directory. Tests of this attribute fail if the machine's
/// file system does not support it.
const OPAQUE: &str = "user.overlay.opaque";

fn is_opaque(path: &Path) -> bool {
    let mut value = [0; 8];
    matches!(rustix::fs::getxattr(path, OPAQUE, &mut value), Ok(1)) && value[0] == b'y'
}

fn is_whiteout(path: &Path) -> bool {
    let status = fs::symlink_metadata(path).unwrap();
    status.mode() & 0o170_000 == 0o020_000 && status.rdev() == 0
}

#[test]
fn an_ordinary_layer_is_unpacked_as_it_is() {
    let archive = Archive::new()
        .directory("./")
        .directory("./etc/")
        .file("./etc/motd", "hello")
        .symlink("./etc/link", "motd")
        .link("./etc/again", "./etc/motd")
        .end();
    let (bench, report) = unpacked(&archive);
    let top = bench.top();
    assert_eq!(fs::read_to_string(top.join("etc/motd")).unwrap(), "hello");
    assert_eq!(fs::read_link(top.join("etc/link")).unwrap(), Path::new("motd"));
    let inode = |name: &str| fs::symlink_metadata(top.join(name)).unwrap().ino();
    assert_eq!(inode("etc/motd"), inode("etc/again"));
    for name in ["etc", "etc/motd", "etc/link"] {
        assert_eq!(fs::symlink_metadata(top.join(name)).unwrap().mtime(), 1_000_000_000, "{name}");
    }
    assert_eq!(fs::metadata(top.join("etc/motd")).unwrap().mode() & 0o7777, 0o644);
    assert_eq!((report.entries, report.bytes), (5, archive.bytes.len() as u64));
    assert_eq!(report.skipped, api::layer::Skipped::default());
}

#[test]
fn names_that_lead_out_are_refused_and_absolute_ones_stay_inside() {
    for name in ["../x", "a/../../x", "..", "/../x"] {
        let error = refusal(&Archive::new().file(name, "x").end());
        assert_eq!(error.code, ErrorCode::InvalidRequest, "{name}: {error}");
    }
    let mut bench = Bench::new();
    let name = format!("{}/file", bench.outside());
    bench.layer_with(&Archive::new().file(&name, "x").end()).unwrap();
    assert_eq!(fs::read(bench.top().join(name.trim_start_matches('/'))).unwrap(), b"x");
}

#[test]
fn nothing_is_written_through_a_symlink_that_leads_out() {
    let mut bench = Bench::new();
    let outside = bench.outside();
    let archive = Archive::new()
        .symlink("absolute", &outside)
        .file("absolute/file", "x")
        .symlink("relative", "../outside")
        .file("relative/other", "x")
        .symlink("leaf", &format!("{outside}/file"))
        .file("leaf", "x")
        .symlink("directory", &outside)
        .head(&Head { kind: b'5', name: b"directory/", mode: 0o777, ..Head::default() })
        .end();
    bench.layer_with(&archive).unwrap();
    let top = bench.top();
    // Inside the image, an absolute target starts at the image's root, and `..` stops there.
    assert_eq!(fs::read(top.join(outside.trim_start_matches('/')).join("file")).unwrap(), b"x");
    assert_eq!(fs::read(top.join("outside/other")).unwrap(), b"x");
    assert!(fs::symlink_metadata(top.join("leaf")).unwrap().is_file());
    assert!(fs::symlink_metadata(top.join("directory")).unwrap().is_dir());
}

#[test]
fn symlinks_that_go_round_are_refused() {
    let archive = Archive::new().symlink("a", "b").symlink("b", "a").file("a/x", "x").end();
    assert_eq!(refusal(&archive).code, ErrorCode::InvalidRequest);
    let archive = Archive::new().file("a", "x").file("a/b", "x").end();
    assert_eq!(refusal(&archive).code, ErrorCode::InvalidRequest);
}

#[test]
fn symlinks_are_no_way_to_any_depth() {
    let step = |archive: Archive, depth: usize| archive.symlink(&"s/".repeat(depth), &"d/".repeat(40));
    let way =
        |steps: usize| (1..=steps).fold(Archive::new(), step).file(&format!("{}x", "s/".repeat(steps)), "x");
    assert!(unpacked(&way(6).end()).0.top().join("d/".repeat(240)).join("x").is_file());
    assert_eq!(refusal(&way(7).end()).code, ErrorCode::LimitExceeded);
}

#[test]
fn a_hard_link_reaches_nothing_outside() {
    let bench = Bench::new();
    let outside = bench.outside();
    for target in
        [format!("{outside}/file"), "../outside/file".to_owned(), "etc".to_owned(), "gone".to_owned()]
    {
        let archive = Archive::new().directory("etc").link("got", &target).end();
        assert_eq!(refusal(&archive).code, ErrorCode::InvalidRequest, "{target}");
    }
    let archive = Archive::new().symlink("way", &outside).link("got", "way/file").end();
    assert_eq!(refusal(&archive).code, ErrorCode::InvalidRequest);
    let archive = Archive::new().symlink("leaf", &format!("{outside}/file")).link("got", "leaf").end();
    let (bench, _) = unpacked(&archive);
    assert!(fs::symlink_metadata(bench.top().join("got")).unwrap().is_symlink());
}

#[test]
fn a_hard_link_into_a_lower_layer_is_copied() {
    let mut bench = Bench::new();
    bench.layer_with(&Archive::new().file("bin/tool", "one").symlink("sbin", "bin").end()).unwrap();
    bench.layer_with(&Archive::new().link("bin/again", "sbin/tool").end()).unwrap();
    assert_eq!(fs::read(bench.top().join("bin/again")).unwrap(), b"one");
    assert_eq!(fs::metadata(bench.top().join("bin/again")).unwrap().nlink(), 1);
}

#[test]
fn a_link_to_itself_changes_nothing() {
    let (bench, _) = unpacked(&Archive::new().file("a", "x").link("a", "./a").end());
    assert_eq!(fs::read(bench.top().join("a")).unwrap(), b"x");
}

#[test]
fn devices_and_fifos_are_left_out_and_counted() {
    let archive = Archive::new().kind(b'3', "null").kind(b'4', "disk").kind(b'6', "pipe").file("a", "").end();
    let (bench, report) = unpacked(&archive);
    assert_eq!((report.skipped.devices, report.skipped.fifos), (2, 1));
    assert_eq!(fs::read_dir(bench.top()).unwrap().count(), 1);
}

#[test]
fn no_file_keeps_a_bit_that_gives_rights_away() {
    let archive = Archive::new()
        .head(&Head { name: b"su", mode: 0o6755, ..Head::default() })
        .head(&Head { name: b"sticky", mode: 0o1644, ..Head::default() })
        .head(&Head { kind: b'5', name: b"shared", mode: 0o3777, ..Head::default() })
        .end();
    let (bench, report) = unpacked(&archive);
    let mode = |name: &str| fs::metadata(bench.top().join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("su"), mode("sticky"), mode("shared")), (0o755, 0o644, 0o1777));
    assert_eq!(report.skipped.mode_bits, 3);
}

#[test]
fn whiteouts_become_what_an_overlay_reads() {
    let mut bench = Bench::new();
    let lower =
        Archive::new().file("a", "1").file("d/x", "1").file("e/y", "1").file("f/z", "1").file("g", "1").end();
    bench.layer_with(&lower).unwrap();
    let upper = Archive::new()
        .file(".wh.a", "")
        .file(".wh.nothing", "")
        .file("d/.wh..wh..opq", "")
        .file("d/new", "2")
        .file(".wh.e", "")
        .file("e/new", "2")
        .file("f/new", "2")
        .file(".wh.f", "")
        .file(".wh.g", "")
        .file("g", "2")
        .file(".wh.tmp", "")
        .file(".wh..wh.plnk", "")
        .end();
    let report = bench.layer_with(&upper).unwrap();
    let top = bench.top();
    assert!(is_whiteout(&top.join("a")));
    assert!(!top.join("nothing").exists());
    for name in ["d", "e", "f"] {
        assert!(is_opaque(&top.join(name)), "{name}");
        assert_eq!(fs::read(top.join(name).join("new")).unwrap(), b"2");
    }
    assert_eq!(fs::read(top.join("g")).unwrap(), b"2");
    assert!(fs::symlink_metadata(top.join("tmp")).is_err());
    assert_eq!(report.skipped.whiteouts, 3);
}

#[test]
fn an_opaque_root_hides_each_thing_below() {
    let mut bench = Bench::new();
    bench.layer_with(&Archive::new().file("a", "1").directory("tmp").file("d/x", "1").end()).unwrap();
    bench.layer_with(&Archive::new().file(".wh..wh..opq", "").file("d/y", "2").end()).unwrap();
    assert!(is_whiteout(&bench.top().join("a")) && is_opaque(&bench.top().join("d")));
    assert!(fs::symlink_metadata(bench.top().join("tmp")).is_err());
}

#[test]
fn whiteouts_of_the_lowest_layer_are_left_out() {
    let (bench, report) =
        unpacked(&Archive::new().file("a", "").file(".wh.a", "").file(".wh..wh..opq", "").end());
    assert_eq!(fs::read_dir(bench.top()).unwrap().count(), 1);
    assert_eq!(report.skipped.whiteouts, 2);
    assert_eq!(refusal(&Archive::new().file(".wh...", "").end()).code, ErrorCode::InvalidRequest);
}

#[test]
fn the_last_of_several_entries_of_one_name_wins() {
    let archive = Archive::new()
        .file("file", "first, and longer")
        .file("file", "last")
        .directory("directory")
        .file("directory/inside", "x")
        .directory("directory")
        .directory("gone/deep/er")
        .file("gone", "x")
        .file("was-file", "x")
        .directory("was-file")
        .end();
    let (bench, _) = unpacked(&archive);
    let top = bench.top();
    assert_eq!(fs::read(top.join("file")).unwrap(), b"last");
    assert!(
        top.join("directory/inside").exists() && top.join("gone").is_file() && top.join("was-file").is_dir()
    );
}

#[test]
fn what_replaces_a_hard_link_leaves_the_other_name_alone() {
    let (bench, _) = unpacked(&Archive::new().file("a", "1").link("b", "a").file("b", "2").end());
    assert_eq!(fs::read(bench.top().join("a")).unwrap(), b"1");
}

#[test]
fn entries_go_where_a_lower_layers_symlink_leads() {
    let mut bench = Bench::new();
    let lower = Archive::new()
        .head(&Head { kind: b'5', name: b"usr/bin", mode: 0o711, ..Head::default() })
        .symlink("bin", "usr/bin")
        .end();
    bench.layer_with(&lower).unwrap();
    bench.layer_with(&Archive::new().file("bin/tool", "x").end()).unwrap();
    assert!(bench.top().join("usr/bin/tool").is_file());
    assert!(fs::symlink_metadata(bench.top().join("bin")).is_err());
    // A directory without an entry in this layer keeps the metadata that it has in the lower layer.
    assert_eq!(fs::metadata(bench.top().join("usr/bin")).unwrap().mode() & 0o7777, 0o711);
}

#[test]
fn the_sandboxs_own_paths_stay_its_own() {
    for path in super::super::name::RESERVED {
        for archive in [
            Archive::new().symlink(path, "/etc"),
            Archive::new().symlink(path, "../../etc"),
            Archive::new().symlink(path, "gone"),
            Archive::new().file(path, "x"),
            Archive::new().kind(b'6', path),
            Archive::new().file("f", "x").link(path, "f"),
        ] {
            let (bench, report) = unpacked(&archive.end());
            assert_eq!(report.skipped.reserved + report.skipped.fifos, 1, "{path}");
            assert!(fs::symlink_metadata(bench.top().join(path)).is_err(), "{path}");
        }
    }
    let archive = Archive::new()
        .directory("proc")
        .directory("dev/pts")
        .file("dev/null", "x")
        .file("proc/sys/kernel/core_pattern", "x")
        .symlink("way", "/.bellglass")
        .file("way/guest", "x")
        .file(".bellglass/channel/node.sock", "x")
        .end();
    let (bench, report) = unpacked(&archive);
    assert_eq!(report.skipped.reserved, 5);
    assert_eq!(fs::read_dir(bench.top().join("proc")).unwrap().count(), 0);
    for name in ["dev", ".bellglass"] {
        let below = fs::read_dir(bench.top().join(name)).map_or(0, Iterator::count);
        assert_eq!(below, 0, "{name}");
    }
}

#[test]
fn the_top_layer_has_mount_points_and_the_user() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root can give files to root");
        return;
    }
    let mut bench = Bench::new();
    let outside = bench.outside();
    let passwd = "root:x:0:0::/root:/bin/bash\nubuntu:x:1000:1000::/home/ubuntu:/bin/bash\n";
    let lower = Archive::new().file("etc/passwd", passwd).file("etc/machine-id", "0123\n").end();
    bench.layer_with(&lower).unwrap();
    let upper = Archive::new().symlink("etc/resolv.conf", &format!("{outside}/file")).end();
    bench.packed(&upper.bytes, Compression::None, true).unwrap();
    let read = |name: &str| fs::read_to_string(bench.top().join(name)).unwrap();
    let expected = "root:x:0:0::/root:/bin/bash\nsandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh\n";
    assert_eq!(read("etc/passwd"), expected);
    assert_eq!(read("etc/group"), "root:x:0:\nsandbox:x:1000:\n");
    assert_eq!((read("etc/resolv.conf"), read("etc/machine-id")), (String::new(), String::new()));
    assert_eq!((read("etc/hostname"), read(".bellglass/guest")), ("sandbox\n".into(), String::new()));
    for name in ["proc", "sys", "dev", "workspace", "home/sandbox", ".bellglass/channel", ".bellglass/spool"]
    {
        let status = fs::symlink_metadata(bench.top().join(name)).unwrap();
        assert!(status.is_dir() && status.uid() == 0, "{name}");
    }
    assert_eq!(fs::metadata(bench.top().join("tmp")).unwrap().mode() & 0o7777, 0o1777);
}

#[test]
fn a_top_layer_whose_etc_leads_out_is_finished_inside() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root can give files to root");
        return;
    }
    let mut bench = Bench::new();
    let outside = bench.outside();
    let archive = Archive::new().symlink("etc", &outside).end();
    bench.packed(&archive.bytes, Compression::None, true).unwrap();
    assert!(bench.top().join(outside.trim_start_matches('/')).join("passwd").is_file());
    let blocked = Archive::new().file("etc", "x").end();
    assert!(Bench::new().packed(&blocked.bytes, Compression::None, true).is_err());
}

#[test]
fn a_layer_on_a_planted_symlink_is_not_followed() {
    // Create the symlink directly, not from an archive, to simulate a planted one.
    let mut bench = Bench::new();
    bench.layer_with(&Archive::new().file("a", "x").end()).unwrap();
    symlink(bench.outside(), bench.top().join("planted")).unwrap();
    bench.layer_with(&Archive::new().file("planted/file", "x").end()).unwrap();
}
