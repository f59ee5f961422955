//! Rules of probes and lifecycle hooks.

use k8s_openapi::api::core::v1::{
    ExecAction, GRPCAction, HTTPGetAction, Lifecycle, LifecycleHandler, Probe, SleepAction,
    TCPSocketAction,
};

use crate::field::{ErrorList, FieldError, Path};
use crate::names;
use crate::validation::service::port_number_or_name;
use crate::validation::{invalid_each, not_negative, one_of};

/// The ways a probe or a hook can act.
struct Handler<'a> {
    exec: Option<&'a ExecAction>,
    http_get: Option<&'a HTTPGetAction>,
    tcp_socket: Option<&'a TCPSocketAction>,
    grpc: Option<&'a GRPCAction>,
    sleep: Option<&'a SleepAction>,
}

/// What a probe is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Liveness,
    Readiness,
    Startup,
}

/// Rules of a probe.
pub(super) fn probe(
    probe: &Probe,
    purpose: Purpose,
    grace: Option<i64>,
    path: &Path,
    errors: &mut ErrorList,
) {
    handler(
        &Handler {
            exec: probe.exec.as_ref(),
            http_get: probe.http_get.as_ref(),
            tcp_socket: probe.tcp_socket.as_ref(),
            grpc: probe.grpc.as_ref(),
            sleep: None,
        },
        grace,
        path,
        errors,
    );
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        not_negative(errors, &path.child(field), value.unwrap_or(0).into());
    }
    if let Some(seconds) = probe.termination_grace_period_seconds {
        let path = path.child("terminationGracePeriodSeconds");
        if purpose == Purpose::Readiness {
            errors.push(FieldError::invalid(
                &path,
                seconds,
                "must not be set for readinessProbes",
            ));
        } else if seconds <= 0 {
            errors.push(FieldError::invalid(
                &path,
                seconds,
                "must be greater than 0",
            ));
        }
    }
    let threshold = probe.success_threshold.unwrap_or(1);
    if purpose != Purpose::Readiness && threshold != 1 {
        errors.push(FieldError::invalid(
            &path.child("successThreshold"),
            threshold,
            "must be 1",
        ));
    }
}

/// Rules of lifecycle hooks.
pub(super) fn lifecycle(
    lifecycle: &Lifecycle,
    grace: Option<i64>,
    path: &Path,
    errors: &mut ErrorList,
) {
    for (field, hook) in [
        ("postStart", &lifecycle.post_start),
        ("preStop", &lifecycle.pre_stop),
    ] {
        if let Some(hook) = hook {
            handler(&of_hook(hook), grace, &path.child(field), errors);
        }
    }
}

fn of_hook(hook: &LifecycleHandler) -> Handler<'_> {
    Handler {
        exec: hook.exec.as_ref(),
        http_get: hook.http_get.as_ref(),
        tcp_socket: hook.tcp_socket.as_ref(),
        grpc: None,
        sleep: hook.sleep.as_ref(),
    }
}

fn handler(handler: &Handler<'_>, grace: Option<i64>, path: &Path, errors: &mut ErrorList) {
    let mut count = 0;
    let mut only_one = |field: &str, errors: &mut ErrorList| {
        count += 1;
        if count > 1 {
            errors.push(FieldError::forbidden(
                &path.child(field),
                "may not specify more than 1 handler type",
            ));
        }
        count == 1
    };
    if let Some(exec) = handler.exec
        && only_one("exec", errors)
        && exec.command.as_ref().is_none_or(std::vec::Vec::is_empty)
    {
        errors.push(FieldError::required(&path.child("exec.command"), ""));
    }
    if let Some(get) = handler.http_get
        && only_one("httpGet", errors)
    {
        http_get(get, &path.child("httpGet"), errors);
    }
    if let Some(socket) = handler.tcp_socket
        && only_one("tcpSocket", errors)
    {
        port_number_or_name(&socket.port, &path.child("tcpSocket.port"), errors);
    }
    if let Some(grpc) = handler.grpc
        && only_one("grpc", errors)
    {
        let messages = names::port_number(grpc.port.into());
        invalid_each(errors, &path.child("grpc.port"), grpc.port, messages);
    }
    if let Some(sleep) = handler.sleep
        && only_one("sleep", errors)
    {
        let most = grace.unwrap_or(30);
        if sleep.seconds < 0 || sleep.seconds > most {
            errors.push(FieldError::invalid(
                &path.child("sleep"),
                sleep.seconds,
                format!(
                    "must be non-negative and less than terminationGracePeriodSeconds ({most}). Enable AllowPodLifecycleSleepActionZeroValue feature gate for zero sleep."
                ),
            ));
        }
    }
    if count == 0 {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
}

fn http_get(get: &HTTPGetAction, path: &Path, errors: &mut ErrorList) {
    if get.path.as_ref().is_none_or(std::string::String::is_empty) {
        errors.push(FieldError::required(&path.child("path"), ""));
    }
    port_number_or_name(&get.port, &path.child("port"), errors);
    one_of(
        errors,
        &path.child("scheme"),
        get.scheme.as_deref(),
        &["HTTP", "HTTPS"],
    );
    for header in get.http_headers.iter().flatten() {
        let token = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
        if header.name.is_empty() || !header.name.bytes().all(token) {
            errors.push(FieldError::invalid(
                &path.child("httpHeaders"),
                &header.name,
                "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')",
            ));
        }
    }
}
