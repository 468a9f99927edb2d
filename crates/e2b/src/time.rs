//! Formats times as E2B's SDKs expect them: RFC 3339, UTC, with milliseconds.

const DAY_MS: u64 = 86_400_000;

/// Formats a time in milliseconds since 1970.
pub fn rfc3339(ms: u64) -> String {
    let (day, of_day) = (ms / DAY_MS, ms % DAY_MS);
    let (year, month, date) = civil(day);
    let (hour, minute, second) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", of_day % 1000)
}

/// Converts a number of days since 1970-01-01 into a year, a month and a day of the month. In this
/// computation, years begin in March, so that a leap day is the last day of its year.
fn civil(day: u64) -> (u64, u64, u64) {
    // Days since 0000-03-01; 400 years have 146097 days.
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_763_384_461_042, "2025-11-17T13:01:01.042Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(ms), text);
        }
    }
}
