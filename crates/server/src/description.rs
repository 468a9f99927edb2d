//! Rewrites the API description so that code generators can process it.
//!
//! utoipa describes an object that `serde` flattens into another as `allOf` with a reference. Code generators
//! reject `allOf` within a union. Also, if one part of an `allOf` forbids additional properties, no value can
//! satisfy the whole. This module therefore replaces each `allOf` with one object that has all properties,
//! and turns each variant of a tagged union into a named schema such as `OutputLineEnd`. It also describes
//! `Vec<u8>` as binary data instead of an array of numbers.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{KnownFormat, Object, OneOf, SchemaFormat, Type};
use utoipa::openapi::{Content, ObjectBuilder, OpenApi, Ref, RefOr, Schema};

type Schemas = BTreeMap<String, RefOr<Schema>>;

/// Media types of binary bodies.
const BINARY: [&str; 2] = ["application/octet-stream", "application/x-tar"];

/// Adds descriptions that a route's attributes omit: the meanings of statuses, and binary bodies.
pub(crate) fn describe_bodies(operation: &mut Operation) {
    describe_responses(operation);
    describe_bytes(operation);
}

/// Sets the description of each response that has none to the name of its status, because OpenAPI requires a
/// description.
fn describe_responses(operation: &mut Operation) {
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response
            && response.description.is_empty()
        {
            let known = status.parse::<StatusCode>().ok().and_then(|status| status.canonical_reason());
            response.description = known.unwrap_or("Error").to_owned();
        }
    }
}

fn describe_bytes(operation: &mut Operation) {
    if let Some(RefOr::T(body)) = &mut operation.request_body {
        body.content.iter_mut().for_each(|(media_type, content)| describe_if_bytes(media_type, content));
    }
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            response
                .content
                .iter_mut()
                .for_each(|(media_type, content)| describe_if_bytes(media_type, content));
        }
    }
}

fn describe_if_bytes(media_type: &str, content: &mut RefOr<Content>) {
    if let RefOr::T(content) = content
        && BINARY.contains(&media_type)
    {
        let format = SchemaFormat::KnownFormat(KnownFormat::Binary);
        let binary = ObjectBuilder::new().schema_type(Type::String).format(Some(format)).build();
        content.schema = Some(RefOr::T(Schema::Object(binary)));
    }
}

/// Rewrites all schemas of a description.
pub(crate) fn simplify(mut description: OpenApi) -> OpenApi {
    if let Some(components) = &mut description.components {
        let known = components.schemas.clone();
        for schema in components.schemas.values_mut() {
            flatten(schema, &known);
            if let RefOr::T(Schema::OneOf(union)) = schema {
                union.items.iter_mut().for_each(|variant| flatten(variant, &known));
            }
        }
        let named = components.schemas.iter_mut().flat_map(|(name, schema)| name_variants(name, schema));
        let variants: Schemas = named.collect();
        components.schemas.extend(variants);
    }
    description
}

/// Replaces an `allOf` with one object, or with a union of objects if one of its parts is a union.
fn flatten(schema: &mut RefOr<Schema>, known: &Schemas) {
    let RefOr::T(Schema::AllOf(all)) = &*schema else { return };
    let description = all.description.clone();
    let Some(mut objects) = alternatives(schema, known) else { return };
    *schema = match objects.len() {
        1 => {
            let mut object = objects.remove(0);
            object.description = description;
            RefOr::T(Schema::Object(object))
        }
        _ => {
            let items = objects.into_iter().map(|object| RefOr::T(Schema::Object(object))).collect();
            let mut union = OneOf::new();
            (union.items, union.description) = (items, description);
            RefOr::T(Schema::OneOf(union))
        }
    };
}

/// Returns the objects that a schema allows, or `None` if the schema also allows other types.
fn alternatives(schema: &RefOr<Schema>, known: &Schemas) -> Option<Vec<Object>> {
    let schema = match schema {
        RefOr::T(schema) => schema,
        RefOr::Ref(to) => return alternatives(known.get(to.ref_location.rsplit('/').next()?)?, known),
    };
    match schema {
        Schema::Object(object) => Some(vec![object.clone()]),
        Schema::OneOf(union) => {
            let each: Option<Vec<_>> = union.items.iter().map(|item| alternatives(item, known)).collect();
            Some(each?.concat())
        }
        Schema::AllOf(all) => all.items.iter().try_fold(vec![Object::new()], |so_far, part| {
            let parts = alternatives(part, known)?;
            Some(so_far.iter().flat_map(|object| parts.iter().map(|part| merged(object, part))).collect())
        }),
        Schema::Array(_) | Schema::AnyOf(_) | _ => None,
    }
}

/// Returns an object with the properties of both objects.
fn merged(one: &Object, other: &Object) -> Object {
    let mut both = one.clone();
    both.properties.extend(other.properties.clone());
    both.required.extend(other.required.iter().cloned());
    both.additional_properties = both.additional_properties.or_else(|| other.additional_properties.clone());
    both
}

/// Replaces the variants of a tagged union with references, and returns the variants with their new names.
fn name_variants(name: &str, schema: &mut RefOr<Schema>) -> Vec<(String, RefOr<Schema>)> {
    let RefOr::T(Schema::OneOf(union)) = schema else { return Vec::new() };
    let mut named = Vec::new();
    for variant in &mut union.items {
        if let RefOr::T(Schema::Object(object)) = &*variant
            && let Some(tag) = tag(object)
        {
            let name = name.to_owned() + &tag.split('_').map(capitalized).collect::<String>();
            let reference = RefOr::Ref(Ref::from_schema_name(name.as_str()));
            named.push((name, std::mem::replace(variant, reference)));
        }
    }
    named
}

/// Returns the value of the tag, which is the required property with only one permitted value.
fn tag(object: &Object) -> Option<String> {
    object.required.iter().find_map(|name| {
        let Some(RefOr::T(Schema::Object(property))) = object.properties.get(name) else { return None };
        match property.enum_values.as_deref() {
            Some([serde_json::Value::String(value)]) => Some(value.clone()),
            _ => None,
        }
    })
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_schema_is_a_conjunction_and_the_variants_of_unions_have_names() {
        let schemas = crate::routes::description().components.unwrap().schemas;
        let text = serde_json::to_string(&schemas).unwrap();
        assert!(!text.contains("allOf"));
        let changed = serde_json::to_value(&schemas["WatchLineChanged"]).unwrap();
        assert_eq!(changed["required"], serde_json::json!(["event", "type"]));
        assert_eq!(changed["properties"]["type"]["enum"], serde_json::json!(["changed"]));
        assert_eq!(changed["description"], "A file changed.");
        let hashed = serde_json::to_value(&schemas["HashedFile"]).unwrap();
        let required: Vec<_> =
            hashed["oneOf"].as_array().unwrap().iter().map(|one| one["required"].to_string()).collect();
        assert_eq!(required, [r#"["sha256","file"]"#, r#"["blake3","file"]"#]);
    }
}
