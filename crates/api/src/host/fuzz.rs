//! Fuzz target: hosts as clients and sandboxes write them.

use super::*;

/// The characters of a canonical host. A character outside this set would have a meaning in a URL, a header
/// or a log.
fn is_canonical(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-:".contains(&byte)
}

#[test]
fn a_host_written_differently_has_one_canonical_form() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        if let Ok((host, port)) = Host::with_port(text, Some(80)) {
            assert_ne!(port, 0);
            assert_eq!(Host::with_port(&host.authority(port), None).unwrap(), (host, port));
        }
        let Ok(host) = Host::parse(text) else { return };
        let shown = host.to_string();
        assert!(shown.bytes().all(is_canonical), "{shown:?}");
        for other in [shown, text.to_ascii_uppercase(), text.to_ascii_lowercase()] {
            assert_eq!(Host::parse(&other).unwrap(), host, "{other:?}");
        }
        match &host {
            Host::Name(name) => {
                assert!(name.parse::<IpAddr>().is_err(), "{name:?} is an address");
                assert_eq!(Host::parse(&format!("{name}.")).unwrap(), host);
            }
            Host::Address(IpAddr::V6(address)) => {
                assert_eq!(Host::parse(&format!("[{address}]")).unwrap(), host);
            }
            Host::Address(IpAddr::V4(_)) => {}
        }
    });
}
