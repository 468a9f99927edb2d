//! Conversion of E2B's build steps into a recipe. Each build step becomes exactly one step of the recipe, so
//! step numbers keep their meaning.

mod instruction;

use api::Error;
use api::limits::{Limits, USER, WantedLimits};
use node::template::recipe::{Command, Ground, Recipe, Step};
use node::template::{Posture, Template, shipped};
use serde::Deserialize;
use serde_json::Value;

use super::fault::{E2bResult, not_offered};
use super::shown::ours;
use instruction::{Instruction, Setting, shell};

/// E2B's own images, each with the Bellglass template that has the same content.
const IMAGES: [(&str, &str); 2] =
    [("e2bdev/base", "workstation"), ("e2bdev/code-interpreter", "code-interpreter-v1")];
/// Recipe shipped with Bellglass. Its steps add the user and the tools that E2B's clients expect to any base
/// image.
const OUTFIT: &str = "workstation";
const HOME: &str = "/home/user";
/// Default search path for programs, for templates that do not set one.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Request to start a build.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StartBuildRequest {
    from_image: Option<String>,
    from_template: Option<String>,
    from_image_registry: Option<Value>,
    force: Option<bool>,
    steps: Option<Vec<Instruction>>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
}

/// Recipe and options of a build.
#[derive(Debug)]
pub struct Plan {
    /// The recipe.
    pub recipe: Recipe,
    /// Number of steps at the start of the recipe that Bellglass added. The client did not write them.
    pub unwritten: usize,
    /// True if all steps must run again, even if their results are cached.
    pub fresh: bool,
    /// True if the last `USER` step sets root. Even in this case, sandboxes of the template do not run as
    /// root.
    pub as_root: bool,
}

impl StartBuildRequest {
    /// Returns the base of the template: a Bellglass template or an image.
    ///
    /// # Errors
    /// Returns an error if the image requires a password, which is not supported.
    pub fn ground(&self) -> E2bResult<Ground> {
        if self.from_image_registry.as_ref().is_some_and(|value| !value.is_null()) {
            let instead = "Pull the image with your own tools, then create a template from it with `bellglass template import`.";
            return Err(not_offered("pulling an image with a password", instead));
        }
        if let Some(template) = &self.from_template {
            return Ok(Ground::Named(ours(template).to_owned()));
        }
        let image = self.from_image.as_deref().unwrap_or("e2bdev/base");
        let plain = image.strip_prefix("docker.io/").unwrap_or(image);
        let name = plain.split(':').next().unwrap_or_default();
        Ok(Ground::Named(match IMAGES.iter().find(|(theirs, _)| *theirs == name) {
            Some((_, ours)) => (*ours).to_owned(),
            // Add a tag to the image, because text without a slash or a colon would be the name of a
            // template.
            None if !image.contains(['/', ':']) => format!("{image}:latest"),
            None => image.to_owned(),
        }))
    }

    /// Returns the plan of the build. `template` is the base, or `None` if the base is an image.
    ///
    /// # Errors
    /// Returns an error, which contains the step's number, if a step is invalid.
    pub fn plan(&self, ground: Ground, template: Option<Template>, limits: WantedLimits) -> E2bResult<Plan> {
        let mut steps = match &template {
            Some(template) if template.posture == Posture::Workstation => Vec::new(),
            _ => shipped::find(OUTFIT)?.map(|recipe| recipe.steps).unwrap_or_default(),
        };
        steps.push(Step::User(USER.into()));
        let unwritten = steps.len();
        let own = template.as_ref().filter(|template| template.posture == Posture::Workstation);
        let cwd = own.and_then(|template| template.cwd.clone()).unwrap_or_else(|| HOME.into());
        let mut env = template.as_ref().map(|template| template.env.clone());
        if let Some(env) = &mut env {
            env.entry("PATH".into()).or_insert_with(|| PATH.into());
        }
        let mut setting = Setting { by_user: true, cwd, env };
        let written = self.steps.as_deref().unwrap_or_default();
        for (index, step) in written.iter().enumerate() {
            let wrong = |why: String| {
                Error::invalid(format!("step {} ({}) {why}", index + 1, step.kind), "Correct this step.")
            };
            let read = step.read(&mut setting).map_err(wrong)?;
            read.check().map_err(wrong)?;
            steps.push(read);
        }
        let forced = written.iter().any(|step| step.force == Some(true));
        let before = template.unwrap_or_else(|| Template::of(""));
        let own = |command: &Option<String>, before: Option<Vec<String>>| {
            command.as_deref().filter(|text| !text.is_empty()).map(shell).or(before.map(Command::Argv))
        };
        let usual = before.limits.over(Limits::default()).disk_bytes;
        let recipe = Recipe {
            from: ground,
            steps,
            start: own(&self.start_cmd, before.start),
            ready: own(&self.ready_cmd, before.ready),
            imports: before.imports,
            limits: WantedLimits {
                cpu_millis: limits.cpu_millis.or(before.limits.cpu_millis),
                memory_bytes: limits.memory_bytes.or(before.limits.memory_bytes),
                // The client specifies a minimum amount of free space, which must never make the disk
                // smaller.
                disk_bytes: limits.disk_bytes.map(|asked| asked.max(usual)).or(before.limits.disk_bytes),
                ..before.limits
            },
            policy: before.policy.words(),
            posture: Posture::Workstation,
        };
        recipe.check()?;
        let fresh = forced || self.force == Some(true);
        Ok(Plan { recipe, unwritten, fresh, as_root: !setting.by_user })
    }
}

