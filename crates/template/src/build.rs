//! Builds a template from a recipe, step by step. Steps whose result is cached are not run again.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use api::layer::LAYERS_MAX;
use host::error::Error;
use serde_json::json;

use crate::base::Base;
use crate::cache::{self, Log, StepKey};
use crate::layers::{self, Layers};
use crate::recipe::{Copy, Debian, Ground, Recipe, Step};
use crate::sent::Archives;
use crate::step::{Ears, Setting, StepWork, check_imported};
use crate::unpack::Source;
use crate::{Builder, LayerPosition, ProgressSink, Store, Template, TemplateProgress, copy, failed, store};

/// Maximum number of characters of the Python version that are logged. The version comes from the sandbox,
/// which is not trusted.
const VERSION_CHARS_MAX: usize = 64;

/// A request to build a template.
pub struct BuildOrder<'a> {
    /// The name of the template.
    pub name: &'a str,
    /// The recipe of the template.
    pub recipe: &'a Recipe,
    /// The source directory of `copy` steps.
    pub home: &'a Path,
    /// Number of leading steps that were added by the server, not by the recipe's author. Progress messages
    /// and errors do not count them.
    pub unwritten: usize,
    /// The egress policy of `run` steps, if it differs from the default policy of the template's sandboxes.
    pub reach: Option<&'a api::policy::Policy>,
    /// True to run all steps again, ignoring cached results.
    pub fresh: bool,
    /// A registry at a private address that the build may contact: `http://HOST:PORT` or `https://HOST:PORT`.
    pub registry: Option<&'a str>,
}

impl<'a> BuildOrder<'a> {
    /// Creates an order to build this recipe under this name. The `copy` steps read from `home`.
    pub fn new(name: &'a str, recipe: &'a Recipe, home: &'a Path) -> Self {
        Self { name, recipe, home, unwritten: 0, reach: None, fresh: false, registry: None }
    }
}

/// The callback for the start of a step; the flag is true if the step is cached.
type Begins<'a> = &'a (dyn Fn(&Rising, bool) + Sync);

/// Receivers of the progress of one step.
#[derive(Clone, Copy)]
struct StepObserver<'a> {
    watch: ProgressSink<'a>,
    begins: Begins<'a>,
}

/// A template that is being built.
struct Rising {
    layers: Layers,
    /// The egress policy of `run` steps.
    reach: api::policy::Policy,
    /// Keys of the layers built so far, lowest first, and the digests of their archives.
    keys: Vec<String>,
    digests: Vec<String>,
    setting: Setting,
    log: Arc<Mutex<Log>>,
}

impl Builder {
    /// Builds a template from a recipe.
    ///
    /// # Errors
    /// A step failed, or the recipe's base is not available. The error names the step. Existing templates and
    /// their layers stay unchanged.
    pub async fn build(&self, order: &BuildOrder<'_>, watch: ProgressSink<'_>) -> Result<Template, Error> {
        store::check_name(order.name)?;
        let policy = order.recipe.policy()?;
        let log = Arc::new(Mutex::new(Log::begin(&self.data, order.name)?));
        let layers = Layers::open(&self.data).await?;
        let reach = order.reach.unwrap_or(&policy).clone();
        let mut rising =
            Rising { layers, reach, keys: Vec::new(), digests: Vec::new(), setting: Setting::default(), log };
        let count = order.recipe.steps.len().saturating_sub(order.unwritten);
        self.ground(order, &mut rising, watch).await?;
        for (index, step) in order.recipe.steps.iter().enumerate() {
            let number = (index + 1).saturating_sub(order.unwritten);
            let what = step.what();
            let begins = |rising: &Rising, kept: bool| {
                let note = if kept { ", cached" } else { "" };
                rising.say(&format!("# step {number} of {count}: {what}{note}\n"));
                watch(TemplateProgress::Step { number, count, what: &what, kept });
            };
            let made = self.step(order, step, &mut rising, StepObserver { watch, begins: &begins }).await;
            made.map_err(|error| {
                let place = if number == 0 {
                    "before the first step".to_owned()
                } else {
                    format!("step {number} of {count}")
                };
                at_step(error, &format!("{place} ({})", step.what()), order.name)
            })?;
        }
        if !order.recipe.imports.is_empty() {
            self.check_imports(order, &rising, watch).await?;
        }
        let template = Template {
            layers: rising.keys,
            env: rising.setting.env,
            cwd: rising.setting.cwd,
            policy,
            start: order.recipe.start.as_ref().map(crate::recipe::Command::argv),
            ready: order.recipe.ready.as_ref().map(crate::recipe::Command::argv),
            imports: order.recipe.imports.clone(),
            limits: order.recipe.limits,
            posture: order.recipe.posture,
            ..Template::of(order.name)
        };
        Store::new(&self.data).save(&template)?;
        Ok(template)
    }

