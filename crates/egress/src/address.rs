//! Addresses that no policy can allow: everything outside the public internet, and this machine itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Networks outside the public internet, as listed in RFC 6890 and similar registries, and the addresses of
/// cloud metadata services, which hand out credentials.
const CLOSED_V4: [([u8; 4], u32, &str); 17] = [
    ([0, 0, 0, 0], 8, "not a host address"),
    ([10, 0, 0, 0], 8, "a private address"),
    ([100, 64, 0, 0], 10, "a carrier-grade NAT address"),
    ([127, 0, 0, 0], 8, "a loopback address"),
    // Contains 169.254.169.254, the metadata address of most clouds.
    ([169, 254, 0, 0], 16, "a link-local address"),
    ([168, 63, 129, 16], 32, "a metadata address"),
    ([172, 16, 0, 0], 12, "a private address"),
    ([192, 0, 0, 0], 24, "a protocol-assignment address"),
    ([192, 0, 2, 0], 24, "a documentation address"),
    ([192, 88, 99, 0], 24, "a relay address"),
    ([192, 168, 0, 0], 16, "a private address"),
    ([198, 18, 0, 0], 15, "a benchmarking address"),
    ([198, 51, 100, 0], 24, "a documentation address"),
    ([203, 0, 113, 0], 24, "a documentation address"),
    ([224, 0, 0, 0], 4, "a multicast address"),
    ([240, 0, 0, 0], 4, "a reserved address"),
    ([255, 255, 255, 255], 32, "a broadcast address"),
];
/// Blocked networks within 2000::/3. Every address outside 2000::/3 is blocked too, which covers IPv4-mapped
/// and NAT64 addresses.
const CLOSED_V6: [([u16; 3], u32, &str); 4] = [
    ([0x2001, 0, 0], 23, "a protocol-assignment address"),
    ([0x2001, 0x0db8, 0], 32, "a documentation address"),
    ([0x2002, 0, 0], 16, "an address that embeds another address"),
    ([0x3fff, 0, 0], 20, "a documentation address"),
];
/// Arbitrary port for the route lookup. Nothing is sent to it.
const ANY_PORT: u16 = 9;

/// Returns the reason why an address must not be dialled, or `None` if it may be dialled.
pub fn refused(address: IpAddr) -> Option<&'static str> {
    if api::defence::is_off("N-02") {
        return None;
    }
    let closed = match address {
        IpAddr::V4(address) => closed_v4(address),
        IpAddr::V6(address) => closed_v6(address),
    };
    closed.or_else(|| is_ours(address).then_some("an address of this machine"))
}

fn closed_v4(address: Ipv4Addr) -> Option<&'static str> {
    let bits = u32::from(address);
    let within =
        |network: [u8; 4], length: u32| (bits ^ u32::from_be_bytes(network)).leading_zeros() >= length;
    CLOSED_V4.iter().find(|(network, length, _)| within(*network, *length)).map(|(_, _, what)| *what)
}

fn closed_v6(address: Ipv6Addr) -> Option<&'static str> {
    let bits = u128::from(address);
    let within = |[a, b, c]: [u16; 3], length: u32| {
        (bits ^ u128::from(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0))).leading_zeros() >= length
    };
    if !within([0x2000, 0, 0], 3) {
        return Some("not a public address");
    }
    CLOSED_V6.iter().find(|(network, length, _)| within(*network, *length)).map(|(_, _, what)| *what)
}

/// Returns true if the address currently belongs to this machine. A route lookup for one of the machine's own
/// addresses reports that address or a loopback address as the source. The lookup sends nothing and always
/// reflects the current configuration.
fn is_ours(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let local = UdpSocket::bind(SocketAddr::new(any, 0)).and_then(|socket| {
        socket.connect(SocketAddr::new(address, ANY_PORT))?;
        socket.local_addr()
    });
    // If the lookup fails, there is no route, so the address cannot be dialled either.
    local.is_ok_and(|local| local.ip() == address || local.ip().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_the_internet_is_closed() {
        // Covers attacks N-01, N-02, N-03 and N-04.
        for text in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "169.254.170.2",
            "168.63.129.16",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "224.0.0.251",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:169.254.169.254",
            "::ffff:8.8.8.8",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2002:a9fe:a9fe::1",
            "2001:0:4136:e378::1",
            "fd00:ec2::254",
            "fc00::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "100::1",
            "2001:db8::1",
            "3fff::1",
            "4000::1",
        ] {
            assert!(refused(text.parse().unwrap()).is_some(), "{text}");
        }
        for text in
            ["93.184.216.34", "8.8.8.8", "172.32.0.1", "11.0.0.1", "2606:2800::1", "2a00:1450::1", "2003::1"]
        {
            let address: IpAddr = text.parse().unwrap();
            let closed = match address {
                IpAddr::V4(address) => closed_v4(address),
                IpAddr::V6(address) => closed_v6(address),
            };
            assert_eq!(closed, None, "{text}");
        }
    }

    #[test]
    fn what_this_machine_answers_to_is_its_own() {
        assert!(is_ours(Ipv4Addr::LOCALHOST.into()));
        assert!(is_ours(Ipv4Addr::new(127, 1, 2, 3).into()));
    }

    proptest! {
        #[test]
        fn the_standard_library_agrees(bits: u32) {
            let address = Ipv4Addr::from(bits);
            if address.is_private() || address.is_loopback() || address.is_link_local() || address.is_multicast()
                || address.is_broadcast() || address.is_documentation() || address.is_unspecified() {
                prop_assert!(closed_v4(address).is_some());
            }
        }
    }
}