#[cfg(test)]
mod tests {
    use super::instruction::as_root;
    use super::*;
    use serde_json::json;

    fn wanted(value: Value) -> StartBuildRequest {
        serde_json::from_value(value).unwrap()
    }

    fn planned(value: Value, template: Option<Template>) -> E2bResult<Plan> {
        let wanted = wanted(value);
        wanted.plan(wanted.ground()?, template, WantedLimits::default())
    }

    fn workstation() -> Option<Template> {
        let cwd = Some(HOME.to_owned());
        Some(Template { posture: Posture::Workstation, cwd, ..Template::of("workstation") })
    }

    #[test]
    fn what_it_begins_with_is_a_template_of_ours_or_an_image() {
        for (asked, found) in [
            (json!({}), "workstation"),
            (json!({ "fromImage": "e2bdev/base" }), "workstation"),
            (json!({ "fromImage": "docker.io/e2bdev/base:latest" }), "workstation"),
            (json!({ "fromImage": "e2bdev/code-interpreter" }), "code-interpreter-v1"),
            (json!({ "fromTemplate": "base" }), "workstation"),
            (json!({ "fromTemplate": "mine:default" }), "mine"),
            (json!({ "fromImage": "python:3" }), "python:3"),
            (json!({ "fromImage": "ubuntu" }), "ubuntu:latest"),
        ] {
            assert_eq!(wanted(asked).ground().unwrap(), Ground::Named(found.into()));
        }
        let secret = json!({ "fromImage": "a/b", "fromImageRegistry": { "type": "registry" } });
        assert!(wanted(secret).ground().is_err());
    }

    #[test]
    fn each_step_is_one_step_and_knows_who_does_it_and_where() {
        let hash = "a".repeat(64);
        let plan = planned(
            json!({ "steps": [
                { "type": "RUN", "args": ["echo hi"], "force": false },
                { "type": "RUN", "args": ["apt-get update", "root"] },
                { "type": "WORKDIR", "args": ["app"] },
                { "type": "COPY", "args": ["src", ".", "", ""], "filesHash": hash },
                { "type": "COPY", "args": ["a.sh", "bin/", "root:root", "0755"], "filesHash": hash },
                { "type": "ENV", "args": ["A", "1", "B", "x y"] },
                { "type": "USER", "args": ["root"] },
                { "type": "RUN", "args": ["id"] },
            ], "startCmd": "sleep 1", "readyCmd": "" }),
            workstation(),
        )
        .unwrap();
        let steps = plan.recipe.steps.get(plan.unwritten..).unwrap();
        assert_eq!(plan.unwritten, 1, "only who does the first");
        assert_eq!(steps.len(), 8);
        assert_eq!(steps[0], Step::RunAs(USER.into(), shell("echo hi")));
        assert_eq!(steps[1], Step::RunAs("root".into(), as_root("apt-get update")));
        assert_eq!(steps[2], Step::Workdir("/home/user/app".into()));
        let Step::Sent(copy) = &steps[3] else { panic!() };
        assert_eq!((copy.to.as_str(), copy.by_user), ("/home/user/app/", true));
        let Step::Sent(copy) = &steps[4] else { panic!() };
        assert_eq!(
            (copy.to.as_str(), copy.by_user, copy.mode.as_str()),
            ("/home/user/app/bin/", false, "0755")
        );
        assert_eq!(steps[7], Step::RunAs("root".into(), as_root("id")));
        assert_eq!(plan.recipe.start, Some(shell("sleep 1")));
        assert!(plan.recipe.ready.is_none() && !plan.fresh && plan.as_root);
        // If the base is an image, the plan begins with the steps of the workstation recipe.
        let plan = planned(json!({ "fromImage": "python:3", "force": true }), None).unwrap();
        assert!(plan.unwritten > 4 && plan.fresh);
    }