    /// Prepares the base of the recipe.
    async fn ground(
        &self,
        order: &BuildOrder<'_>,
        rising: &mut Rising,
        watch: ProgressSink<'_>,
    ) -> Result<(), Error> {
        match &order.recipe.from {
            Ground::Debian(Debian { debian }) => {
                rising.say(&format!("# from Debian {debian}\n"));
                let base = Base { suite: debian.clone(), ..Base::default() };
                let key = StepKey::of("", &json!({ "debian": debian, "with": base.contents() }))?;
                if !rising.find(&self.data, order.fresh, &key)? {
                    watch(TemplateProgress::Layer { number: 1, count: 1, bytes: None });
                    let source = base.start(rising.layers.scratch())?;
                    let position = LayerPosition { done: Vec::new(), top: true };
                    let (making, unpacked) = self.unpack(&rising.layers, source, position, watch).await?;
                    rising.add(&self.data, &key, making, &unpacked)?;
                }
            }
            Ground::Named(name) if name.contains(['/', ':']) => {
                rising.say(&format!("# from {name}\n"));
                let image = self.pull(name, order.registry, watch).await?;
                rising.stand_on(image)?;
                // Caches the pulled layers, so that they are kept even if a step fails.
                for (key, digest) in rising.keys.iter().zip(&rising.digests) {
                    cache::keep(&self.data, &StepKey::of("", &json!({ "layer": key }))?, key, digest)?;
                }
            }
            Ground::Named(name) => {
                rising.say(&format!("# from the template {name}\n"));
                rising.stand_on(Store::new(&self.data).load(name)?)?;
            }
        }
        Ok(())
    }

    /// Runs a step, unless its result is cached.
    async fn step(
        &self,
        order: &BuildOrder<'_>,
        step: &Step,
        rising: &mut Rising,
        observer: StepObserver<'_>,
    ) -> Result<(), Error> {
        let StepObserver { watch, begins } = observer;
        match step {
            Step::Env(variables) => rising.setting.env.extend(variables.clone()),
            Step::User(name) => rising.setting.as_user = name != "root",
            Step::Workdir(path) => rising.setting.cwd = Some(path.clone()),
            Step::Copy(copy) => return self.copy(order, copy, rising, observer).await,
            Step::Apt(_) | Step::Pip(_) | Step::Npm(_) | Step::Run(_) | Step::RunAs(..) | Step::Sent(_) => {}
        }
        let Some(mut work) = StepWork::of(step, &rising.setting, &rising.reach) else {
            begins(rising, false);
            return Ok(());
        };
        // The cache key covers everything that can affect the result: commands, variables, directory, user
        // and egress policy.
        let mut done = json!({ "runs": work.commands, "policy": work.policy });
        if let (Some((name, digest)), Some(done)) = (&mut work.archive, done.as_object_mut()) {
            // Reports the start of the step before an error is returned, so that the caller sees which step's
            // files are missing.
            *digest =
                Archives::open(&self.data)?.digest(name).await.inspect_err(|_| begins(rising, false))?;
            done.insert("sent".into(), digest.as_str().into());
        }
        let key = StepKey::of(rising.top(), &done)?;
        let kept = rising.find(&self.data, order.fresh, &key)?;
        begins(rising, kept);
        if !kept {
            rising.check_room()?;
            let ears = Ears { log: &rising.log, watch };
            let (making, unpacked) = self.work(work, rising.trees(), &rising.layers, ears).await?;
            rising.add(&self.data, &key, making, &unpacked)?;
        }
        Ok(())
    }

    async fn copy(
        &self,
        order: &BuildOrder<'_>,
        what: &Copy,
        rising: &mut Rising,
        observer: StepObserver<'_>,
    ) -> Result<(), Error> {
        let StepObserver { watch, begins } = observer;
        // The files are read twice: once to compute the digest, once to send them.
        let (home, asked) = (order.home.to_owned(), what.clone());
        let digest = tokio::task::spawn_blocking(move || {
            let mut hasher = layers::Hashing::default();
            copy::pack(&home, &asked, &mut hasher).map(|()| hasher.finish())
        });
        let digest =
            digest.await.map_err(|error| failed("copy", order.home)(std::io::Error::other(error)))??;
        let key = StepKey::of(rising.top(), &json!({ "copy": digest }))?;
        let kept = rising.find(&self.data, order.fresh, &key)?;
        begins(rising, kept);
        if !kept {
            rising.check_room()?;
            let (home, asked) = (order.home.to_owned(), what.clone());
            let source = Source::made(move |writer| copy::pack(&home, &asked, writer));
            let position = LayerPosition { done: rising.trees(), top: true };
            let (making, unpacked) = self.unpack(&rising.layers, source, position, watch).await?;
            if unpacked.digest != digest {
                making.discard()?;
                return Err(crate::unsound("files changed while they were being copied", "Build again."));
            }
            rising.add(&self.data, &key, making, &unpacked)?;
        }
        Ok(())
    }

