//! A new certificate before the present one ends.
//!
//! Watches the certificate's age; changes the identity on disk, which the next connection
//! uses. Each certificate has a key of its own. The session that is open goes on with the old
//! one, which the control plane accepts until it has seen the new one.

use std::time::Duration;

use pintle_proto::node::RenewRequest;
use pintle_proto::node::join_client::JoinClient;
use tonic::transport::Channel;

use super::identity::{self, Identity, IdentityError, IdentityStore, Validity};
use crate::clock::Clock;
use crate::describe;

/// Between these parts of its life a certificate is renewed; where, is left to chance, so that
/// nodes that joined together do not all ask at once.
const DUE: std::ops::Range<f64> = 0.70..0.80;
/// Longest sleep: a machine that was suspended sees the time again.
const LOOK: Duration = Duration::from_hours(12);
/// Pause after a failure: a hundredth of the life, within these bounds.
const RETRY_LEAST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_mins(10);

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
enum RenewalError {
    /// The key cannot be made or the identity not be kept.
    #[error("cannot make or keep the new identity")]
    Identity(#[from] IdentityError),
    /// The control plane did not sign.
    #[error("the control plane did not renew the certificate: {}", .0.message())]
    Refused(#[source] Box<tonic::Status>),
    /// The answer is no certificate of this node.
    #[error("the control plane answered with a certificate for another node")]
    Foreign,
}

/// Waits until the certificate is due and renews it over `channel`; gives the new one's
/// validity.
pub(super) async fn renew(
    store: IdentityStore,
    node_name: String,
    validity: Validity,
    channel: Channel,
    clock: Clock,
) -> Validity {
    let due = validity.part(rand::random_range(DUE));
    loop {
        let left = due.duration_since(clock.now());
        let Ok(left) = Duration::try_from(left) else {
            break;
        };
        if left.is_zero() {
            break;
        }
        tokio::time::sleep(left.min(LOOK)).await;
    }
    let life = validity.until.duration_since(validity.from).unsigned_abs();
    let retry = (life / 100).clamp(RETRY_LEAST, RETRY_MOST);
    loop {
        match attempt(&store, &node_name, channel.clone()).await {
            Ok(validity) => {
                tracing::info!(node = node_name, until = %validity.until, "certificate renewed");
                return validity;
            }
            Err(error) => tracing::warn!("{}", describe::chain(&error)),
        }
        tokio::time::sleep(retry).await;
    }
}

async fn attempt(
    store: &IdentityStore,
    node_name: &str,
    channel: Channel,
) -> Result<Validity, RenewalError> {
    let key_pem = identity::new_key()?;
    let csr_pem = identity::signing_request(&key_pem, node_name)?;
    let response = JoinClient::new(channel)
        .renew(RenewRequest { csr_pem })
        .await
        .map_err(|status| RenewalError::Refused(Box::new(status)))?;
    let certificate_pem = response.into_inner().certificate_pem;
    let validity = identity::validity(&certificate_pem, node_name).ok_or(RenewalError::Foreign)?;
    store.save(&Identity {
        key_pem,
        certificate_pem,
    })?;
    Ok(validity)
}
