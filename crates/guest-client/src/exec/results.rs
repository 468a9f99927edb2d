//! The result stream of an exec. Its bytes are split into lines, and each line is held back until the output
//! that was written before it has been delivered.
//!
//! A guest interleaves its streams, so a result line can arrive before the output that precedes it. The first
//! such line is held back, and the bytes after it are buffered, up to the maximum length of one line. Further
//! bytes are discarded; once there is space, they are requested again. The buffer is therefore bounded, and
//! nothing is lost.

use api::code::{ResultLine, RunResult};
use api::limits::RESULT_BYTES_MAX;
use bytes::{Buf as _, BytesMut};
use serde::Deserialize;
use serde::de::IgnoredAny;

use host::error::Error;

/// Maximum number of values in one line. Each value takes up to 32 bytes in memory, many times its size in
/// transit. A line with more values is delivered as omitted.
const VALUES_MAX: usize = 500_000;

/// Results that were received but have not been delivered yet.
#[derive(Default)]
pub(super) struct Results {
    /// Offset of the next line. All lines before it have been delivered.
    told: u64,
    /// Received bytes that begin at the offset `told`.
    buffer: BytesMut,
    /// Number of bytes at the beginning of the buffer that are known to contain no line end.
    scanned: usize,
    /// The first buffered line, if it is complete, and the offset of the line after it.
    first: Option<(u64, ResultLine)>,
    /// True if bytes were discarded. They are requested again once the buffer holds no complete line.
    behind: bool,
    /// True if `told` is an offset from a caller that has not been verified yet. A valid offset follows a
    /// line feed.
    unsure: bool,
}

/// The position of a line relative to the output streams. The result itself is not parsed.
#[derive(Deserialize)]
struct ResultPosition {
    stdout: u64,
    stderr: u64,
    #[serde(rename = "result")]
    _result: IgnoredAny,
}

impl Results {
    /// Starts at an offset that a caller specified.
    pub(super) fn at(told: u64) -> Self {
        Self { told, unsure: told > 0, ..Self::default() }
    }

    /// Returns the offset up to which all results have been delivered.
    pub(super) fn told(&self) -> u64 {
        self.told
    }

    /// Returns the offset from which to request results: one byte before `told` if `told` must be verified.
    pub(super) fn asks_from(&self) -> u64 {
        self.told - u64::from(self.unsure)
    }

    /// Drops the results that have not been delivered; they will be received again.
    pub(super) fn leave(&mut self) {
        *self = Self { told: self.told, unsure: self.unsure, ..Self::default() };
    }

    /// Returns true if bytes were discarded and there is space for them now.
    pub(super) fn is_behind(&self) -> bool {
        self.behind && self.first.is_none()
    }

    /// Adds the next bytes of the stream.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        if self.unsure {
            let Some((before, rest)) = bytes.split_first() else { return Ok(()) };
            if *before != b'\n' {
                return Err(Error::Request(api::Error::invalid(
                    format!("no result starts at offset {}", self.told),
                    "Start at offset 0, or at the value of `next` in a result that you received.",
                )));
            }
            (self.unsure, bytes) = (false, rest);
        }
        if self.behind || (self.first.is_some() && self.buffer.len() + bytes.len() > RESULT_BYTES_MAX) {
            self.behind = true;
            return Ok(());
        }
        self.buffer.extend_from_slice(bytes);
        self.look()
    }

    /// Skips results that the guest did not retain, up to an offset. Returns the start of the gap, or `None`
    /// if all skipped results had been delivered.
    pub(super) fn skip(&mut self, to: u64) -> Option<u64> {
        let from = self.told;
        *self = Self { told: to, ..Self::default() };
        (from < to).then_some(from)
    }

    /// Returns the first line, its offset and the offset of the next line, if the output before the line has
    /// been delivered.
    pub(super) fn next(&mut self, reached: [u64; 2]) -> Result<Option<(u64, u64, ResultLine)>, Error> {
        // A malformed line is reported only now, after all lines before it have been delivered.
        self.look()?;
        let belongs = |(_, line): &(u64, ResultLine)| line.stdout <= reached[0] && line.stderr <= reached[1];
        let Some((next, line)) = self.first.take_if(|first| belongs(first)) else { return Ok(None) };
        let offset = std::mem::replace(&mut self.told, next);
        Ok(Some((offset, next, line)))
    }

    /// Extracts the first line from the buffer, if it is complete.
    fn look(&mut self) -> Result<(), Error> {
        if self.first.is_some() {
            return Ok(());
        }
        let fresh = self.buffer.get(self.scanned..).unwrap_or_default();
        let end = fresh.iter().position(|byte| *byte == b'\n').map(|at| self.scanned + at);
        if end.unwrap_or(self.buffer.len()) > RESULT_BYTES_MAX {
            return Err(Error::Protocol(format!("a result exceeds {RESULT_BYTES_MAX} bytes")));
        }
        match end {
            None => self.scanned = self.buffer.len(),
            Some(end) => {
                let line = self.buffer.split_to(end);
                self.buffer.advance(1);
                self.scanned = 0;
                self.first = Some((self.told + end as u64 + 1, parsed(&line)?));
            }
        }
        Ok(())
    }
}

