//! What can be done at which path: the registry's resources as operations, in a form both
//! versions of OpenAPI are written from.
//!
//! Pure.

use pintle_kube_types::gvk::GroupVersion;

use crate::registry::{Registry, Resource, Subresource};

/// A query or path parameter.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) type_: &'static str,
    pub(super) description: &'static str,
}

const fn parameter(
    name: &'static str,
    type_: &'static str,
    description: &'static str,
) -> Parameter {
    Parameter {
        name,
        type_,
        description,
    }
}

/// Path parameters.
pub(super) static NAME: Parameter = parameter("name", "string", "name of the object");
pub(super) static NAMESPACE: Parameter = parameter(
    "namespace",
    "string",
    "object name and auth scope, such as for teams and projects",
);
/// Of every operation.
pub(super) static PRETTY: Parameter = parameter(
    "pretty",
    "string",
    "If 'true', the output is pretty printed.",
);

static LIST: &[Parameter] = &[
    parameter(
        "allowWatchBookmarks",
        "boolean",
        "Ask for watch events of type BOOKMARK.",
    ),
    parameter(
        "continue",
        "string",
        "Token of the page before, to get the next one.",
    ),
    parameter(
        "fieldSelector",
        "string",
        "Restrict the objects by their fields.",
    ),
    parameter(
        "labelSelector",
        "string",
        "Restrict the objects by their labels.",
    ),
    parameter(
        "limit",
        "integer",
        "Largest number of objects in one response.",
    ),
    parameter(
        "resourceVersion",
        "string",
        "Revision to read at, or to watch from.",
    ),
    parameter(
        "resourceVersionMatch",
        "string",
        "How resourceVersion is applied to a list.",
    ),
    parameter(
        "sendInitialEvents",
        "boolean",
        "Begin a watch with the present objects.",
    ),
    parameter(
        "timeoutSeconds",
        "integer",
        "Time limit of the list or watch.",
    ),
    parameter("watch", "boolean", "Watch for changes instead of listing."),
];
static DRY_RUN: Parameter = parameter(
    "dryRun",
    "string",
    "When present, changes are not persisted. The only valid value is All.",
);
static WRITE: &[Parameter] = &[
    parameter(
        "dryRun",
        "string",
        "When present, changes are not persisted. The only valid value is All.",
    ),
    parameter(
        "fieldManager",
        "string",
        "Name of the actor making the change.",
    ),
    parameter(
        "fieldValidation",
        "string",
        "What to do about unknown and duplicate fields: Ignore, Warn or Strict.",
    ),
];
static FORCE: Parameter = parameter(
    "force",
    "boolean",
    "Take over fields that other managers own (apply patches only).",
);
static DELETE: &[Parameter] = &[
    parameter(
        "gracePeriodSeconds",
        "integer",
        "Seconds before the object is deleted.",
    ),
    parameter(
        "orphanDependents",
        "boolean",
        "Deprecated: use propagationPolicy.",
    ),
    parameter(
        "propagationPolicy",
        "string",
        "Orphan, Background or Foreground.",
    ),
];
static LOG: &[Parameter] = &[
    parameter("container", "string", "Container to read the log of."),
    parameter("follow", "boolean", "Go on as the log grows."),
    parameter(
        "insecureSkipTLSVerifyBackend",
        "boolean",
        "Do not verify the node's certificate.",
    ),
    parameter("limitBytes", "integer", "End after so many bytes."),
    parameter(
        "previous",
        "boolean",
        "Read the log of the container's previous instance.",
    ),
    parameter(
        "sinceSeconds",
        "integer",
        "Only lines of the last so many seconds.",
    ),
    parameter("stream", "string", "All, Stdout or Stderr."),
    parameter("tailLines", "integer", "Only so many lines from the end."),
    parameter("timestamps", "boolean", "Begin each line with its time."),
];
static CONNECT: &[Parameter] = &[
    parameter("command", "string", "Command to execute, without a shell."),
    parameter("container", "string", "Container to connect to."),
    parameter("stderr", "boolean", "Connect the standard error stream."),
    parameter("stdin", "boolean", "Connect the standard input stream."),
    parameter("stdout", "boolean", "Connect the standard output stream."),
    parameter("tty", "boolean", "Give the command a terminal."),
];
static PORT_FORWARD: &[Parameter] = &[parameter("ports", "integer", "Ports to forward.")];

/// What a body holds.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Shape {
    /// An object of a kind.
    Kind {
        group: String,
        version: String,
        kind: String,
    },
    /// A patch.
    Patch,
    /// metav1.DeleteOptions.
    DeleteOptions,
    /// metav1.Status.
    Status,
    /// Text.
    Text,
}