    #[test]
    fn a_disk_becomes_larger_and_never_smaller() {
        let disk = |asked: Option<u64>, before: Option<u64>| {
            let limits = WantedLimits { disk_bytes: before, ..WantedLimits::default() };
            let template = Template { limits, ..workstation().unwrap() };
            let asked = WantedLimits { disk_bytes: asked, ..WantedLimits::default() };
            let plan = wanted(json!({})).plan(Ground::Named("workstation".into()), Some(template), asked);
            plan.unwrap().recipe.limits.disk_bytes
        };
        let usual = Limits::default().disk_bytes;
        assert_eq!((disk(None, None), disk(None, Some(7 << 30))), (None, Some(7 << 30)));
        assert_eq!(disk(Some(200 << 20), None), Some(usual));
        assert_eq!(disk(Some(200 << 20), Some(7 << 30)), Some(7 << 30));
        assert_eq!(disk(Some(8 << 30), Some(7 << 30)), Some(8 << 30));
    }

    #[test]
    fn variables_stand_for_their_values_where_those_are_known() {
        let steps = json!([
            { "type": "ENV", "args": ["PATH", "/app/bin:$PATH", "A", "${B}x", "C", "5\\$ and $"] },
            { "type": "ENV", "args": ["D", "$C"] },
            { "type": "WORKDIR", "args": ["/srv/$D"] },
        ]);
        let plan = planned(json!({ "steps": steps }), workstation());
        // The plan is valid, because a path may contain a space and a dollar sign.
        let plan = plan.unwrap();
        let Some(Step::Env(first)) = plan.recipe.steps.get(plan.unwritten) else { panic!() };
        assert_eq!(first["PATH"], format!("/app/bin:{PATH}"));
        assert_eq!((first["A"].as_str(), first["C"].as_str()), ("x", "5$ and $"));
        assert_eq!(plan.recipe.steps.last(), Some(&Step::Workdir("/srv/5$ and $".into())));
        let image = json!({ "fromImage": "a/b:1", "steps": steps });
        let refused = planned(image, None).unwrap_err();
        assert!(format!("{refused:?}").contains("step 1 (ENV)"), "{refused:?}");
        let more = json!([{ "type": "ENV", "args": ["A", "${B:-c}"] }]);
        assert!(planned(json!({ "steps": more }), workstation()).is_err());
    }

    #[test]
    fn a_step_that_cannot_be_done_is_refused_by_its_number() {
        for (kind, args) in [
            ("RUN", json!([])),
            ("RUN", json!(["id", "postgres"])),
            ("COPY", json!(["a", "/b"])),
            ("COPY", json!(["a"])),
            ("ENV", json!(["A"])),
            ("ENV", json!(["A=B", "x"])),
            ("USER", json!(["nobody"])),
            ("WORKDIR", json!(["/tmp/x"])),
            ("EXPOSE", json!(["80"])),
        ] {
            let steps = json!([{ "type": "USER", "args": ["root"] }, { "type": kind, "args": args }]);
            assert!(planned(json!({ "steps": steps }), workstation()).is_err(), "{kind} {args}");
        }
        let hash = "a".repeat(64);
        for (from, to, mode) in [
            ("../x", "/opt/x", ""),
            ("/etc", "/opt/x", ""),
            ("a/**", "/opt/x", ""),
            ("a", "/proc/x", ""),
            ("a", "/opt/x", "u+s"),
        ] {
            let step = json!({ "type": "COPY", "args": [from, to, "", mode], "filesHash": hash });
            assert!(planned(json!({ "steps": [step] }), workstation()).is_err(), "{from} {to} {mode}");
        }
    }
}