fn parsed(line: &[u8]) -> Result<ResultLine, Error> {
    let wrong = |error: serde_json::Error| Error::Protocol(format!("malformed result: {error}"));
    if values(line) <= VALUES_MAX
        && let Ok(line) = serde_json::from_slice(line)
    {
        return Ok(line);
    }
    // Code can write anything to its result channel: unknown content must not affect the reading of other
    // results.
    let ResultPosition { stdout, stderr, .. } = serde_json::from_slice(line).map_err(wrong)?;
    let result = RunResult::Omitted { bytes: line.len() as u64, types: Vec::new() };
    Ok(ResultLine { stdout, stderr, result })
}

/// Returns an estimate of the number of values in a line of JSON. The actual number is at most one higher.
fn values(line: &[u8]) -> usize {
    let (mut count, mut in_text, mut escaped) = (0, false, false);
    for byte in line {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(stdout: u64, text: &str) -> Vec<u8> {
        let value = serde_json::json!({
            "stdout": stdout, "stderr": 0, "result": {"kind": "value", "data": {"text/plain": text}},
        });
        format!("{value}\n").into_bytes()
    }

    fn told(results: &mut Results, reached: u64) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        while let Some((offset, next, _)) = results.next([reached, 0]).unwrap() {
            all.push((offset, next));
        }
        all
    }

    #[test]
    fn lines_are_put_together_wherever_they_were_cut() {
        let (one, two) = (line(0, "☕"), line(0, "b"));
        let (first, both) = (one.len() as u64, (one.len() + two.len()) as u64);
        let bytes = [one, two].concat();
        for cuts in 1..bytes.len() {
            let (mut results, mut all) = (Results::default(), Vec::new());
            for piece in bytes.chunks(cuts) {
                results.take(piece).unwrap();
                all.extend(told(&mut results, 0));
            }
            assert_eq!(all, [(0, first), (first, both)], "{cuts}");
        }
    }

    #[test]
    fn what_waits_is_bounded_and_asked_for_again() {
        let early = line(5, "a");
        let long = line(0, &"x".repeat(RESULT_BYTES_MAX / 2));
        let mut results = Results::default();
        results.take(&early).unwrap();
        results.take(&long).unwrap();
        assert!(!results.behind && told(&mut results, 4).is_empty());
        results.take(&long).unwrap();
        assert!(results.behind && !results.is_behind(), "what is held comes first");
        assert!(results.buffer.len() <= RESULT_BYTES_MAX);
        assert_eq!(told(&mut results, 5).len(), 2);
        assert!(results.is_behind());
        results.leave();
        assert_eq!(results.asks_from(), (early.len() + long.len()) as u64);
    }

    #[test]
    fn an_offset_within_a_line_is_the_askers_mistake() {
        let mut results = Results::at(7);
        assert_eq!(results.asks_from(), 6);
        assert!(matches!(results.take(b"xyz\n"), Err(Error::Request(_))));
        let mut results = Results::at(7);
        results.take(&[&b"\n"[..], &line(0, "a")].concat()).unwrap();
        assert_eq!(told(&mut results, 0)[0].0, 7);
    }

    #[test]
    fn a_result_before_a_malformed_line_is_delivered() {
        let mut results = Results::default();
        results.take(&[line(0, "a"), b"{}\n".to_vec()].concat()).unwrap();
        assert!(results.next([0, 0]).unwrap().is_some());
        assert!(results.next([0, 0]).is_err());
    }

    #[test]
    fn a_line_of_too_many_values_is_told_as_omitted() {
        let many = format!(
            r#"{{"stdout":3,"stderr":0,"result":{{"kind":"value","data":{{"application/json":[0{}]}}}}}}"#,
            ",0".repeat(VALUES_MAX)
        );
        let omitted = parsed(many.as_bytes()).unwrap();
        assert!(matches!(omitted.result, RunResult::Omitted { bytes, .. } if bytes == many.len() as u64));
        assert_eq!(omitted.stdout, 3);
        assert_eq!(values(br#"{"a\"[,":",[{","b":[1,2]}"#), 4);
    }
}
