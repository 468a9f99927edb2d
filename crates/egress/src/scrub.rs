//! Masks secret values in responses. A host that echoes a request must not reveal the values that the broker
//! inserted into it.
//!
//! Values are found unencoded and in the encodings that servers commonly use to return their input: base64,
//! percent-encoding and JSON. Each byte of a value is masked separately, so the length of the response does
//! not change.
//!
//! The scrubber withholds the last bytes received until more arrive or the response ends, so that it also
//! finds a value that arrives in two chunks. It withholds one byte fewer than the longest form of a value,
//! regardless of content. If it withheld only bytes that could be the beginning of a value, a program that
//! can make a host return chosen text could guess the value character by character from the delays.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::secret::SecretValue;

/// The byte that replaces each masked byte.
const MASK: u8 = b'*';
/// Hexadecimal digits for percent-encoding, in both cases.
const DIGITS: [&[u8; 16]; 2] = [b"0123456789ABCDEF", b"0123456789abcdef"];

/// A filter that masks values in a stream of bytes.
pub struct Scrubber {
    forms: Arc<Forms>,
    held: BytesMut,
    /// Number of bytes at the beginning of `held` that belong to a match.
    found: usize,
}

/// The forms of all values to search for.
struct Forms {
    /// Sorted, so that forms with the same first byte are adjacent.
    all: Vec<Vec<u8>>,
    /// For each possible first byte, the range of the forms in `all` that begin with it.
    by_first: Vec<Range<usize>>,
    longest: usize,
}

/// A body with masked values. Trailers are dropped.
pub struct Scrubbed {
    body: Incoming,
    scrubber: Scrubber,
    ended: bool,
}

impl Scrubber {
    /// Creates a scrubber that masks these values.
    pub fn new<'a>(values: impl IntoIterator<Item = &'a SecretValue>) -> Self {
        let mut all: Vec<Vec<u8>> = values.into_iter().flat_map(|value| forms(value.expose())).collect();
        all.sort();
        all.dedup();
        let before =
            |byte: usize| all.partition_point(|form| form.first().copied().map_or(0, usize::from) < byte);
        let by_first = (0..256).map(|byte| before(byte)..before(byte + 1)).collect();
        let longest = all.iter().map(Vec::len).max().unwrap_or(0);
        Self::of(Arc::new(Forms { all, by_first, longest }), BytesMut::new())
    }

    /// Adds bytes, and returns the masked bytes that later input can no longer affect.
    pub fn push(&mut self, bytes: &[u8]) -> Bytes {
        self.held.extend_from_slice(bytes);
        self.clear(self.forms.longest.saturating_sub(1))
    }

    /// Ends the stream, and returns the withheld bytes.
    pub fn finish(&mut self) -> Bytes {
        self.clear(0)
    }

    /// Masks values in a complete text.
    pub fn whole(&self, bytes: &[u8]) -> Bytes {
        Self::of(Arc::clone(&self.forms), BytesMut::from(bytes)).finish()
    }

    /// Returns true if the text contains a value.
    pub fn finds(&self, bytes: &[u8]) -> bool {
        self.whole(bytes) != bytes
    }

    fn of(forms: Arc<Forms>, held: BytesMut) -> Self {
        Self { forms, held, found: 0 }
    }

    /// Masks and returns all bytes except the last `withheld` bytes.
    fn clear(&mut self, withheld: usize) -> Bytes {
        let end = self.held.len().saturating_sub(withheld);
        for at in 0..end {
            let rest = self.held.get(at..).unwrap_or_default();
            // All overlapping matches are masked, so that no part of a value remains.
            if let Some(long) = self.forms.at_the_beginning_of(rest).filter(|_| !api::defence::is_off("S-02"))
            {
                self.found = self.found.max(at + long);
            }
            if at < self.found
                && let Some(byte) = self.held.get_mut(at)
            {
                *byte = MASK;
            }
        }
        self.found = self.found.saturating_sub(end);
        self.held.split_to(end).freeze()
    }
}

impl Forms {
    /// Returns the length of the longest form at the beginning of the text.
    fn at_the_beginning_of(&self, text: &[u8]) -> Option<usize> {
        let same = self.by_first.get(usize::from(*text.first()?))?;
        let same = self.all.get(same.clone())?;
        same.iter().filter(|form| text.starts_with(form)).map(Vec::len).max()
    }
}

impl Scrubbed {
    /// Creates a body that is filtered by the scrubber.
    pub fn new(body: Incoming, scrubber: Scrubber) -> Self {
        Self { body, scrubber, ended: false }
    }
}

impl Body for Scrubbed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        while !self.ended {
            let clear = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.scrubber.push(&bytes),
                    Err(_) => continue,
                },
                Some(Err(error)) => {
                    // The withheld bytes are dropped: they may be the beginning of a value.
                    self.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    self.ended = true;
                    self.scrubber.finish()
                }
            };
            if !clear.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(clear))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.ended || (self.body.is_end_stream() && self.scrubber.held.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.scrubber.held.len() as u64;
        let inner = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + held);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + held);
        }
        hint
    }
}

/// Returns all forms of a value to search for, unencoded and encoded.
fn forms(value: &str) -> Vec<Vec<u8>> {
    let mut forms = vec![value.as_bytes().to_vec()];
    for digits in DIGITS {
        forms.push(percent(value, digits, b"%20"));
        forms.push(percent(value, digits, b"+"));
    }
    if let Ok(json) = serde_json::to_string(value) {
        for json in [json.replace('/', "\\/"), json] {
            forms.extend(json.as_bytes().get(1..json.len() - 1).map(<[u8]>::to_vec));
        }
    }
    // In base64, a value has three forms, depending on the number of bytes before it. Characters that also
    // encode neighbouring bytes are not part of the form.
    for before in 0..3_usize {
        let bytes = [&vec![0; before], value.as_bytes()].concat();
        let own = (before * 8).div_ceil(6)..bytes.len() * 8 / 6;
        for text in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
            forms.extend(text.as_bytes().get(own.clone()).map(<[u8]>::to_vec));
        }
    }
    forms.retain(|form| form.len() >= value.len().min(8));
    forms
}

