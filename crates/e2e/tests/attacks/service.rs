//! The attacks of `attacks/` on the service: a real `bellglass serve`, attacked by clients that can reach its
//! port.
//!
//! | module | attacks |
//! |---|---|
//! | [`defaults`] | D: the default configuration |
//! | [`wire`] | H-01, H-02, H-05: connections that are slow, silent, too many, or never read |
//! | [`bodies`] | H-03, H-04, H-06: bodies that are large, malformed or deceptive, or that precede authentication |
//! | [`keys`] | H-07, H-08, X-01: guessed keys, repeated requests, other projects' IDs |
//! | [`description`] | H-09: requests generated from the API description, valid and invalid |
//! | [`e2b`] | H-20: unauthorised access to the E2B API |
//! | [`credentials`] | H-22, H-23, H-24, H-26: credentials of one kind used as another kind, and streams of revoked keys |
//! | [`begun`] | H-42: access that was in progress when its key was revoked or rotated |
//! | [`matrix`] | H-25: every route with every credential |
//! | [`e2b_builds`] | H-21: templates built through E2B's API |
//! | [`workstation`] | A-21: workstation root that tries to leave its sandbox |
//! | [`execs`] | A-14, A-16: floods of execs, unread input |
//! | [`output`] | O-01, O-02, O-04: output that is endless, unread, or sent one byte at a time |
//! | [`framing`] | O-05, O-09: output that is not text, output that imitates its surroundings |
//! | [`display`] | O-08: text that acts on the program displaying it |
//! | [`clocks`] | A-18: clocks that jump |
//! | [`ports`] | N-16, N-17: ports without their token, a hostile page on a port's URL |
//! | [`viewers`] | N-30, N-33, N-35, N-36: viewers' data that reaches a port, and an application's response that affects the API's URL |
//! | [`sessions`] | X-24: another project's sandbox in a session's events |
//! | [`races`] | L-01, L-02, X-08: killed servers, concurrent use of one name, quotas |
//! | [`store`] | L-04: a store that is locked, damaged or missing |
//! | [`revocation`] | L-10, L-11, L-12: revoked keys that could work again: a damaged log, a full disk, a clock set back |
//! | [`records`] | L-13, L-15: a damaged journal record, a disk without inodes |
//! | [`chain`] | L-14: a truncated or modified audit log, and its entries about refused create requests |
//! | [`keeping`] | H-40: disk use outside the quota |
//! | [`readiness`] | X-25: refused create requests and the pool |
//! | [`locks`] | C-33: file locks, which Linux does not limit |
//! | [`machine`] | L-05, L-06: descriptor exhaustion, two servers on one data directory |
//! | [`terminals`] | K-17: input injected into the operator's terminal |
//! | [`disk`] | a small file system that tests can fill |
//! | [`uncounted`] | H-30 to H-35, H-38: data that is sent or retained without being counted |
//! | [`paused`] | H-43: requests without a credential for a paused sandbox |
//! | [`untaken`] | H-36, H-37, H-39: responses that are not read, requests that are too expensive |
//! | [`floods`] | H-41: floods of connections and requests on every path |
//! | [`flow`] | setup that `untaken` and `floods` share: held connections, memory, hand-written HTTP/2 |
//! | [`ground`] | setup that all of them share: raw requests, payloads, memory, a bystander |
//!
//! Each test has a control, which shows that the attack gets far enough for the defence to stop it. Tests
//! exhaust resources only under limits.

mod begun;
mod bodies;
mod chain;
mod clocks;
mod credentials;
mod defaults;
mod description;
mod disk;
mod display;
mod e2b;
mod e2b_builds;
mod execs;
mod floods;
mod flow;
mod framing;
pub(crate) mod ground;
mod keeping;
mod keys;
mod locks;
mod machine;
mod matrix;
mod output;
mod paused;
mod ports;
mod races;
mod readiness;
mod records;
mod revocation;
mod sessions;
mod store;
mod terminals;
mod uncounted;
mod untaken;
mod viewers;
mod wire;
mod workstation;
