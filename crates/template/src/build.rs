//! A template from a recipe, step by step. A step that was made before is not made again.

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
use crate::step::{Ears, Setting, Work, check_imported};
use crate::unpack::Source;
use crate::{Builder, Progress, Store, Template, Watch, copy, failed, store};

/// What is said of a version of Python.
const VERSION_CHARS_MAX: usize = 64;

/// What to build.
pub struct Order<'a> {
    /// The name of the template.
    pub name: &'a str,
    /// How it is made.
    pub recipe: &'a Recipe,
    /// The directory that `copy` copies from.
    pub home: &'a Path,
    /// How many of its first steps nobody wrote: they are not counted where steps are.
    pub unwritten: usize,
    /// What may leave while a command runs, where that is not what may leave its sandboxes.
    pub reach: Option<&'a api::policy::Policy>,
    /// Whether steps that were made before are made again.
    pub fresh: bool,
    /// A registry at a private address that may be asked: `http://HOST:PORT` or `https://HOST:PORT`.
    pub registry: Option<&'a str>,
}

impl<'a> Order<'a> {
    /// A template of that name by that recipe, which copies from there.
    pub fn new(name: &'a str, recipe: &'a Recipe, home: &'a Path) -> Self {
        Self { name, recipe, home, unwritten: 0, reach: None, fresh: false, registry: None }
    }
}

/// Is told when a step begins, and whether it was made before.
type Begins<'a> = &'a (dyn Fn(&Rising, bool) + Sync);

/// A template in the making.
struct Rising {
    layers: Layers,
    /// The layers so far, the lowest first, and the digests of their archives.
    keys: Vec<String>,
    digests: Vec<String>,
    setting: Setting,
    log: Arc<Mutex<Log>>,
}