fn percent(value: &str, digits: &[u8; 16], space: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(value.len() * 3);
    for byte in value.bytes() {
        let digit = |at: u8| digits.get(usize::from(at)).copied().unwrap_or_default();
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => text.push(byte),
            b' ' => text.extend_from_slice(space),
            _ => text.extend([b'%', digit(byte >> 4), digit(byte & 15)]),
        }
    }
    text
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    fn scrubber(values: &[&str]) -> Scrubber {
        let values: Vec<_> = values.iter().map(|value| SecretValue::new((*value).to_owned())).collect();
        Scrubber::new(&values)
    }

    fn in_pieces(values: &[&str], bytes: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut scrubber = scrubber(values);
        let (mut clear, mut from) = (Vec::new(), 0);
        for cut in cuts.iter().map(|cut| (*cut).min(bytes.len())) {
            let piece = bytes.get(from..cut).unwrap_or_default();
            clear.extend_from_slice(&scrubber.push(piece));
            from = from.max(cut);
        }
        clear.extend_from_slice(&scrubber.push(&bytes[from..]));
        clear.extend_from_slice(&scrubber.finish());
        clear
    }

    #[test]
    fn a_value_is_taken_out_in_every_form_and_lengths_stay() {
        // Covers attack S-02.
        let value = "s3cr3t /+\"ä\"-canary";
        let scrubber = scrubber(&[value]);
        for text in [
            value.to_owned(),
            format!("x{value}{value}y"),
            "s3cr3t%20%2F%2B%22%C3%A4%22-canary".into(),
            "s3cr3t+%2f%2b%22%c3%a4%22-canary".into(),
            serde_json::to_string(value).unwrap(),
            serde_json::to_string(value).unwrap().replace('/', "\\/"),
        ] {
            let clear = scrubber.whole(text.as_bytes());
            assert_eq!(clear.len(), text.len());
            let clear = String::from_utf8_lossy(&clear).into_owned();
            assert!(!clear.contains("canary") && !clear.contains("s3cr3t"), "{text}: {clear}");
        }
        for before in ["", "u", "us", "user:", "x-token:"] {
            let text = STANDARD.encode(format!("{before}{value}"));
            let clear = scrubber.whole(text.as_bytes());
            let known = STANDARD.encode(before);
            let left = clear.iter().filter(|byte| **byte != MASK && **byte != b'=').count();
            assert!(clear.len() == text.len() && left <= known.trim_end_matches('=').len() + 2, "{clear:?}");
        }
        assert!(!scrubber.finds(b"s3cr3t /+"));
        assert_eq!(&scrubber.whole(b"s3cr3t /+")[..], b"s3cr3t /+");
    }

    #[test]
    fn what_lies_over_another_is_taken_out_with_it() {
        let scrubber = scrubber(&["abababab", "ababababXY"]);
        assert_eq!(&scrubber.whole(b"-ababababab-")[..], b"-**********-");
        assert_eq!(&scrubber.whole(b"-ababababXY-")[..], b"-**********-");
        assert_eq!(&in_pieces(&["abababab", "ababababXY"], b"-ababababX-", &[5, 9])[..], b"-********X-");
    }

    #[test]
    fn what_may_be_a_part_of_a_value_is_withheld_until_more_comes() {
        // Attack S-02, as on OpenShell: a marker that is split between two chunks.
        let mut scrubber = scrubber(&["0123456789"]);
        let late = scrubber.forms.longest - 1;
        let mut clear = scrubber.push(b"ab01234").to_vec();
        clear.extend(scrubber.push(b"56789z"));
        assert!(!clear.contains(&b'0'), "{clear:?}");
        clear.extend(scrubber.push(&vec![b'.'; late]));
        assert_eq!(&clear[..], b"ab**********z");
        clear.extend(scrubber.push(b"01234"));
        clear.extend(scrubber.finish());
        assert!(clear.ends_with(b".01234"), "{clear:?}");
    }

    #[test]
    fn nothing_without_a_value_to_look_for_is_late() {
        let mut none = scrubber(&[]);
        assert_eq!((&none.push(b"abc")[..], &none.finish()[..]), (&b"abc"[..], &b""[..]));
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            words in proptest::collection::vec("(abab|ba|canary-a|canary-abab|b|%61|YWJ)", 0..30),
            mut cuts in proptest::collection::vec(0_usize..120, 0..12),
        ) {
            let values = ["canary-abab", "abababab"];
            let bytes = words.concat().into_bytes();
            cuts.sort_unstable();
            let clear = in_pieces(&values, &bytes, &cuts);
            prop_assert_eq!(&clear[..], &scrubber(&values).whole(&bytes)[..]);
            prop_assert_eq!(clear.len(), bytes.len());
            // The length of the output must not depend on the content, which it would otherwise reveal.
            let other = vec![b'-'; bytes.len()];
            let (mut one, mut two) = (scrubber(&values), scrubber(&values));
            for cut in cuts.iter().map(|cut| (*cut).min(bytes.len())) {
                prop_assert_eq!(one.push(&bytes[..cut]).len(), two.push(&other[..cut]).len());
            }
            for value in values {
                prop_assert!(!clear.windows(value.len()).any(|window| window == value.as_bytes()));
            }
        }
    }
}
