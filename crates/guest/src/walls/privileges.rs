//! Privileges that process 1 drops permanently before any code runs, and the setup steps that need them.

use std::io;

use api::walls::{Instruction, Walls};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Failed, step};
use crate::descent::{CAPABILITIES_VERSION, CAPABILITY_LAST};
use crate::syscall::done;

/// Host name of every sandbox.
const NAME: &[u8] = b"sandbox";

/// Sets up the new namespaces: the host name, and the loopback interface as the only network interface.
pub fn name_and_loopback() -> Result<(), Failed> {
    // SAFETY: The pointer refers to a string of the given length.
    step("set the host name", done(unsafe { libc::sethostname(NAME.as_ptr().cast(), NAME.len()) }))?;
    step("set up the loopback interface", loopback())
}

fn loopback() -> io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: `ifreq` is plain data, for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    use std::os::fd::AsRawFd as _;
    // SAFETY: The descriptor is open, and the request, which the call reads, outlives the call.
    done(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) })
}

/// Drops all privileges that process 1 does not need, so that user code cannot inherit them.
pub fn give_up(walls: &Walls) -> Result<(), Failed> {
    let to = |value: u64| Rlimit { current: Some(value), maximum: Some(value) };
    step("limit core files", setrlimit(Resource::Core, to(0)).map_err(Into::into))?;
    // This limit cannot exceed the workspace's own limit.
    let open_files =
        getrlimit(Resource::Nofile).maximum.map_or(walls.open_files, |most| most.min(walls.open_files));
    step("limit open files", setrlimit(Resource::Nofile, to(open_files)).map_err(Into::into))?;
    // SAFETY: The call reads no pointer if the number of groups is 0.
    step("drop supplementary groups", done(unsafe { libc::setgroups(0, std::ptr::null()) }))?;
    // SAFETY: `setresgid` takes no pointers.
    step("set the group to root", done(unsafe { libc::setresgid(0, 0, 0) }))?;
    // SAFETY: `setresuid` takes no pointers.
    step("set the user to root", done(unsafe { libc::setresuid(0, 0, 0) }))?;
    for capability in (0..=CAPABILITY_LAST).filter(|number| walls.capabilities >> number & 1 == 0) {
        // SAFETY: The call takes no pointers. EINVAL is expected for numbers above the kernel's last
        // capability.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    // SAFETY: The call takes no pointers.
    let cleared = unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0, 0, 0)
    };
    step("clear the ambient capabilities", done(cleared))?;
    step("drop capabilities", keep_only(walls.capabilities))?;
    step("set no_new_privs", rustix::thread::set_no_new_privs(true).map_err(Into::into))?;
    for filter in &walls.filters {
        step("filter system calls", install(filter))?;
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    step("change to the root directory", std::env::set_current_dir("/"))
}

fn keep_only(capabilities: u64) -> io::Result<()> {
    let header = [CAPABILITIES_VERSION, 0];
    let (low, high) = (capabilities as u32, (capabilities >> 32) as u32);
    // The effective, permitted and inheritable sets: first the lower 32 bits of each, then the upper 32 bits.
    let sets = [low, low, 0, high, high, 0];
    // SAFETY: Both arrays have the layout that the call expects, and outlive the call.
    done(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) } as libc::c_int)
}

/// Installs a seccomp filter for this process and its descendants.
fn install(filter: &[Instruction]) -> io::Result<()> {
    let mut instructions: Vec<libc::sock_filter> =
        filter.iter().map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect();
    let len = instructions.len().try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let program = libc::sock_fprog { len, filter: instructions.as_mut_ptr() };
    // SAFETY: The program states its number of instructions correctly, and both outlive the call.
    done(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) })
}
