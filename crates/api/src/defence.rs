//! Switches for the controls of attacks.
//!
//! An attack proves something only if it succeeds without its defence. A test build can turn one defence off by the id of
//! its attack in `attacks/`, in the variable `BELLGLASS_UNDEFENDED` (several are separated by commas), and show that. Without
//! the feature `undefended`, which only the tests of `e2e` ask for, [`is_off`] is a constant: what is shipped has no switch. Process 1 of a
//! sandbox is built with the feature when `node` is.

/// Names the attacks whose defence is off.
pub const VARIABLE: &str = "BELLGLASS_UNDEFENDED";

/// The attacks whose defence is off in this process only.
#[cfg(feature = "undefended")]
static OFF: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

/// A defence that is off in this process for as long as this value lives.
#[cfg(feature = "undefended")]
#[derive(Debug)]
pub struct Off(String);

/// Turns the defence against an attack off in this process, for tests that run the platform in their own.
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

/// Whether the defence against an attack is off.
#[cfg(feature = "undefended")]
pub fn is_off(attack: &str) -> bool {
    let here = OFF.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    here.iter().any(|one| one == attack)
        || std::env::var(VARIABLE).is_ok_and(|all| all.split(',').any(|one| one == attack))
}

/// The attacks whose defence is off, as [`VARIABLE`] names them: for process 1 of a sandbox, which has an environment of its own.
#[cfg(feature = "undefended")]
pub fn off() -> Option<String> {
    let here = OFF.lock().unwrap_or_else(std::sync::PoisonError::into_inner).join(",");
    let inherited = std::env::var(VARIABLE).unwrap_or_default();
    let all: Vec<&str> = [here.as_str(), &inherited].into_iter().filter(|names| !names.is_empty()).collect();
    (!all.is_empty()).then(|| all.join(","))
}

/// The attacks whose defence is off: none.
#[cfg(not(feature = "undefended"))]
pub const fn off() -> Option<String> {
    None
}

/// Whether the defence against an attack is off: never.
#[cfg(not(feature = "undefended"))]
pub const fn is_off(_attack: &str) -> bool {
    false
}
