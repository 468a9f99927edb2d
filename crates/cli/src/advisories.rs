//! Known vulnerabilities, and the versions of runtimes and the kernel that lack their fixes.
//!
//! Distributions backport fixes to old versions, so an old version number justifies only a warning: `doctor`
//! rates such a component as `degraded` and names the vulnerabilities to check.

/// Known vulnerability and the versions in which upstream fixed it. For each release line, `fixed` contains
/// the first version that has the fix.
struct Advisory {
    part: &'static str,
    name: &'static str,
    fixed: &'static [&'static [u64]],
}

const ADVISORIES: [Advisory; 12] = [
    Advisory { part: "runc", name: "CVE-2024-21626", fixed: &[&[1, 1, 12]] },
    Advisory { part: "runc", name: "CVE-2024-45310", fixed: &[&[1, 1, 14]] },
    Advisory { part: "runc", name: "CVE-2025-31133", fixed: &[&[1, 2, 8], &[1, 3, 3]] },
    Advisory { part: "runc", name: "CVE-2025-52565", fixed: &[&[1, 2, 8], &[1, 3, 3]] },
    Advisory { part: "runc", name: "CVE-2025-52881", fixed: &[&[1, 2, 8], &[1, 3, 3]] },
    Advisory { part: "runc", name: "CVE-2026-41579", fixed: &[&[1, 3, 6], &[1, 4, 3]] },
    Advisory { part: "youki", name: "CVE-2025-62161", fixed: &[&[0, 5, 7]] },
    Advisory { part: "youki", name: "CVE-2025-62596", fixed: &[&[0, 5, 7]] },
    Advisory { part: "runsc", name: "CVE-2025-2713", fixed: &[&[20_250_319]] },
    Advisory { part: "runsc", name: "CVE-2026-96812", fixed: &[&[20_260_817]] },
    Advisory {
        part: "linux",
        name: "CVE-2026-31431",
        fixed: &[
            &[5, 10, 254],
            &[5, 15, 204],
            &[6, 1, 170],
            &[6, 6, 137],
            &[6, 12, 85],
            &[6, 18, 22],
            &[7, 0, 0],
        ],
    },
    Advisory {
        part: "linux",
        name: "CVE-2026-46300",
        fixed: &[&[5, 15, 208], &[6, 1, 174], &[6, 6, 141], &[6, 12, 91], &[6, 18, 33], &[7, 0, 10]],
    },
];

/// Returns the vulnerabilities that this version still has, according to upstream's version numbers.
pub fn lacking(part: &str, version: &str) -> Vec<&'static str> {
    let version = numbers(version);
    let lacks = |advisory: &&Advisory| advisory.part == part && !has_fix(&version, advisory.fixed);
    ADVISORIES.iter().filter(lacks).map(|advisory| advisory.name).collect()
}

/// Returns true if a version has the fix. If the version's release line received the fix, the version must be
/// at least the fixed version of that line. Otherwise, the version must be newer than all fixed versions.
fn has_fix(version: &[u64], fixed: &[&[u64]]) -> bool {
    let line = |numbers: &[u64]| numbers.get(..numbers.len().saturating_sub(1)).unwrap_or_default().to_vec();
    let same_line = fixed.iter().find(|fix| line(fix) == version.get(..fix.len() - 1).unwrap_or_default());
    match same_line {
        Some(fix) => version >= *fix,
        None => fixed.iter().all(|fix| version > *fix),
    }
}

/// Returns the numbers of a version, starting at the first digit: `1.1.5+ds1` becomes 1, 1, 5, and
/// `release-20240729.0` becomes 20240729, 0.
fn numbers(version: &str) -> Vec<u64> {
    let start = version.find(|c: char| c.is_ascii_digit()).unwrap_or(version.len());
    let text = version.get(start..).unwrap_or_default();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let numbers: Vec<u64> =
        text.get(..end).unwrap_or_default().split('.').filter_map(|n| n.parse().ok()).collect();
    // Debian writes the date of a gVisor release as 0.0~20240729.0.
    match text.get(end..).and_then(|rest| rest.strip_prefix('~')) {
        Some(rest) => self::numbers(rest),
        None => numbers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_lack_fixes_and_new_ones_do_not() {
        assert!(lacking("runc", "1.1.5+ds1").contains(&"CVE-2024-21626"));
        assert!(lacking("runc", "1.1.15").contains(&"CVE-2025-31133"));
        assert_eq!(lacking("runc", "1.3.6"), [""; 0]);
        assert_eq!(lacking("runc", "1.5.0"), [""; 0]);
        assert_eq!(lacking("runc", "1.4.2"), ["CVE-2026-41579"]);
        assert!(lacking("runsc", "0.0~20240729.0").contains(&"CVE-2026-96812"));
        assert_eq!(lacking("runsc", "release-20260901.0"), [""; 0]);
        assert_eq!(lacking("linux", "6.18.44-fc"), [""; 0]);
        assert_eq!(lacking("linux", "6.1.172"), ["CVE-2026-46300"]);
        assert_eq!(lacking("linux", "6.5.0").len(), 2);
    }
}
