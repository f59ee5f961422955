//! `pintle token`: the tokens that machines join the cluster with.
//!
//! Only the token itself goes to standard output, so that a script can take it from there.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use pintle_proto::admin::{
    CreateTokenRequest, CreateTokenResponse, ListTokensRequest, RevokeTokenRequest, Token,
};

use crate::cli::{Output, TokenCommand, TokenRole};
use crate::{admin, duration, table};

/// Runs a command on the instance at `run_dir`.
pub(crate) async fn run(run_dir: &Path, command: TokenCommand) -> Result<()> {
    let mut client = admin::connect_running(run_dir).await?;
    match command {
        TokenCommand::Create {
            role,
            ttl,
            description,
        } => {
            let request = CreateTokenRequest {
                ttl_seconds: ttl.as_secs(),
                role: word(role).to_owned(),
                description,
            };
            let created = client.create_token(request).await.map_err(admin::refused)?;
            created_token(&created.into_inner(), role)
        }
        TokenCommand::List { output } => {
            let listed = client.list_tokens(ListTokensRequest {}).await;
            let tokens = listed.map_err(admin::refused)?.into_inner().tokens;
            match output {
                Output::Text => text(&tokens),
                Output::Json => json(&tokens),
            }
        }
        TokenCommand::Revoke { ids } => {
            for id in ids {
                let request = RevokeTokenRequest { id: id.clone() };
                client.revoke_token(request).await.map_err(admin::refused)?;
                let id = id.split('.').next().unwrap_or_default();
                writeln!(std::io::stdout(), "revoked {id}")?;
            }
            Ok(())
        }
    }
}

/// The role, and the command that starts such a machine.
fn word(role: TokenRole) -> &'static str {
    match role {
        TokenRole::Agent => "agent",
        TokenRole::Server => "server",
    }
}

fn created_token(created: &CreateTokenResponse, role: TokenRole) -> Result<()> {
    let CreateTokenResponse { token, server, .. } = created;
    writeln!(std::io::stdout(), "{token}")?;
    if created.loopback_only {
        eprintln!(
            "hint: this server listens on {server} only, which no other machine can reach; restart it with `pintle up --bind ADDRESS`"
        );
    } else {
        let bind = match role {
            TokenRole::Agent => "",
            TokenRole::Server => " --bind ADDRESS",
        };
        eprintln!(
            "on the new machine, as root:\n  pintle {}{bind} --join {server} --token {token}",
            word(role)
        );
    }
    Ok(())
}

fn text(tokens: &[Token]) -> Result<()> {
    if tokens.is_empty() {
        writeln!(std::io::stdout(), "no tokens")?;
        return Ok(());
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut rows = vec![["ID", "ROLE", "EXPIRES IN", "DESCRIPTION"].map(str::to_owned)];
    for token in tokens {
        let left = u64::try_from(token.expires_at_unix)
            .unwrap_or_default()
            .saturating_sub(now.as_secs());
        let left = if token.expired {
            "expired".to_owned()
        } else {
            duration::show(Duration::from_secs(left))
        };
        rows.push([
            token.id.clone(),
            token.role.clone(),
            left,
            token.description.clone(),
        ]);
    }
    table::print(&rows)
}

fn json(tokens: &[Token]) -> Result<()> {
    let tokens: Vec<_> = tokens
        .iter()
        .map(|token| {
            serde_json::json!({
                "id": token.id,
                "role": token.role,
                "expiresAtUnix": token.expires_at_unix,
                "expired": token.expired,
                "description": token.description,
            })
        })
        .collect();
    writeln!(
        std::io::stdout(),
        "{}",
        serde_json::to_string_pretty(&tokens)?
    )?;
    Ok(())
}
