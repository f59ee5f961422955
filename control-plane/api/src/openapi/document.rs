//! OpenAPI v2 as protobuf: the messages of gnostic's `openapi.v2.Document`, as far as a document
//! of ours uses them, and their making from the JSON document.
//!
//! Pure. The field numbers are those of `openapiv2/OpenAPIv2.proto` of
//! <https://github.com/google/gnostic>; fields that are never set are left out, which protobuf
//! does not mind.

use prost::Message;
use serde_json::{Map, Value};

/// Encodes a JSON document.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    document_message(document).encode_to_vec()
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Document {
    #[prost(string, tag = "1")]
    pub(super) swagger: String,
    #[prost(message, optional, tag = "2")]
    pub(super) info: Option<Info>,
    #[prost(message, optional, tag = "8")]
    pub(super) paths: Option<Paths>,
    #[prost(message, optional, tag = "9")]
    pub(super) definitions: Option<NamedSchemas>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Info {
    #[prost(string, tag = "1")]
    title: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Paths {
    #[prost(message, repeated, tag = "2")]
    pub(super) path: Vec<NamedPathItem>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NamedPathItem {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<PathItem>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PathItem {
    #[prost(message, optional, tag = "2")]
    get: Option<Operation>,
    #[prost(message, optional, tag = "3")]
    put: Option<Operation>,
    #[prost(message, optional, tag = "4")]
    post: Option<Operation>,
    #[prost(message, optional, tag = "5")]
    delete: Option<Operation>,
    #[prost(message, optional, tag = "8")]
    pub(super) patch: Option<Operation>,
    #[prost(message, repeated, tag = "9")]
    parameters: Vec<ParametersItem>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Operation {
    #[prost(string, repeated, tag = "1")]
    tags: Vec<String>,
    #[prost(string, tag = "3")]
    description: String,
    #[prost(string, tag = "5")]
    id: String,
    #[prost(string, repeated, tag = "6")]
    produces: Vec<String>,
    #[prost(string, repeated, tag = "7")]
    consumes: Vec<String>,
    #[prost(message, repeated, tag = "8")]
    parameters: Vec<ParametersItem>,
    #[prost(message, optional, tag = "9")]
    responses: Option<Responses>,
    #[prost(string, repeated, tag = "10")]
    schemes: Vec<String>,
    #[prost(message, repeated, tag = "13")]
    pub(super) vendor_extension: Vec<NamedAny>,
}

/// `ParametersItem` with its oneof's only case in use: `Parameter`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ParametersItem {
    #[prost(message, optional, tag = "1")]
    parameter: Option<Parameter>,
}

/// `Parameter`: one of the two is set.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Parameter {
    #[prost(message, optional, tag = "1")]
    body: Option<BodyParameter>,
    #[prost(message, optional, tag = "2")]
    non_body: Option<NonBodyParameter>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BodyParameter {
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    in_: String,
    #[prost(bool, tag = "4")]
    required: bool,
    #[prost(message, optional, tag = "5")]
    schema: Option<Schema>,
}

/// `NonBodyParameter`: one of the two is set.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NonBodyParameter {
    #[prost(message, optional, tag = "3")]
    query: Option<QueryParameter>,
    #[prost(message, optional, tag = "4")]
    path: Option<PathParameter>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct QueryParameter {
    #[prost(string, tag = "2")]
    in_: String,
    #[prost(string, tag = "3")]
    description: String,
    #[prost(string, tag = "4")]
    name: String,
    #[prost(string, tag = "6")]
    type_: String,
    #[prost(bool, tag = "20")]
    unique_items: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PathParameter {
    #[prost(bool, tag = "1")]
    required: bool,
    #[prost(string, tag = "2")]
    in_: String,
    #[prost(string, tag = "3")]
    description: String,
    #[prost(string, tag = "4")]
    name: String,
    #[prost(string, tag = "5")]
    type_: String,
    #[prost(bool, tag = "19")]
    unique_items: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Responses {
    #[prost(message, repeated, tag = "1")]
    response_code: Vec<NamedResponseValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NamedResponseValue {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<ResponseValue>,
}

/// `ResponseValue` with its oneof's only case in use: `Response`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseValue {
    #[prost(message, optional, tag = "1")]
    response: Option<ResponseMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseMessage {
    #[prost(string, tag = "1")]
    description: String,
    #[prost(message, optional, tag = "2")]
    schema: Option<SchemaItem>,
}

/// `SchemaItem` with its oneof's only case in use: `Schema`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SchemaItem {
    #[prost(message, optional, tag = "1")]
    schema: Option<Schema>,
}

/// `Definitions`, and `Properties` of a schema.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NamedSchemas {
    #[prost(message, repeated, tag = "1")]
    pub(super) additional_properties: Vec<NamedSchema>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NamedSchema {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Schema>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Schema {
    #[prost(string, tag = "1")]
    reference: String,
    #[prost(string, tag = "2")]
    format: String,
    #[prost(string, tag = "4")]
    description: String,
    #[prost(message, optional, tag = "5")]
    default: Option<Any>,
    #[prost(string, repeated, tag = "19")]
    required: Vec<String>,
    #[prost(message, repeated, tag = "20")]
    enum_: Vec<Any>,
    #[prost(message, optional, boxed, tag = "21")]
    additional_properties: Option<Box<AdditionalPropertiesItem>>,
    #[prost(message, optional, tag = "22")]
    type_: Option<TypeItem>,
    #[prost(message, optional, tag = "23")]
    items: Option<ItemsItem>,
    #[prost(message, optional, tag = "25")]
    properties: Option<NamedSchemas>,
    #[prost(message, repeated, tag = "31")]
    vendor_extension: Vec<NamedAny>,
}

/// `AdditionalPropertiesItem` with its oneof's only case in use: `Schema`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AdditionalPropertiesItem {
    #[prost(message, optional, boxed, tag = "1")]
    schema: Option<Box<Schema>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TypeItem {
    #[prost(string, repeated, tag = "1")]
    value: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ItemsItem {
    #[prost(message, repeated, tag = "1")]
    schema: Vec<Schema>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NamedAny {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<Any>,
}

/// Any value, as YAML; JSON is YAML too.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Any {
    #[prost(string, tag = "2")]
    pub(super) yaml: String,
}

fn document_message(document: &Value) -> Document {
    let paths = members(document, "paths").map(|(name, item)| NamedPathItem {
        name: name.clone(),
        value: Some(path_item(item)),
    });
    Document {
        swagger: text(document, "swagger"),
        info: document.get("info").map(|info| Info {
            title: text(info, "title"),
            version: text(info, "version"),
        }),
        paths: Some(Paths {
            path: paths.collect(),
        }),
        definitions: Some(named_schemas(document.get("definitions"))),
    }
}

fn path_item(item: &Value) -> PathItem {
    let operation = |method: &str| item.get(method).map(operation);
    PathItem {
        get: operation("get"),
        put: operation("put"),
        post: operation("post"),
        delete: operation("delete"),
        patch: operation("patch"),
        parameters: parameters(item),
    }
}

fn operation(operation: &Value) -> Operation {
    let responses = members(operation, "responses").map(|(code, response)| NamedResponseValue {
        name: code.clone(),
        value: Some(ResponseValue {
            response: Some(ResponseMessage {
                description: text(response, "description"),
                schema: response.get("schema").map(|value| SchemaItem {
                    schema: Some(schema(value)),
                }),
            }),
        }),
    });
    Operation {
        tags: texts(operation, "tags"),
        description: text(operation, "description"),
        id: text(operation, "operationId"),
        produces: texts(operation, "produces"),
        consumes: texts(operation, "consumes"),
        parameters: parameters(operation),
        responses: Some(Responses {
            response_code: responses.collect(),
        }),
        schemes: texts(operation, "schemes"),
        vendor_extension: extensions(operation),
    }
}

fn parameters(of: &Value) -> Vec<ParametersItem> {
    of.get("parameters")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|value| ParametersItem {
            parameter: Some(parameter(value)),
        })
        .collect()
}

fn parameter(value: &Value) -> Parameter {
    let required = value.get("required") == Some(&Value::Bool(true));
    let (name, in_, description, type_) = (
        text(value, "name"),
        text(value, "in"),
        text(value, "description"),
        text(value, "type"),
    );
    let unique_items = value.get("uniqueItems") == Some(&Value::Bool(true));
    match in_.as_str() {
        "body" => Parameter {
            body: Some(BodyParameter {
                name,
                in_,
                required,
                schema: value.get("schema").map(schema),
            }),
            non_body: None,
        },
        "path" => Parameter {
            body: None,
            non_body: Some(NonBodyParameter {
                query: None,
                path: Some(PathParameter {
                    required,
                    in_,
                    description,
                    name,
                    type_,
                    unique_items,
                }),
            }),
        },
        _ => Parameter {
            body: None,
            non_body: Some(NonBodyParameter {
                query: Some(QueryParameter {
                    in_,
                    description,
                    name,
                    type_,
                    unique_items,
                }),
                path: None,
            }),
        },
    }
}

fn named_schemas(schemas: Option<&Value>) -> NamedSchemas {
    let additional_properties = schemas
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(name, value)| NamedSchema {
            name: name.clone(),
            value: Some(schema(value)),
        })
        .collect();
    NamedSchemas {
        additional_properties,
    }
}

fn schema(value: &Value) -> Schema {
    let type_ = match value.get("type") {
        Some(Value::String(type_)) => vec![type_.clone()],
        Some(Value::Array(_)) => texts(value, "type"),
        _ => Vec::new(),
    };
    let additional = value.get("additionalProperties").filter(|v| v.is_object());
    Schema {
        reference: text(value, "$ref"),
        format: text(value, "format"),
        description: text(value, "description"),
        default: value.get("default").map(any),
        required: texts(value, "required"),
        enum_: value
            .get("enum")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(any)
            .collect(),
        additional_properties: additional.map(|additional| {
            Box::new(AdditionalPropertiesItem {
                schema: Some(Box::new(schema(additional))),
            })
        }),
        type_: (!type_.is_empty()).then_some(TypeItem { value: type_ }),
        items: value.get("items").map(|items| ItemsItem {
            schema: vec![schema(items)],
        }),
        properties: value
            .get("properties")
            .map(|properties| named_schemas(Some(properties))),
        vendor_extension: extensions(value),
    }
}

fn any(value: &Value) -> Any {
    Any {
        yaml: value.to_string(),
    }
}

fn extensions(value: &Value) -> Vec<NamedAny> {
    value
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| name.starts_with("x-"))
        .map(|(name, value)| NamedAny {
            name: name.clone(),
            value: Some(any(value)),
        })
        .collect()
}

fn members<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    value
        .get(field)
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::iter)
}

fn text(value: &Value, field: &str) -> String {
    let text = value.get(field).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

fn texts(value: &Value, field: &str) -> Vec<String> {
    value
        .get(field)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}
