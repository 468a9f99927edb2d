//! A request for a package or an index: its path, and the check whether the policy allows it.

use api::policy::{Policy, Preset};
use hyper::Method;

use super::{HOST, debian, nothing, npm, python};
use crate::{Refusal, RefusalKind};

/// A parsed request for a package or an index.
pub(super) struct PackageRequest<'a> {
    pub(super) kind: Preset,
    pub(super) package: String,
    pub(super) rest: &'a str,
}

/// Parses the method and the path of a request.
pub(super) fn understand<'a>(method: &Method, path: &'a str) -> Result<PackageRequest<'a>, Refusal> {
    if method != Method::GET && method != Method::HEAD {
        return Err(Refusal { kind: RefusalKind::Denied, why: format!("{HOST} is read-only") });
    }
    let (kind, rest) = [
        ("/python/", Preset::PythonPackages),
        ("/npm/", Preset::NodePackages),
        ("/debian", Preset::DebianPackages),
    ]
    .into_iter()
    .find_map(|(prefix, kind)| Some((kind, path.strip_prefix(prefix)?)))
    .ok_or_else(|| nothing(path))?;
    let package = match kind {
        Preset::PythonPackages => python::package(rest),
        Preset::NodePackages => npm::package(rest),
        Preset::DebianPackages => debian::package(rest),
        Preset::Git => None,
    };
    Ok(PackageRequest { kind, package: package.ok_or_else(|| nothing(path))?, rest })
}

/// Checks that the policy allows the request.
pub(super) fn allow(policy: &Policy, wanted: &PackageRequest<'_>) -> Result<(), Refusal> {
    let denied = |why: String| Err(Refusal { kind: RefusalKind::Denied, why });
    if !policy.presets.contains(&wanted.kind) && !policy.open {
        return denied(format!("this sandbox is not allowed to use {}", wanted.kind.name()));
    }
    let only = policy.packages.only(wanted.kind);
    let listed = |names: &Vec<String>| names.iter().any(|name| same_name(wanted.kind, name, &wanted.package));
    match only {
        // A request without a package is for one of the archive's own indexes.
        Some(names) if !wanted.package.is_empty() && !listed(names) => denied(format!(
            "{} is not in the list of {} that this sandbox may use",
            wanted.package,
            wanted.kind.name()
        )),
        Some(_) | None => Ok(()),
    }
}

fn same_name(kind: Preset, listed: &str, asked: &str) -> bool {
    match kind {
        Preset::PythonPackages => python::normal(listed) == asked,
        Preset::NodePackages | Preset::DebianPackages | Preset::Git => listed == asked,
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_one_package_of_one_kind() {
        let asked = |path| understand(&Method::GET, path).map(|wanted| (wanted.kind, wanted.package)).ok();
        let (python, npm, debian) = (Preset::PythonPackages, Preset::NodePackages, Preset::DebianPackages);
        for (path, kind, package) in [
            ("/python/simple/Foo_Bar/", python, "foo-bar"),
            ("/python/files/cowsay/cowsay-1.0.tar.gz", python, "cowsay"),
            ("/npm/left-pad", npm, "left-pad"),
            ("/npm/@types%2fnode", npm, "@types/node"),
            ("/npm/@types/node", npm, "@types/node"),
            ("/npm/@types/node/-/node-1.0.0.tgz", npm, "@types/node"),
            ("/debian/dists/bookworm/InRelease", debian, ""),
            ("/debian/pool/main/c/curl/curl_7.88.1-10_amd64.deb", debian, "curl"),
            ("/debian-security/pool/updates/main/o/x/x_1_all.deb", debian, "x"),
            ("/debian/Packages.xz", debian, ""),
            (
                "/debian/dists/x/by-hash/SHA256/770e607624d689265ca6c44884d0807d9b054d23c473c106c72be9de08b7376c",
                debian,
                "",
            ),
            ("/debian/Pool/main/n/nmap/nmap_1.deb", debian, "nmap"),
            ("/debian/dists/stable/pool/nmap_1.DEB", debian, "nmap"),
            ("/debian/indices/nmap_1.deb", debian, "nmap"),
            ("/debian/nmap_1.orig.tar.xz", debian, "nmap"),
            ("/debian/dists/nmap_1.dsc", debian, "nmap"),
        ] {
            assert_eq!(asked(path), Some((kind, package.to_owned())), "{path}");
        }
        for path in [
            "/",
            "/python/",
            "/python/simple/",
            "/python/simple/../x/",
            "/python/simple/a/b",
            "/python/files/a/../../x",
            "/npm/",
            "/npm/-/all",
            "/npm/a/b/c",
            "/npm/%2e%2e/x",
            "/debian/../x",
            "/debian/%2e%2e/x",
            "/debianx/y",
            "/debian/a//b",
            "/debian/dists",
            "/debian/indices/md5sums.gz",
            "/debian/POOL/main/n/nmap/nmap",
            "/debian/x/by-hash/SHA256/770e607624d689265ca6c44884d0807d9b054d23c473c106c72be9de08b7376c",
            "/debian/dists/x/by-hash/SHA256/00",
            "/debian/dists/x/by-hash/SHA256/770E607624D689265CA6C44884D0807D9B054D23C473C106C72BE9DE08B7376C",
            "/other/x",
        ] {
            assert_eq!(asked(path), None, "{path}");
        }
        assert!(understand(&Method::PUT, "/npm/left-pad").is_err());
    }
}
