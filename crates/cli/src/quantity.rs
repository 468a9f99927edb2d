//! Sizes and durations in arguments and output: `512M`, `1.5G`, `90s`, `none`.

use std::time::Duration;

/// Parses a size: a number, optionally followed by `K`, `M` or `G` (or `KiB`, `MiB`, `GiB`), which are powers
/// of 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale: u64 = match unit.trim_end_matches("iB").trim_end_matches('B').to_ascii_uppercase().as_str() {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return Err(format!("{unit:?} is not a unit of size; use K, M or G")),
    };
    let value: f64 =
        number.parse().map_err(|_| format!("{text:?} is not a size; write a size such as 512M"))?;
    // The conversion is exact for every size below 8 PiB.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    Ok((value * scale as f64) as u64)
}

/// Parses a time limit: a number followed by `ms`, `s`, `m`, `h` or `d`. A number without a unit means
/// seconds, and `none` means no limit.
pub fn limit(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    if text.starts_with('-') {
        return Err("a time limit cannot be negative; for no time limit, write `none`".into());
    }
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(format!("{unit:?} is not a unit of time; use ms, s, m, h or d")),
    };
    let value: f64 =
        number.parse().map_err(|_| format!("{text:?} is not a duration; write a duration such as 90s"))?;
    let time = Duration::try_from_secs_f64(value * scale).map_err(|error| error.to_string())?;
    if time.is_zero() {
        return Err("a time limit cannot be 0; for no time limit, write `none`".into());
    }
    Ok(Limit(Some(time)))
}

/// Parses a duration. Unlike [`limit`], it does not accept `none`.
pub fn time(text: &str) -> Result<Duration, String> {
    limit(text)?.0.ok_or_else(|| "a duration is required, such as 90s".into())
}

/// Time limit, or `None` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<Duration>);

/// Formats a size for people.
pub fn show_bytes(bytes: u64) -> String {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, scale)| bytes >= *scale) {
        Some((unit, scale)) if bytes.is_multiple_of(scale) => format!("{} {unit}", bytes / scale),
        #[expect(clippy::cast_precision_loss)]
        Some((unit, scale)) => format!("{:.1} {unit}", bytes as f64 / scale as f64),
        None => format!("{bytes} B"),
    }
}

/// Formats a duration for people, in the largest unit that fits. Hours and days are followed by the next
/// smaller unit.
pub fn show_time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(bytes("512M"), Ok(512 << 20));
        assert_eq!(bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(bytes("100"), Ok(100));
        assert!(bytes("-1M").is_err() && bytes("").is_err() && bytes("1T").is_err());
        assert_eq!(show_bytes(512 << 20), "512 MiB");
        assert_eq!(show_bytes(1536), "1.5 KiB");
    }

    #[test]
    fn times_are_shown_in_their_own_unit() {
        let shown =
            [250, 59_000, 61_000, 5_400_000, 90_000_000].map(|ms| show_time(Duration::from_millis(ms)));
        assert_eq!(shown, ["250 ms", "59 s", "1 min", "1 h 30 min", "1 d 1 h"]);
    }

    /// Zero, negative, huge and malformed values are rejected, and `none` means no limit.
    #[test]
    fn a_time_limit_is_a_time_or_none() {
        assert_eq!(limit("90"), Ok(Limit(Some(Duration::from_secs(90)))));
        assert_eq!(limit("250ms"), Ok(Limit(Some(Duration::from_millis(250)))));
        assert_eq!(limit("none"), Ok(Limit(None)));
        for bad in ["0", "0s", "-1", "1e400", "soon", "5w", ""] {
            assert!(limit(bad).is_err(), "{bad}");
        }
    }
}