impl Builder {
    /// Makes a template from a recipe.
    ///
    /// # Errors
    /// A step failed, which is named; or what the recipe begins with cannot be had. Nothing named by a template is changed then.
    pub async fn build(&self, order: &Order<'_>, watch: Watch<'_>) -> Result<Template, Error> {
        store::check_name(order.name)?;
        let policy = order.recipe.policy()?;
        let log = Arc::new(Mutex::new(Log::begin(&self.data, order.name)?));
        let layers = Layers::open(&self.data).await?;
        let mut rising =
            Rising { layers, keys: Vec::new(), digests: Vec::new(), setting: Setting::default(), log };
        let reach = order.reach.unwrap_or(&policy);
        let count = order.recipe.steps.len().saturating_sub(order.unwritten);
        self.ground(order, &mut rising, watch).await?;
        for (index, step) in order.recipe.steps.iter().enumerate() {
            let number = (index + 1).saturating_sub(order.unwritten);
            let what = step.what();
            let begins = |rising: &Rising, kept: bool| {
                let note = if kept { ", cached" } else { "" };
                rising.say(&format!("# step {number} of {count}: {what}{note}\n"));
                watch(Progress::Step { number, count, what: &what, kept });
            };
            let made = self.step(order, (step, reach), &mut rising, (watch, &begins)).await;
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

    /// What the recipe begins with.
    async fn ground(&self, order: &Order<'_>, rising: &mut Rising, watch: Watch<'_>) -> Result<(), Error> {
        match &order.recipe.from {
            Ground::Debian(Debian { debian }) => {
                rising.say(&format!("# from Debian {debian}\n"));
                let base = Base { suite: debian.clone(), ..Base::default() };
                let key = StepKey::of("", &json!({ "debian": debian, "with": base.contents() }))?;
                if !rising.find(&self.data, order.fresh, &key)? {
                    watch(Progress::Layer { number: 1, count: 1, bytes: None });
                    let source = base.start(rising.layers.scratch())?;
                    let (making, unpacked) =
                        self.unpack(&rising.layers, source, (Vec::new(), true), watch).await?;
                    rising.add(&self.data, &key, making, &unpacked)?;
                }
            }
            Ground::Named(name) if name.contains(['/', ':']) => {
                rising.say(&format!("# from {name}\n"));
                let image = self.pull(name, order.registry, watch).await?;
                rising.stand_on(image)?;
                // A step that fails must not cost what was pulled.
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

    /// Makes a step, unless it was made before.
    async fn step(
        &self,
        order: &Order<'_>,
        (step, policy): (&Step, &api::policy::Policy),
        rising: &mut Rising,
        (watch, begins): (Watch<'_>, Begins<'_>),
    ) -> Result<(), Error> {
        match step {
            Step::Env(variables) => rising.setting.env.extend(variables.clone()),
            Step::User(name) => rising.setting.as_user = name != "root",
            Step::Workdir(path) => rising.setting.cwd = Some(path.clone()),
            Step::Copy(copy) => return self.copy(order, copy, rising, (watch, begins)).await,
            Step::Apt(_) | Step::Pip(_) | Step::Npm(_) | Step::Run(_) | Step::RunAs(..) | Step::Sent(_) => {}
        }
        let Some(mut work) = Work::of(step, &rising.setting, policy) else {
            begins(rising, false);
            return Ok(());
        };
        // All that can make a difference is in what is run: words, variables, directory, user and what may leave.
        let mut done = json!({ "runs": work.commands, "policy": work.policy });
        if let (Some((name, digest)), Some(done)) = (&mut work.archive, done.as_object_mut()) {
            // Whoever watches knows which step it is whose files are not there.
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
        order: &Order<'_>,
        what: &Copy,
        rising: &mut Rising,
        (watch, begins): (Watch<'_>, Begins<'_>),
    ) -> Result<(), Error> {
        // Read twice: once to know what it is, and once to send it.
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
            let (making, unpacked) =
                self.unpack(&rising.layers, source, (rising.trees(), true), watch).await?;
            if unpacked.digest != digest {
                making.discard()?;
                return Err(crate::unsound("files changed while they were being copied", "Build again."));
            }
            rising.add(&self.data, &key, making, &unpacked)?;
        }
        Ok(())
    }

    /// What is to be imported ahead can be, by the interpreter of a sandbox as it will be.
    async fn check_imports(&self, order: &Order<'_>, rising: &Rising, watch: Watch<'_>) -> Result<(), Error> {
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
        // Of a sandbox, so it is cut as all that it says is.
        let python: String =
            seen.python.chars().filter(|c| !c.is_control()).take(VERSION_CHARS_MAX).collect();
        let said = format!("Python {python} imported the modules in {} ms", seen.import_ms);
        rising.say(&format!("{said}\n"));
        watch(Progress::Says(&said));
        check_imported(&seen).map_err(|error| at_step(error, "imports", order.name))?;
        cache::keep(&self.data, &key, top, digest)
    }
}

impl Rising {
    /// Begins with a template.
    fn stand_on(&mut self, template: Template) -> Result<(), Error> {
        for key in &template.layers {
            self.digests.push(self.layers.digest(key)?);
        }
        self.keys = template.layers;
        self.setting = Setting { env: template.env, cwd: template.cwd, as_user: false };
        Ok(())
    }

    /// Takes the layer of a step that was made before, if it was.
    fn find(&mut self, data: &Path, fresh: bool, key: &StepKey) -> Result<bool, Error> {
        let found = if fresh { None } else { cache::find(data, &self.layers, key)? };
        let Some(layer) = found else { return Ok(false) };
        self.digests.push(self.layers.digest(&layer)?);
        self.keys.push(layer);
        Ok(true)
    }

    /// Adds the layer that a step became. Its name is that of its content and of what lies below.
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

    /// What the next step is made on: the name of a layer is that of its content and of all below it.
    fn top(&self) -> &str {
        self.keys.last().map_or("", String::as_str)
    }

    /// Refuses one more layer where there may be none.
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

/// An error with the step that it is of.
fn at_step(error: Error, place: &str, name: &str) -> Error {
    let said = error.to_api();
    let log = format!("See the full log with `bellglass template log {name}`.");
    let fix = if said.fix.is_empty() { log } else { format!("{} {log}", said.fix) };
    Error::Request(api::Error { message: format!("{place}: {}", said.message), fix, ..said })
}
