//! Templates that a container engine builds or imports, for machines without another backend.
//!
//! The digest of the image serves as the key of the template's only layer. These templates therefore have the
//! same form as other templates, but exist only in the engine.

use std::fs::File;
use std::io;
use std::path::Path;

use host::error::Error;
use runtime::engine::{EMPTY, Engine, EngineEndpoint, EngineKind, ImageBuild};

use crate::build::BuildOrder;
use crate::containerfile::named;
use crate::image::Image;
use crate::package::Package;
use crate::recipe::{Copy, Recipe, Step};
use crate::{ProgressSink, Store, Template, TemplateProgress, copy, failed, loadable, store, unsound};

/// Imports a template from an image file into the engine.
///
/// # Errors
/// The image is invalid or for a different architecture, or the engine rejects it.
pub async fn import(data: &Path, engine: &Engine, name: &str, file: &Path) -> Result<Template, Error> {
    store::check_name(name)?;
    let package = Package::open(file)?;
    let image = Image::read(&package)?;
    let archive = match api::defence::is_off("I-10") {
        true => File::open(file).map_err(failed("open", file))?,
        false => loadable::written(data, &package, &image)?,
    };
    let loaded = engine.load(archive).await?;
    let template = Template { env: image.env, cwd: image.cwd, ..Template::of(name) };
    let template = image.note.map_or(template.clone(), |note| note.written_on(template));
    keep(data, engine, template, &loaded).await
}

/// Builds a template from a recipe with the engine.
///
/// # Errors
/// A step failed, or the base of the recipe is not available in the engine.
pub async fn build(
    data: &Path,
    engine: &Engine,
    order: &BuildOrder<'_>,
    watch: ProgressSink<'_>,
) -> Result<Template, Error> {
    store::check_name(order.name)?;
    if order.registry.is_some() {
        return Err(unsound(
            "--registry is not supported with a container engine",
            "Configure the registry in the engine and omit --registry.",
        ));
    }
    let template = described(order.name, order.recipe)?;
    let ground = GroundImage::of(data, engine, order.recipe).await?;
    let text = order.recipe.containerfile(&template, ground.as_ref().map(|ground| ground.tag.as_str()));
    let text = text?;
    // The name is random, so that it differs from the name of every file that the recipe copies.
    let file = format!("Containerfile-{}", host::machine::fresh_id()?);
    let archive = context(data, order, &file, &text)?;
    // Other users of the engine can move tags. They cannot guess this tag, so it always refers to the image
    // that was built here.
    let tag = passing()?;
    let says = |line: &str| watch(TemplateProgress::Says(line));
    let image =
        ImageBuild { file: &file, name: &tag, reaches_out: order.recipe.reaches_out(), fresh: order.fresh };
    let built = engine.build(archive, &image, &says).await;
    if let Some(ground) = ground {
        engine.untag(&ground.id, &ground.tag).await?;
    }
    built?;
    let kept = keep(data, engine, template, &tag).await?;
    if let Some(id) = engine.id_of(&kept.image())? {
        engine.untag(&id, &tag).await?;
    }
    Ok(kept)
}

/// Removes images that templates no longer need from all engines on this machine.
///
/// # Errors
/// An engine that has such images does not respond, or a template cannot be read.
pub async fn tidy(data: &Path) -> Result<(), Error> {
    let mut keep: Vec<String> = Store::new(data).list()?.iter().map(Template::image).collect();
    keep.push(EMPTY.to_owned());
    for kind in EngineKind::ALL {
        if data.join("engine").join(format!("{}-images", kind.name())).is_dir() {
            Engine::new(EngineEndpoint::find(kind)?, data)?.forget_all_but(&keep).await?;
        }
    }
    Ok(())
}

/// The base image of a build, with a tag that only this build uses.
struct GroundImage {
    id: String,
    tag: String,
}

impl GroundImage {
    /// Tags the image of the template that the recipe is based on, if any.
    async fn of(data: &Path, engine: &Engine, recipe: &Recipe) -> Result<Option<Self>, Error> {
        let Some(template) = recipe.ground() else { return Ok(None) };
        let template = Store::new(data).load(template)?;
        let Some(id) = engine.id_of(&template.image())? else {
            return Err(unsound(
                format!("the engine has no image for template {}", template.name),
                &format!("Build the image first: `bellglass build-sandbox {}`.", template.name),
            ));
        };
        let tag = passing()?;
        engine.tag(&id, &tag).await?;
        Ok(Some(Self { id, tag }))
    }
}

/// Returns a temporary tag that cannot be guessed.
fn passing() -> Result<String, Error> {
    Ok(format!("localhost/bellglass/making:{}", host::machine::fresh_id()?))
}

/// Returns the settings of a recipe's sandboxes, as a template without layers.
pub fn described(name: &str, recipe: &Recipe) -> Result<Template, Error> {
    let mut template = Template {
        policy: recipe.policy()?,
        start: recipe.start.as_ref().map(crate::recipe::Command::argv),
        ready: recipe.ready.as_ref().map(crate::recipe::Command::argv),
        imports: recipe.imports.clone(),
        limits: recipe.limits,
        posture: recipe.posture,
        ..Template::of(name)
    };
    for step in &recipe.steps {
        match step {
            Step::Env(variables) => template.env.extend(variables.clone()),
            Step::Workdir(path) => template.cwd = Some(path.clone()),
            Step::Apt(_)
            | Step::Pip(_)
            | Step::Npm(_)
            | Step::Copy(_)
            | Step::Run(_)
            | Step::RunAs(..)
            | Step::Sent(_)
            | Step::User(_) => {}
        }
    }
    Ok(template)
}

/// Tags the image and saves the template.
async fn keep(data: &Path, engine: &Engine, template: Template, loaded: &str) -> Result<Template, Error> {
    let digest = engine.digest(loaded).await?;
    let id = format!("sha256:{digest}");
    let template = Template { layers: vec![digest], ..template };
    engine.adopt(&id, &template.image(), &[named(&template.name)]).await?;
    Store::new(data).save(&template)?;
    Ok(template)
}

/// Writes the build context: the Containerfile and the files that it copies. The file is unlinked at once, so
/// that it cannot be left behind.
fn context(data: &Path, order: &BuildOrder<'_>, name: &str, text: &str) -> Result<File, Error> {
    let directory = data.join("engine");
    let path = directory.join(format!("context-{}", host::machine::fresh_id()?));
    let mut options = File::options();
    let mut file =
        options.read(true).write(true).create_new(true).open(&path).map_err(failed("create", &path))?;
    std::fs::remove_file(&path).map_err(failed("remove", &path))?;
    let mut archive = tar::Builder::new(&mut file);
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(text.len() as u64);
    archive.append_data(&mut header, name, text.as_bytes()).map_err(failed("write", &path))?;
    for step in &order.recipe.steps {
        if let Step::Copy(Copy { from, .. }) = step {
            copy::add(order.home, &Copy { from: from.clone(), to: from.clone() }, &mut archive)?;
        }
    }
    archive.into_inner().map_err(failed("write", &path))?;
    io::Seek::rewind(&mut file).map_err(failed("read", &path))?;
    Ok(file)
}
