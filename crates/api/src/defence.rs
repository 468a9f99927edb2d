//! Switches that turn off defences against attacks, in test builds only.
//!
//! An attack test proves something only if the attack succeeds without the defence. Test builds can therefore
//! turn off individual defences: [`VARIABLE`] lists the IDs of the corresponding attacks in `attacks/`,
//! separated by commas. Without the feature `undefended`, which only the tests of `e2e` enable, [`is_off`] is
//! a constant, so release builds contain no switch. If `node` is built with this feature, so is process 1 of
//! its sandboxes.

/// Environment variable that lists the attacks whose defence is off.
pub const VARIABLE: &str = "BELLGLASS_UNDEFENDED";

/// Attacks whose defence is off in this process only.
#[cfg(feature = "undefended")]
static OFF: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

/// Guard that keeps one defence off in this process until it is dropped.
#[cfg(feature = "undefended")]
#[derive(Debug)]
pub struct Off(String);

/// Turns off the defence against an attack in this process, for tests that run the platform in the test
/// process.
#[cfg(feature = "undefended")]
#[must_use]
pub fn turn_off(attack: &str) -> Off {
    OFF.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(attack.to_owned());
    Off(attack.to_owned())
}

#[cfg(feature = "undefended")]
impl Drop for Off {
    fn drop(&mut self) {
        OFF.lock().unwrap_or_else(std::sync::PoisonError::into_inner).retain(|attack| *attack != self.0);
    }
}

/// Returns true if the defence against an attack is off.
#[cfg(feature = "undefended")]
pub fn is_off(attack: &str) -> bool {
    let here = OFF.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    here.iter().any(|one| one == attack)
        || std::env::var(VARIABLE).is_ok_and(|all| all.split(',').any(|one| one == attack))
}

/// Returns a limit. If the defence against an attack is off, returns twice the limit, because no attack runs
/// without a limit.
pub fn limit(limit: u64, attack: &str) -> u64 {
    if is_off(attack) { limit.saturating_mul(2) } else { limit }
}

/// Returns the attacks whose defence is off, in the format of [`VARIABLE`]. The node passes this list to
/// process 1 of each sandbox, which does not inherit the environment.
#[cfg(feature = "undefended")]
pub fn off() -> Option<String> {
    let here = OFF.lock().unwrap_or_else(std::sync::PoisonError::into_inner).join(",");
    let inherited = std::env::var(VARIABLE).unwrap_or_default();
    let all: Vec<&str> = [here.as_str(), &inherited].into_iter().filter(|names| !names.is_empty()).collect();
    (!all.is_empty()).then(|| all.join(","))
}

/// Returns `None`, because release builds cannot turn off a defence.
#[cfg(not(feature = "undefended"))]
pub const fn off() -> Option<String> {
    None
}

/// Returns false, because release builds cannot turn off a defence.
#[cfg(not(feature = "undefended"))]
pub const fn is_off(_attack: &str) -> bool {
    false
}
