//! A page in Chromium, loaded from its port's own address. WebSocket, events, a request and a script each
//! turn one box green.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::ground::{Application, on_each_tier};

/// Timeout for the browser. Loading a page takes a second, but starting a browser on a busy machine takes
/// many.
const BROWSER_WITHIN: Duration = Duration::from_secs(90);

#[test]
#[ignore = "starts real sandboxes"]
fn a_browser_uses_an_application_through_its_address() {
    on_each_tier(async |service, tier| {
        let application = Application::start(service, tier).await;
        let shots = tempfile::tempdir().unwrap();
        let address = format!("{}/?bellglass_token={}", application.port.url, application.port.token);
        let seen = boxes(&screenshot(&address, shots.path(), "token"));
        eprintln!("{tier:?}: WebSocket, events, request, script: {seen:?}");
        assert_eq!(seen, [[0, 255, 0]; 4], "what should be green is not");
        // Control: without the token, the page is not loaded and no box turns green.
        let seen = boxes(&screenshot(&application.port.url, shots.path(), "none"));
        assert!(seen.iter().all(|colour| *colour != [0, 255, 0]), "{seen:?}");
    });
}

/// Takes a screenshot of a page and returns it as a PNG.
fn screenshot(address: &str, directory: &Path, name: &str) -> Vec<u8> {
    let file = directory.join(format!("{name}.png"));
    let mut command = Command::new("chromium");
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"])
        .args(["--window-size=400,400", "--no-first-run", "--disable-background-networking"])
        .arg(format!("--user-data-dir={}", directory.join(name).display()))
        .arg(format!("--screenshot={}", file.display()))
        .arg(address);
    let begun = Instant::now();
    let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > BROWSER_WITHIN {
            let _ = child.kill();
            panic!("the browser did not end");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    std::fs::read(&file).expect("a screenshot")
}

/// Returns the colour in the middle of each of the four boxes.
fn boxes(png: &[u8]) -> [[u8; 3]; 4] {
    let (width, rows) = pixels(png);
    assert!(width >= 400 && rows.len() >= 100, "{width} by {}", rows.len());
    [50, 150, 250, 350].map(|x| rows[50][x])
}

/// Decodes a PNG as written by Chromium: eight bits per channel, with or without transparency, not
/// interlaced. Returns the width and the rows of pixels.
fn pixels(png: &[u8]) -> (usize, Vec<Vec<[u8; 3]>>) {
    let word = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    let (width, height, depth, colour, interlaced) = (word(16), word(20), png[24], png[25], png[28]);
    assert!(depth == 8 && interlaced == 0, "depth {depth}, interlaced {interlaced}");
    let step = match colour {
        2 => 3,
        6 => 4,
        other => panic!("colours of kind {other}"),
    };
    let (mut at, mut packed) = (8, Vec::new());
    while at + 8 <= png.len() {
        let length = word(at);
        if &png[at + 4..at + 8] == b"IDAT" {
            packed.extend_from_slice(&png[at + 8..at + 8 + length]);
        }
        at += length + 12;
    }
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::ZlibDecoder::new(packed.as_slice()), &mut bytes).unwrap();
    let mut above = vec![0; width * step];
    let mut rows = Vec::new();
    for line in bytes.chunks(width * step + 1).take(height) {
        let (filter, mut row) = (line[0], line[1..].to_vec());
        for i in 0..row.len() {
            let left = if i < step { 0 } else { i32::from(row[i - step]) };
            let corner = if i < step { 0 } else { i32::from(above[i - step]) };
            let up = i32::from(above[i]);
            let guess = match filter {
                0 => 0,
                1 => left,
                2 => up,
                3 => (left + up) / 2,
                _ => {
                    let far = |from: i32| (left + up - corner - from).abs();
                    let nearest = [left, up, corner].into_iter().min_by_key(|from| far(*from));
                    nearest.unwrap()
                }
            };
            row[i] = row[i].wrapping_add(guess as u8);
        }
        rows.push(row.chunks(step).map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect());
        above = row;
    }
    (width, rows)
}
