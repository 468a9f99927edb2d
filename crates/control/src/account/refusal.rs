//! Refusals of requests without a valid key. They are counted per client address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use api::{Error, ErrorCode, Layer, Ran, Retry};
use governor::{DefaultDirectRateLimiter, RateLimiter};

use super::{at_least_one, locked, wait};
use crate::fault::Fault;

/// Maximum number of requests without a valid key that one address may send per minute. Further requests get
/// `rate_limited` and are not recorded in the audit log.
const WRONG_PER_MINUTE: u32 = 30;
/// Maximum number of addresses for which invalid keys are counted. At the limit, all counters are cleared.
const ADDRESSES_MAX: usize = 10_000;

/// Rate limiters for requests without a valid key, by the address that sent them.
#[derive(Default)]
pub(super) struct Refusals(Mutex<HashMap<IpAddr, Arc<DefaultDirectRateLimiter>>>);

impl Refusals {
    /// Counts a request against its address, and returns the error for it.
    pub(super) fn refuse(&self, from: Option<IpAddr>) -> Fault {
        let mut wrong = locked(&self.0);
        if wrong.len() >= ADDRESSES_MAX {
            wrong.clear();
        }
        let per_minute = governor::Quota::per_minute(at_least_one(WRONG_PER_MINUTE));
        let limiter = from.map(|from| {
            Arc::clone(wrong.entry(from).or_insert_with(|| Arc::new(RateLimiter::direct(per_minute))))
        });
        drop(wrong);
        let limiter = limiter.filter(|_| !api::defence::is_off("H-07"));
        if let Some(wait) = limiter.and_then(|limiter| wait(&limiter)) {
            return Fault::from(Error {
                code: ErrorCode::RateLimited,
                message: "too many requests without a valid key from this address".into(),
                layer: Layer::Policy,
                ran: Ran::No,
                retry: Retry::Safe,
                fix: "Wait, then send a valid key.".into(),
            })
            .after(wait);
        }
        Error {
            code: ErrorCode::Unauthorized,
            message: "the request has no key, or its key is unknown, revoked or expired".into(),
            layer: Layer::Policy,
            ran: Ran::No,
            retry: Retry::Useless,
            fix: "Set BELLGLASS_API_KEY, or send `Authorization: Bearer KEY`, with a complete key of this server. An administrator creates keys: `bellglass key create --project PROJECT`."
                .into(),
        }
        .into()
    }
}
