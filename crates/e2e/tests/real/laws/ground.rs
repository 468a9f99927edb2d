//! Setup for the tests of the laws: a data directory, a template whose only layer contains just the mount
//! points, and a check for leftovers.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use api::limits::Limits;
use e2e::daytona::Server;
use e2e::traces::Traces;
use runtime::daytona::Daytona;
use runtime::engine::{Engine, EngineEndpoint, EngineKind};
use runtime::laws::Fixture;
use runtime::oci::{Dirs, Flavor, Oci};
use runtime::{Profile, Runtime, Spec};

/// Mount points of a sandbox, all of which exist in every imported template.
const MOUNT_POINTS: [&str; 11] = [
    "proc",
    "dev",
    "sys",
    "tmp",
    "workspace",
    "home/sandbox",
    "layers/target",
    "layers/0",
    ".bellglass/channel",
    ".bellglass/spool",
    "etc",
];

/// Timeout for any single operation on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The directory of one test, and the prefix that identifies the test's sandboxes.
pub struct Ground {
    home: tempfile::TempDir,
    guest: PathBuf,
    pub prefix: String,
}

impl Ground {
    /// Prepares a test.
    pub fn new(name: &str) -> Self {
        assert!(rustix::process::geteuid().is_root(), "this test needs root");
        let home = tempfile::tempdir().unwrap();
        let guest = host::guest::install(home.path()).unwrap();
        fs::set_permissions(home.path(), Permissions::from_mode(0o711)).unwrap();
        let ground = Self { home, guest, prefix: format!("law{name}p{}n", std::process::id()) };
        for point in MOUNT_POINTS {
            fs::create_dir_all(ground.path("layer").join(point)).unwrap();
        }
        fs::write(ground.path("layer").join(".bellglass/guest"), "").unwrap();
        ground
    }

    /// Returns a path in this test's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub fn dirs(&self) -> Dirs {
        Dirs::below(self.path("data"))
    }

    pub fn spec(&self) -> Spec {
        let limits = Limits { disk_bytes: 64 << 20, disk_inodes: 1024, ..Limits::default() };
        let image = runtime::engine::EMPTY.into();
        Spec {
            layers: vec![self.path("layer")],
            image,
            limits,
            profile: Profile::Run,
            guest: self.guest.clone(),
        }
    }

    pub fn oci(&self, flavor: Flavor) -> Oci {
        Oci::new(flavor.find().unwrap(), self.dirs()).unwrap()
    }

    pub fn fixture(&self, flavor: Flavor) -> Fixture {
        let dirs = self.dirs();
        let instance = move || -> Box<dyn Runtime> {
            Box::new(Oci::new(flavor.clone().find().unwrap(), dirs.clone()).unwrap())
        };
        Fixture {
            spec: self.spec(),
            prefix: self.prefix.clone(),
            instance: Box::new(instance),
            patience: PATIENCE,
            used: AtomicU32::new(0),
        }
    }

    /// Returns a fixture that runs the same sandboxes in an engine.
    pub fn engine_fixture(&self, kind: EngineKind) -> Fixture {
        let data = self.dirs().data;
        let instance = move || -> Box<dyn Runtime> {
            let engine = Engine::new(EngineEndpoint::find(kind).unwrap(), &data);
            Box::new(engine.unwrap())
        };
        Fixture { instance: Box::new(instance), ..self.fixture(Flavor::runc()) }
    }

    /// Returns a fixture that runs the same sandboxes in workspaces on the stand-in for Daytona, from an
    /// image with a shell.
    pub fn daytona_fixture(&self) -> Fixture {
        let data = self.dirs().data;
        let instance = move || -> Box<dyn Runtime> {
            Box::new(Daytona::new(Server::shared().account(), &data).unwrap())
        };
        let spec = Spec { image: e2e::layer::base_image("daytona"), ..self.spec() };
        Fixture { spec, instance: Box::new(instance), ..self.fixture(Flavor::runc()) }
    }

    /// Stops the sandboxes that a mutant has left running.
    pub async fn stop_all(&self) {
        let oci = self.oci(Flavor::runc());
        for listed in oci.list().await.unwrap() {
            oci.stop(&listed.id, Duration::ZERO).await.unwrap();
        }
    }

    /// Asserts that nothing of this test's sandboxes is left on the machine.
    pub fn assert_clean(&self) {
        Traces::of(&[&self.prefix, &self.home.path().to_string_lossy()]).assert_nothing_left();
        for kept in [
            "sandboxes",
            "runtime/runc",
            "runtime/runsc",
            "engine/docker",
            "engine/podman",
            "daytona/sandboxes",
        ] {
            let left: Vec<_> =
                fs::read_dir(self.dirs().data.join(kept)).into_iter().flatten().flatten().collect();
            assert!(left.is_empty(), "left in {kept}: {left:?}");
        }
    }
}
