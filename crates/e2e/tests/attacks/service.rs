//! The attacks of `attacks/` on the service: a real `bellglass serve`, asked by whoever can reach its port.
//!
//! | module | attacks |
//! |---|---|
//! | [`defaults`] | D: what is there unless somebody says otherwise |
//! | [`wire`] | H-01, H-02, H-05: connections that are slow, silent, many, or never read |
//! | [`bodies`] | H-03, H-04, H-06: bodies that are large, wrong or too early |
//! | [`keys`] | H-07, H-08, X-01: guessed keys, repeated requests, other people's ids |
//! | [`description`] | H-09: everything the description of the API allows, and more |
//! | [`e2b`] | H-20: the API of E2B without the right to it |
//! | [`credentials`] | H-22, H-23, H-24, H-26: one kind of credential taken for another, keys that were revoked or rotated |
//! | [`begun`] | H-42: what was begun with a key that is then revoked or rotated |
//! | [`matrix`] | H-25: every route with every credential |
//! | [`e2b_builds`] | H-21: templates built through it |
//! | [`workstation`] | A-21: root of a workstation wants more than its sandbox |
//! | [`execs`] | A-14, A-16: floods of execs, input that nobody reads |
//! | [`output`] | O-01, O-02, O-04: output without end, without readers, a byte at a time |
//! | [`framing`] | O-05, O-09: bytes that are no text, text that imitates what stands around it |
//! | [`display`] | O-08: text that acts on whoever shows it |
//! | [`clocks`] | A-18: clocks that jump |
//! | [`ports`] | N-16, N-17: ports without their token, a hostile page behind an address |
//! | [`viewers`] | N-30, N-33, N-35, N-36: what a port gets of its viewers, and what its answers do to the API's address |
//! | [`sessions`] | X-24: another project's sandbox in a session's events |
//! | [`races`] | L-01, L-02, X-08: killed servers, the same name at once, quotas |
//! | [`store`] | L-04: a store that is locked, damaged, gone |
//! | [`revocation`] | L-10, L-11, L-12: keys that work again: a damaged log, a full disk, a clock that goes back |
//! | [`records`] | L-13, L-15: a damaged record of the journal, a disk without inodes |
//! | [`chain`] | L-14: the audit log cut or changed, and what it says of refused creates |
//! | [`keeping`] | H-40: disk that no quota counts |
//! | [`readiness`] | X-25: refused creates and the pool |
//! | [`locks`] | C-33: file locks, which Linux does not limit |
//! | [`machine`] | L-05, L-06: no descriptors, two servers |
//! | [`disk`] | a small file system that can be filled |
//! | [`uncounted`] | H-30 to H-35, H-38: what is sent or kept without being counted |
//! | [`paused`] | H-43: requests without a credential for a paused sandbox |
//! | [`untaken`] | H-36, H-37, H-39: answers that nobody takes, questions that cost too much |
//! | [`floods`] | H-41: all of it at once, on every path |
//! | [`flow`] | what those stand on: connections that are held, memory, HTTP/2 by hand |
//! | [`ground`] | what all of them stand on: raw requests, payloads, memory, a bystander |
//!
//! Each has a control that shows the attack arriving where its defence stops it. Exhaustion is tried under limits only.

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
mod ground;
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
mod uncounted;
mod untaken;
mod viewers;
mod wire;
mod workstation;
