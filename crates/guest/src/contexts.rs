//! All contexts (long-lived interpreters) of the sandbox.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use api::code::{ContextInfo, ContextSpec};
use api::{ContextId, Error, limits};

use crate::context::Context;
use crate::interpreter::did_not_begin;
use crate::parent::Parent;
use crate::table::conflict;

/// All contexts, by ID.
pub struct Contexts {
    parent: Rc<Parent>,
    all: RefCell<BTreeMap<ContextId, Rc<Context>>>,
}

impl Contexts {
    /// Creates an empty set of contexts, whose Python processes are forks of `parent`.
    pub fn new(parent: Rc<Parent>) -> Self {
        Self { parent, all: RefCell::default() }
    }

    /// Returns the context with this ID.
    pub fn find(&self, id: &ContextId) -> Result<Rc<Context>, Error> {
        self.all.borrow().get(id).cloned().ok_or_else(|| Error {
            fix: "List the contexts of the sandbox, or create one.".into(),
            ..Error::not_found(format!("there is no context {id}"))
        })
    }

    /// Creates a context, or finds the context that an identical earlier request created.
    pub async fn make(&self, id: ContextId, spec: ContextSpec) -> Result<ContextInfo, Error> {
        spec.check()?;
        let context = match self.find(&id) {
            Ok(context) if *context.spec() == spec => context,
            Ok(_) => return Err(conflict(format!("context {id} was created by another request"), "context")),
            Err(_not_found) => self.add(&id, spec)?,
        };
        // Use a separate task, so that the start continues if the request is dropped.
        let begun = {
            let context = Rc::clone(&context);
            tokio::task::spawn_local(async move { context.begin().await })
        };
        match begun.await {
            Ok(Ok(())) => Ok(context.info()),
            Ok(Err(error)) => {
                context.forget();
                let mut all = self.all.borrow_mut();
                // Another context with the same ID may have replaced this one.
                if all.get(&id).is_some_and(|there| Rc::ptr_eq(there, &context)) {
                    all.remove(&id);
                }
                Err(error)
            }
            Err(error) => Err(did_not_begin(&error.to_string())),
        }
    }

    fn add(&self, id: &ContextId, spec: ContextSpec) -> Result<Rc<Context>, Error> {
        let mut all = self.all.borrow_mut();
        if all.len() >= limits::CONTEXTS_MAX {
            return Err(limits::exceeded(
                "the number of contexts",
                all.len() as u64 + 1,
                limits::CONTEXTS_MAX as u64,
            ));
        }
        let context = Rc::new(Context::new(id.clone(), spec, Rc::clone(&self.parent)));
        all.insert(id.clone(), Rc::clone(&context));
        Ok(context)
    }

    /// Returns the current state of every context.
    pub fn list(&self) -> Vec<ContextInfo> {
        self.all.borrow().values().map(|context| context.info()).collect()
    }

    /// Ends and removes a context.
    pub async fn remove(&self, id: &ContextId) -> Result<(), Error> {
        let context = self.find(id)?;
        self.all.borrow_mut().remove(id);
        context.remove().await;
        Ok(())
    }
}
