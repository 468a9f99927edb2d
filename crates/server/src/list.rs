//! Responses with a list. The size of a list is only known once the list is read and encoded. A project
//! therefore reads few lists at a time, and an encoded list counts towards the project's memory until it is
//! sent.

use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use control::account::Share;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use crate::listen::Reserved;
use crate::rejection::Answer;

/// A list that is being read. Keep it until the items are encoded.
pub struct Listing {
    share: Arc<Share>,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Listing {
    /// Waits until the project may read another list.
    ///
    /// # Errors
    /// Returns `rate_limited` if other lists of the project take too long, or if too many are unread.
    pub async fn begin(share: &Arc<Share>) -> Answer<Self> {
        Ok(Self { _turn: share.listing().await?, share: Arc::clone(share) })
    }

    /// Does the same as [`Listing::begin`] for a list that is read from a sandbox.
    ///
    /// # Errors
    /// Returns the same errors.
    pub async fn of_guest(share: &Arc<Share>) -> Answer<Self> {
        Ok(Self { _turn: share.guest_listing().await?, share: Arc::clone(share) })
    }

    /// Returns the response with the list. Drops the items before another list can be read.
    ///
    /// # Errors
    /// Returns `rate_limited` if the project's unread lists leave too little memory.
    pub fn respond(self, list: impl Serialize) -> Answer<Response> {
        let Ok(text) = serde_json::to_vec(&list) else {
            return Ok(StatusCode::INTERNAL_SERVER_ERROR.into_response());
        };
        drop(list);
        self.respond_encoded(text)
    }

    /// Returns the response with a list that is already JSON.
    ///
    /// # Errors
    /// Returns `rate_limited` if the project's unread lists leave too little memory.
    pub fn respond_encoded(self, mut text: Vec<u8>) -> Answer<Response> {
        // The buffer may be twice as large as the text.
        text.shrink_to_fit();
        let memory = self.share.list(text.len())?;
        let json = HeaderValue::from_static("application/json");
        let mut response = ([(header::CONTENT_TYPE, json)], text).into_response();
        response.extensions_mut().insert(Reserved::new(memory));
        Ok(response)
    }
}
