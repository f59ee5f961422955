//! `pintle image …`: the node's images, through the running instance.

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use pintle_proto::admin::admin_client::AdminClient;
use pintle_proto::admin::{
    Image, ImageProgress, ImportImageRequest, ListImagesRequest, PullImageRequest,
    RemoveImageRequest,
};
use tonic::Streaming;
use tonic::transport::Channel;

use crate::cli::{ImageCommand, Output};
use crate::{admin, table};

/// Runs one image command.
pub(crate) async fn run(run_dir: &Path, command: ImageCommand) -> Result<()> {
    let Some(mut client) = admin::connect(run_dir).await? else {
        bail!(
            "no instance runs at {}; start one with `pintle up`",
            run_dir.display()
        );
    };
    match command {
        ImageCommand::Import { paths } => {
            for path in paths {
                let path = std::fs::canonicalize(&path)
                    .with_context(|| format!("{} cannot be opened", path.display()))?;
                let shown = path.display().to_string();
                let request = ImportImageRequest {
                    path: shown.clone(),
                };
                let stream = client
                    .import_image(request)
                    .await
                    .map_err(plain)?
                    .into_inner();
                follow(stream, &shown)
                    .await
                    .with_context(|| format!("importing {shown}"))?;
            }
        }
        ImageCommand::Pull { reference } => {
            let request = PullImageRequest {
                reference: reference.clone(),
            };
            let stream = client
                .pull_image(request)
                .await
                .map_err(plain)?
                .into_inner();
            follow(stream, &reference)
                .await
                .with_context(|| format!("pulling {reference}"))?;
        }
        ImageCommand::Ls { output } => list(&mut client, output).await?,
        ImageCommand::Rm { references } => {
            let mut out = std::io::stdout().lock();
            for reference in references {
                let request = RemoveImageRequest {
                    reference: reference.clone(),
                };
                let removed = client
                    .remove_image(request)
                    .await
                    .map_err(plain)
                    .with_context(|| format!("removing {reference}"))?;
                for line in removed.into_inner().removed {
                    writeln!(out, "{line}")?;
                }
            }
        }
    }
    Ok(())
}

/// Shows a job's steps (a bar on a terminal) and then the names it brought.
async fn follow(mut stream: Streaming<ImageProgress>, what: &str) -> Result<()> {
    let bar = if std::io::stderr().is_terminal() {
        ProgressBar::new(0)
    } else {
        ProgressBar::hidden()
    };
    bar.set_style(
        ProgressStyle::with_template("{prefix} {msg:<12} {bar:30} {bytes}/{total_bytes}")
            .context("the bar's template")?,
    );
    bar.set_prefix(what.to_owned());
    let mut images = Vec::new();
    while let Some(step) = stream.message().await.map_err(plain)? {
        bar.set_message(step.stage);
        bar.set_length(step.total_bytes);
        bar.set_position(step.done_bytes);
        images.extend(step.images);
    }
    bar.finish_and_clear();
    let mut out = std::io::stdout().lock();
    for image in images {
        for name in names(&image) {
            writeln!(out, "{name} {}", image.id)?;
        }
    }
    Ok(())
}

async fn list(client: &mut AdminClient<Channel>, output: Output) -> Result<()> {
    let images = client
        .list_images(ListImagesRequest {})
        .await
        .map_err(plain)?
        .into_inner()
        .images;
    if output == Output::Json {
        let list: Vec<_> = images
            .iter()
            .map(|image| {
                serde_json::json!({
                    "id": image.id,
                    "repoTags": image.repo_tags,
                    "repoDigests": image.repo_digests,
                    "size": image.size_bytes,
                })
            })
            .collect();
        writeln!(
            std::io::stdout(),
            "{}",
            serde_json::to_string_pretty(&list)?
        )?;
        return Ok(());
    }
    let mut rows = vec![["IMAGE".to_owned(), "ID".to_owned(), "SIZE".to_owned()]];
    for image in &images {
        let id = image.id.trim_start_matches("sha256:");
        for name in names(image) {
            rows.push([
                name,
                id.chars().take(12).collect(),
                table::bytes(image.size_bytes),
            ]);
        }
    }
    table::print(&rows)
}

fn names(image: &Image) -> Vec<String> {
    if !image.repo_tags.is_empty() {
        image.repo_tags.clone()
    } else if !image.repo_digests.is_empty() {
        image.repo_digests.clone()
    } else {
        vec!["<none>".to_owned()]
    }
}

/// The words of an instance's refusal, without gRPC's around them.
#[expect(clippy::needless_pass_by_value, reason = "the shape map_err wants")]
fn plain(status: tonic::Status) -> anyhow::Error {
    anyhow::anyhow!("{}", status.message())
}
