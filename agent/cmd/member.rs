//! `pintle member`: the servers of the cluster, as members of the group that keeps its state.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use pintle_proto::admin::{ListMembersRequest, Member, RemoveMemberRequest};

use crate::cli::{MemberCommand, Output};
use crate::{admin, table};

/// Runs a command on the instance at `run_dir`.
pub(crate) async fn run(run_dir: &Path, command: MemberCommand) -> Result<()> {
    let mut client = admin::connect_running(run_dir).await?;
    match command {
        MemberCommand::List { output } => {
            let listed = client.list_members(ListMembersRequest {}).await;
            let members = listed.map_err(admin::refused)?.into_inner().members;
            match output {
                Output::Text => text(&members),
                Output::Json => json(&members),
            }
        }
        MemberCommand::Remove { id } => {
            let request = RemoveMemberRequest { id };
            client
                .remove_member(request)
                .await
                .map_err(admin::refused)?;
            writeln!(std::io::stdout(), "removed member {id}")?;
            Ok(())
        }
    }
}

fn text(members: &[Member]) -> Result<()> {
    let mut rows = vec![["ID", "ADDRESS", "ROLE", "THIS SERVER"].map(str::to_owned)];
    for member in members {
        let role = match (member.leader, member.voter) {
            (true, _) => "leader",
            (false, true) => "voter",
            (false, false) => "learner",
        };
        let address = if member.address.is_empty() {
            "-"
        } else {
            &member.address
        };
        rows.push([
            member.id.to_string(),
            address.to_owned(),
            role.to_owned(),
            if member.self_ { "yes" } else { "" }.to_owned(),
        ]);
    }
    table::print(&rows)
}

fn json(members: &[Member]) -> Result<()> {
    let members: Vec<_> = members
        .iter()
        .map(|member| {
            serde_json::json!({
                "id": member.id,
                "address": member.address,
                "voter": member.voter,
                "leader": member.leader,
                "self": member.self_,
            })
        })
        .collect();
    writeln!(
        std::io::stdout(),
        "{}",
        serde_json::to_string_pretty(&members)?
    )?;
    Ok(())
}
