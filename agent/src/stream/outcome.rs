//! How a stream ended, as a metav1.Status. Pure.

use bytes::Bytes;
use serde_json::json;

/// The end of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All went well.
    Success,
    /// The command ended with this code, not 0.
    ExitCode(i32),
    /// The request makes no sense for this container.
    BadRequest(String),
    /// There is no such pod.
    NotFound(String),
    /// It did not work.
    Internal(String),
}

impl Outcome {
    /// JSON of the Status.
    pub fn to_json(&self) -> Bytes {
        let failure = |code: u16, reason: &str, message: &str| {
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "code": code, "reason": reason, "message": message,
            })
        };
        let value = match self {
            Self::Success => json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            }),
            // remotecommand's v4 protocol.
            Self::ExitCode(code) => json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "reason": "NonZeroExitCode",
                "message": format!("command terminated with non-zero exit code: exit status {code}"),
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Self::BadRequest(message) => failure(400, "BadRequest", message),
            Self::NotFound(message) => failure(404, "NotFound", message),
            Self::Internal(message) => failure(500, "InternalError", message),
        };
        value.to_string().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes() {
        let value: serde_json::Value =
            serde_json::from_slice(&Outcome::ExitCode(3).to_json()).unwrap();
        assert_eq!(value["reason"], "NonZeroExitCode");
        assert_eq!(value["details"]["causes"][0]["message"], "3");
        let value: serde_json::Value = serde_json::from_slice(&Outcome::Success.to_json()).unwrap();
        assert_eq!(value["status"], "Success");
    }
}