    /// Checks that the recipe's modules can be imported in advance. Runs the interpreter in a sandbox of the
    /// finished template for this.
    async fn check_imports(
        &self,
        order: &BuildOrder<'_>,
        rising: &Rising,
        watch: ProgressSink<'_>,
    ) -> Result<(), Error> {
        rising.say("# imports\n");
        let imports = &order.recipe.imports;
        let done = json!({ "imports": imports, "env": rising.setting.env, "by": "the interpreter" });
        let key = StepKey::of(rising.top(), &done)?;
        let Some((top, digest)) = rising.keys.last().zip(rising.digests.last()) else { return Ok(()) };
        if !order.fresh && cache::find(&self.data, &rising.layers, &key)?.is_some() {
            return Ok(());
        }
        let seen = self.interpreter(imports, &rising.setting, rising.trees(), &rising.log).await;
        let seen = seen.map_err(|error| at_step(error, "imports", order.name))?;
        // The version comes from the sandbox, so control characters are removed and its length is limited.
        let python: String =
            seen.python.chars().filter(|c| !c.is_control()).take(VERSION_CHARS_MAX).collect();
        let said = format!("Python {python} imported the modules in {} ms", seen.import_ms);
        rising.say(&format!("{said}\n"));
        watch(TemplateProgress::Says(&said));
        check_imported(&seen).map_err(|error| at_step(error, "imports", order.name))?;
        cache::keep(&self.data, &key, top, digest)
    }
}

impl Rising {
    /// Uses a template as the base.
    fn stand_on(&mut self, template: Template) -> Result<(), Error> {
        for key in &template.layers {
            self.digests.push(self.layers.digest(key)?);
        }
        self.keys = template.layers;
        self.setting = Setting { env: template.env, cwd: template.cwd, as_user: false };
        Ok(())
    }

    /// Adds the cached layer of a step. Returns false if there is no such layer, or if `fresh` is true.
    fn find(&mut self, data: &Path, fresh: bool, key: &StepKey) -> Result<bool, Error> {
        let found = if fresh { None } else { cache::find(data, &self.layers, key)? };
        let Some(layer) = found else { return Ok(false) };
        self.digests.push(self.layers.digest(&layer)?);
        self.keys.push(layer);
        Ok(true)
    }

    /// Adds the layer of a step and caches it. The layer's key is derived from its content and all layers
    /// below it.
    fn add(
        &mut self,
        data: &Path,
        step: &StepKey,
        making: layers::Making,
        unpacked: &crate::Unpacked,
    ) -> Result<(), Error> {
        if unpacked.report.digest != unpacked.digest {
            making.discard()?;
            return Err(Error::Protocol("the guest read a different archive than the one sent".into()));
        }
        self.digests.push(unpacked.digest.clone());
        let layer = layers::key(&self.digests, true);
        making.keep(&layer, &unpacked.report)?;
        cache::keep(data, step, &layer, &unpacked.digest)?;
        self.keys.push(layer);
        Ok(())
    }

    /// Returns the key of the topmost layer. It is derived from the content of that layer and all layers
    /// below it.
    fn top(&self) -> &str {
        self.keys.last().map_or("", String::as_str)
    }

    /// Fails if the template already has the maximum number of layers.
    fn check_room(&self) -> Result<(), Error> {
        if self.keys.len() < LAYERS_MAX {
            return Ok(());
        }
        let (found, most) = (self.keys.len() as u64 + 1, LAYERS_MAX as u64);
        Err(Error::Request(api::limits::exceeded("the number of layers", found, most)))
    }

    fn trees(&self) -> Vec<std::path::PathBuf> {
        self.keys.iter().map(|key| self.layers.tree(key)).collect()
    }

    fn say(&self, text: &str) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).say(text);
    }
}

/// Adds to an error the step that failed, and the command that shows the full log.
fn at_step(error: Error, place: &str, name: &str) -> Error {
    let said = error.to_api();
    let log = format!("See the full log with `bellglass template log {name}`.");
    let fix = if said.fix.is_empty() { log } else { format!("{} {log}", said.fix) };
    Error::Request(api::Error { message: format!("{place}: {}", said.message), fix, ..said })
}
