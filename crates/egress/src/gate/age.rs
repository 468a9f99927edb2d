//! The age of package files, which a policy may require to reach a minimum. Most malicious packages are
//! discovered soon after publication.

use std::time::{Duration, SystemTime};

/// Returns true if a file is old enough to be allowed.
pub(super) fn is_old_enough(published: Option<&str>, minimum_age_ms: u64) -> bool {
    if minimum_age_ms == 0 {
        return true;
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let cutoff = written(now.saturating_sub(Duration::from_millis(minimum_age_ms)).as_secs());
    // All times have the same format and time zone, so they can be compared as text.
    published.is_some_and(|published| {
        published.ends_with('Z') && published.get(..cutoff.len()).is_some_and(|at| at <= cutoff.as_str())
    })
}

/// Formats a time, in seconds since the Unix epoch, as package indexes do.
fn written(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Converts days to a date with 400-year eras that begin in March. The algorithm is Howard Hinnant's.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_indexes_write_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_794_762_666, "2026-11-15T17:11:06"),
            (4_107_542_399, "2100-02-28T23:59:59"),
        ] {
            assert_eq!(written(seconds), text);
        }
        let week = 7 * 86_400_000;
        assert!(is_old_enough(Some("2017-05-08T10:10:00.853913Z"), week));
        for young in [Some("2999-01-01T00:00:00Z"), Some("2017-05-08T10:10:00+02:00"), Some("2017"), None] {
            assert!(!is_old_enough(young, week), "{young:?}");
            assert!(is_old_enough(young, 0));
        }
    }
}
