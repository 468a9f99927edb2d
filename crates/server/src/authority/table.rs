//! The route table. Each handler is registered with the need that its first argument states.
//!
//! A handler whose first argument states no need does not compile here, so every route has a need. The
//! test of the authority matrix (`docs/authority.md`) takes its rows from this table.

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter};
use utoipa::__dev::{SchemaReferences, Tags};
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::{HttpMethod, Paths};
use utoipa_axum::PathItemExt as _;
use utoipa_axum::router::OpenApiRouter;

use control::authority::grant::{Need, States};

use crate::description;

/// One route: a method, a path and a need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// HTTP method such as `GET`, or `ANY` for every method.
    pub method: &'static str,
    /// Path, with its parameters in braces.
    pub path: String,
    /// Credential that callers must present.
    pub need: Need,
}

/// Routes with their needs.
#[derive(Clone)]
pub struct Table<S> {
    router: OpenApiRouter<S>,
    rows: Vec<Row>,
}

/// Method of a route.
#[derive(Clone, Copy)]
pub enum On {
    /// `GET`.
    Get,
    /// `POST`.
    Post,
    /// `PUT`.
    Put,
    /// `DELETE`.
    Delete,
    /// Every method.
    Any,
}

/// A handler's arguments in `axum`'s representation. The first argument states the need.
pub trait Arguments {
    /// The need that the first argument states.
    const NEED: Need;
}

impl<M, A: States> Arguments for (M, A) {
    const NEED: Need = A::NEED;
}

impl<M, A: States, B> Arguments for (M, A, B) {
    const NEED: Need = A::NEED;
}

impl<M, A: States, B, C> Arguments for (M, A, B, C) {
    const NEED: Need = A::NEED;
}

impl<M, A: States, B, C, D> Arguments for (M, A, B, C, D) {
    const NEED: Need = A::NEED;
}

impl<M, A: States, B, C, D, E> Arguments for (M, A, B, C, D, E) {
    const NEED: Need = A::NEED;
}

impl<M, A: States, B, C, D, E, F> Arguments for (M, A, B, C, D, E, F) {
    const NEED: Need = A::NEED;
}

impl<S: Clone + Send + Sync + 'static> Table<S> {
    /// Creates a table without routes. Its API description begins with `description`, and routes are added to
    /// it.
    pub fn new(description: OpenApi) -> Self {
        Self { router: OpenApiRouter::with_openapi(description), rows: Vec::new() }
    }

    /// Adds a route that the API description covers. `P` is the type that `#[utoipa::path]` generates for the
    /// handler.
    #[must_use]
    pub fn described<P, H, T>(mut self, _path: P, handler: H) -> Self
    where
        P: utoipa::Path + Tags<'static> + SchemaReferences,
        H: Handler<T, S>,
        T: Arguments + 'static,
    {
        let (mut schemas, mut paths) = (Vec::new(), Paths::new());
        P::schemas(&mut schemas);
        let mut operation = P::operation();
        operation.tags = Some(P::tags().into_iter().map(str::to_owned).collect());
        description::describe_bodies(&mut operation);
        paths.add_path_operation(P::path(), P::methods(), operation);
        let mut methods = MethodRouter::new();
        for method in P::methods() {
            methods = methods.on(method.to_method_filter(), handler.clone());
            self.rows.push(Row { method: name(&method), path: P::path(), need: T::NEED });
        }
        Self { router: self.router.routes((schemas, paths, methods)), rows: self.rows }
    }

    /// Adds a route that the API description does not cover.
    #[must_use]
    pub fn route<H, T>(mut self, on: On, path: &str, handler: H) -> Self
    where
        H: Handler<T, S>,
        T: Arguments + 'static,
    {
        self.rows.push(Row { method: on.name(), path: path.to_owned(), need: T::NEED });
        let methods = match on.filter() {
            Some(filter) => MethodRouter::new().on(filter, handler),
            None => axum::routing::any(handler),
        };
        Self { router: self.router.route(path, methods), rows: self.rows }
    }

    /// Wraps the router of this table's routes in an `axum` layer.
    #[must_use]
    pub fn layered(self, layer: impl FnOnce(Router<S>) -> Router<S>) -> Self {
        let (router, description) = self.router.split_for_parts();
        let router = OpenApiRouter::from(layer(router));
        let mut same = Self { router, rows: self.rows };
        *same.router.get_openapi_mut() = description;
        same
    }

    /// Merges the routes of another table into this one.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.rows.extend(other.rows);
        Self { router: self.router.merge(other.router), rows: self.rows }
    }

    /// Provides the state of these routes' handlers. The table can then be merged with routes that have a
    /// different state.
    #[must_use]
    pub fn with_state<O: Clone + Send + Sync + 'static>(self, state: S) -> Table<O> {
        Table { router: self.router.with_state(state), rows: self.rows }
    }

    /// Returns the routes as an `axum` router.
    pub fn into_router(self) -> Router<S> {
        self.router.split_for_parts().0
    }

    /// Returns the API description of the routes that have one.
    pub fn into_description(self) -> OpenApi {
        self.router.into_openapi()
    }

    /// Returns every route with its need.
    pub fn into_rows(self) -> Vec<Row> {
        self.rows
    }
}

impl<S: Clone + Send + Sync + 'static> Default for Table<S> {
    fn default() -> Self {
        Self { router: OpenApiRouter::new(), rows: Vec::new() }
    }
}

impl On {
    fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Any => "ANY",
        }
    }

    fn filter(self) -> Option<MethodFilter> {
        match self {
            Self::Get => Some(MethodFilter::GET),
            Self::Post => Some(MethodFilter::POST),
            Self::Put => Some(MethodFilter::PUT),
            Self::Delete => Some(MethodFilter::DELETE),
            Self::Any => None,
        }
    }
}

fn name(method: &HttpMethod) -> &'static str {
    match method {
        HttpMethod::Get => "GET",
        HttpMethod::Post => "POST",
        HttpMethod::Put => "PUT",
        HttpMethod::Delete => "DELETE",
        HttpMethod::Options => "OPTIONS",
        HttpMethod::Head => "HEAD",
        HttpMethod::Patch => "PATCH",
        HttpMethod::Trace => "TRACE",
    }
}