/// One operation.
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) id: String,
    pub(super) description: String,
    /// `x-kubernetes-action`.
    pub(super) action: &'static str,
    /// Group, version and kind it is about.
    pub(super) gvk: (String, String, String),
    pub(super) parameters: Vec<&'static Parameter>,
    pub(super) body: Option<Shape>,
    pub(super) returns: Shape,
    /// Success codes.
    pub(super) codes: &'static [u16],
}

/// A path and what can be done there.
pub(super) struct Endpoint {
    pub(super) path: String,
    pub(super) parameters: Vec<&'static Parameter>,
    pub(super) operations: Vec<Operation>,
}

/// The endpoints of one group and version, by path.
pub(super) fn endpoints(registry: &Registry, gv: &GroupVersion) -> Vec<Endpoint> {
    let mut endpoints = Vec::new();
    for resource in registry.resources() {
        if resource.group == gv.group && resource.version == gv.version {
            of_resource(resource, &mut endpoints);
        }
    }
    endpoints.sort_by(|a, b| a.path.cmp(&b.path));
    endpoints
}

/// `core_v1`, `apps_v1`: the tag of a group and version.
pub(super) fn tag(gv: &GroupVersion) -> String {
    let group = if gv.group.is_empty() {
        "core"
    } else {
        gv.group.strip_suffix(".k8s.io").unwrap_or(&gv.group)
    };
    format!("{group}_{}", gv.version)
}

fn of_resource(resource: &Resource, endpoints: &mut Vec<Endpoint>) {
    let root = if resource.group.is_empty() {
        format!("/api/{}", resource.version)
    } else {
        format!("/apis/{}/{}", resource.group, resource.version)
    };
    let plural = &resource.plural;
    let context = Context { resource };
    let scope: Vec<&'static Parameter> = if resource.namespaced {
        vec![&NAMESPACE]
    } else {
        vec![]
    };
    let collection = if resource.namespaced {
        if resource.supports("list") {
            endpoints.push(Endpoint {
                path: format!("{root}/{plural}"),
                parameters: vec![&PRETTY],
                operations: vec![context.list(true)],
            });
        }
        format!("{root}/namespaces/{{namespace}}/{plural}")
    } else {
        format!("{root}/{plural}")
    };
    let item = format!("{collection}/{{name}}");
    let with = |first: &[&'static Parameter]| {
        let mut all = first.to_vec();
        all.extend(&scope);
        all.push(&PRETTY);
        all
    };

    let operations = context.on_collection();
    if !operations.is_empty() {
        endpoints.push(Endpoint {
            path: collection,
            parameters: with(&[]),
            operations,
        });
    }
    let operations = context.on_item();
    if !operations.is_empty() {
        endpoints.push(Endpoint {
            path: item.clone(),
            parameters: with(&[&NAME]),
            operations,
        });
    }
    for subresource in &resource.subresources {
        endpoints.push(Endpoint {
            path: format!("{item}/{}", subresource.name),
            parameters: with(&[&NAME]),
            operations: context.on_subresource(subresource),
        });
    }
}

struct Context<'a> {
    resource: &'a Resource,
}

impl Context<'_> {
    fn shape(&self) -> Shape {
        Shape::Kind {
            group: self.resource.group.to_string(),
            version: self.resource.version.to_string(),
            kind: self.resource.kind.to_string(),
        }
    }

    fn operation(
        &self,
        method: &'static str,
        verb: &'static str,
        action: &'static str,
        what: &str,
        suffix: &str,
    ) -> Operation {
        let resource = self.resource;
        let group = if resource.group.is_empty() {
            "core"
        } else {
            resource.group.split('.').next().unwrap_or_default()
        };
        let scope = if resource.namespaced {
            "Namespaced"
        } else {
            ""
        };
        Operation {
            method,
            id: format!(
                "{verb}{}{}{scope}{}{suffix}",
                capitalised(group),
                capitalised(&resource.version),
                resource.kind
            ),
            description: format!("{what} {}", resource.kind),
            action,
            gvk: (
                resource.group.to_string(),
                resource.version.to_string(),
                resource.kind.to_string(),
            ),
            parameters: Vec::new(),
            body: None,
            returns: self.shape(),
            codes: &[200],
        }
    }

    fn list(&self, all_namespaces: bool) -> Operation {
        let mut operation = self.operation(
            "get",
            "list",
            "list",
            "list or watch objects of kind",
            if all_namespaces {
                "ForAllNamespaces"
            } else {
                ""
            },
        );
        if all_namespaces {
            operation.id = operation.id.replacen("Namespaced", "", 1);
        }
        operation.parameters = LIST.iter().collect();
        operation.returns = Shape::Kind {
            group: self.resource.group.to_string(),
            version: self.resource.version.to_string(),
            kind: self.resource.list_kind.to_string(),
        };
        operation
    }

    fn on_collection(&self) -> Vec<Operation> {
        let mut operations = Vec::new();
        if self.resource.supports("list") {
            operations.push(self.list(false));
        }
        if self.resource.supports("create") {
            let mut create = self.operation("post", "create", "post", "create a", "");
            create.parameters = WRITE.iter().collect();
            create.body = Some(self.shape());
            create.codes = &[200, 201, 202];
            operations.push(create);
        }
        if self.resource.supports("deletecollection") {
            let mut delete = self.operation(
                "delete",
                "deleteCollection",
                "deletecollection",
                "delete collection of",
                "",
            );
            delete.id = delete.id.replacen("deleteCollection", "delete", 1);
            delete.id = match delete.id.split_once("Namespaced") {
                Some((before, after)) => format!("{before}CollectionNamespaced{after}"),
                None => format!("{}Collection", delete.id),
            };
            delete.parameters = LIST
                .iter()
                .filter(|p| !matches!(p.name, "watch" | "allowWatchBookmarks"))
                .chain([&DRY_RUN])
                .chain(DELETE)
                .collect();
            delete.body = Some(Shape::DeleteOptions);
            delete.returns = Shape::Status;
            operations.push(delete);
        }
        operations
    }

    fn on_item(&self) -> Vec<Operation> {
        let mut operations = Vec::new();
        for verb in ["get", "update", "delete", "patch"] {
            if self.resource.supports(verb) {
                operations.push(self.item(verb, ""));
            }
        }
        operations
    }

    fn item(&self, verb: &str, suffix: &str) -> Operation {
        match verb {
            "get" => self.operation("get", "read", "get", "read the specified", suffix),
            "update" => {
                let mut put =
                    self.operation("put", "replace", "put", "replace the specified", suffix);
                put.parameters = WRITE.iter().collect();
                put.body = Some(self.shape());
                put.codes = &[200, 201];
                put
            }
            "delete" => {
                let mut delete = self.operation("delete", "delete", "delete", "delete a", suffix);
                delete.parameters = std::iter::once(&DRY_RUN).chain(DELETE).collect();
                delete.body = Some(Shape::DeleteOptions);
                delete.returns = Shape::Status;
                delete.codes = &[200, 202];
                delete
            }
            _ => {
                let mut patch = self.operation(
                    "patch",
                    "patch",
                    "patch",
                    "partially update the specified",
                    suffix,
                );
                patch.parameters = WRITE.iter().chain([&FORCE]).collect();
                patch.body = Some(Shape::Patch);
                patch.codes = &[200, 201];
                patch
            }
        }
    }

    fn on_subresource(&self, subresource: &Subresource) -> Vec<Operation> {
        let suffix = capitalised(subresource.name);
        let connects = matches!(
            subresource.name,
            "exec" | "attach" | "portforward" | "proxy"
        );
        let shape = Shape::Kind {
            group: subresource.group.to_owned(),
            version: subresource.version.to_owned(),
            kind: subresource.kind.to_owned(),
        };
        let mut operations: Vec<Operation> = Vec::new();
        for verb in subresource.verbs {
            let mut operation = match *verb {
                "get" | "create" if connects => {
                    let method = if *verb == "get" { "get" } else { "post" };
                    let what = format!("connect {} requests to", method.to_uppercase());
                    let mut connect = self.operation(method, "connect", "connect", &what, &suffix);
                    connect.id = connect.id.replacen(
                        "connect",
                        &format!("connect{}", capitalised(method)),
                        1,
                    );
                    connect.parameters = if subresource.name == "portforward" {
                        PORT_FORWARD.iter().collect()
                    } else {
                        CONNECT.iter().collect()
                    };
                    connect.returns = Shape::Text;
                    connect
                }
                "create" => {
                    let mut create = self.operation("post", "create", "post", "create", &suffix);
                    create.parameters = WRITE.iter().collect();
                    create.body = Some(shape.clone());
                    create.returns = shape.clone();
                    create.codes = &[200, 201, 202];
                    create
                }
                "get" | "update" | "patch" => {
                    let mut operation = self.item(verb, &suffix);
                    if operation.body.is_some() && *verb == "update" {
                        operation.body = Some(shape.clone());
                    }
                    operation.returns = shape.clone();
                    operation
                }
                _ => continue,
            };
            if subresource.name == "log" {
                operation.parameters = LOG.iter().collect();
                operation.returns = Shape::Text;
            }
            operation.gvk = (
                subresource.group.to_owned(),
                subresource.version.to_owned(),
                subresource.kind.to_owned(),
            );
            operations.push(operation);
        }
        operations
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_ascii_uppercase().to_string() + letters.as_str()
    })
}
