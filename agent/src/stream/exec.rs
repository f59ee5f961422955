//! Processes in containers: exec, and attach to the first one.
//!
//! Passes frames between the server and the process; a process whose user has gone loses its
//! standard input, and a terminal its line.

use pintle_proto::node::{AttachTarget, Channel, ExecTarget, StreamFrame, stream_frame::Frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tonic::Streaming;

use super::outcome::Outcome;
use super::{Hangup, Sender};
use crate::describe;
use crate::runtime::{ExecSpec, Runtime};
use crate::sys::Terminal;

/// Bytes read at once.
const CHUNK: usize = 32 * 1024;
/// SIGHUP, for a process whose terminal is gone.
const HANGUP: i32 = 1;

/// Where input goes.
enum Input<'a> {
    None,
    Pipe(pipe::Sender),
    Terminal(&'a Terminal),
}

/// Runs a command in a container.
pub async fn exec(
    runtime: &Runtime,
    target: &ExecTarget,
    uid: &str,
    run: &str,
    incoming: &mut Streaming<StreamFrame>,
    sender: &Sender,
) -> Outcome {
    let spec = ExecSpec {
        args: target.command.clone(),
        tty: target.tty,
        stdin: target.stdin,
        ..ExecSpec::default()
    };
    let session = match runtime.exec(uid, run, spec).await {
        Ok(session) => session,
        Err(error) => {
            return Outcome::Internal(format!(
                "error executing command in container: {}",
                describe::chain(&error)
            ));
        }
    };
    let terminal = session.terminal;
    let input = match (&terminal, session.stdin) {
        (Some(terminal), _) => Input::Terminal(terminal),
        (None, Some(stdin)) => Input::Pipe(stdin),
        (None, None) => Input::None,
    };
    let output = async {
        if let Some(terminal) = &terminal {
            return from_terminal(terminal, sender).await;
        }
        let (out, errors) = tokio::join!(
            from_pipe(session.stdout, Channel::Stdout, sender),
            from_pipe(session.stderr, Channel::Stderr, sender)
        );
        out.and(errors)
    };
    let output = Box::pin(output);
    let input = Box::pin(to_process(incoming, input, terminal.as_ref()));
    let exit = session.exit;
    let ended = async {
        // The output ends with the process; what it leaves running may keep it open.
        let (sent, exit) = tokio::join!(output, exit);
        (sent, exit)
    };
    let (ended, gone) = race(ended, input, sender).await;
    if gone {
        if terminal.is_some()
            && let Err(error) = runtime
                .signal_exec(uid, run, &session.exec_id, HANGUP)
                .await
        {
            tracing::debug!(error = describe::chain(&error), "hang up");
        }
        return Outcome::Success;
    }
    match ended {
        Some((_, Ok(exit))) if exit.code == 0 => Outcome::Success,
        Some((_, Ok(exit))) => Outcome::ExitCode(exit.code),
        Some((_, Err(_))) | None => Outcome::Internal("the sandbox is gone".to_owned()),
    }
}

/// Joins the first process of a container.
pub async fn attach(
    runtime: &Runtime,
    target: &AttachTarget,
    uid: &str,
    run: &str,
    incoming: &mut Streaming<StreamFrame>,
    sender: &Sender,
) -> Outcome {
    let session = match runtime.attach(uid, run).await {
        Ok(session) => session,
        Err(error) => {
            return Outcome::Internal(format!(
                "error attaching to container: {}",
                describe::chain(&error)
            ));
        }
    };
    let terminal = session.terminal;
    let input = match (&terminal, session.stdin) {
        _ if !target.stdin => Input::None,
        (Some(terminal), _) => Input::Terminal(terminal),
        (None, Some(stdin)) => Input::Pipe(stdin),
        (None, None) => Input::None,
    };
    let output = async {
        let (out, errors) = tokio::join!(
            from_pipe(session.stdout, Channel::Stdout, sender),
            from_pipe(session.stderr, Channel::Stderr, sender)
        );
        out.and(errors)
    };
    let input = Box::pin(to_process(incoming, input, terminal.as_ref()));
    race(Box::pin(output), input, sender).await;
    Outcome::Success
}

/// Runs both ways until the process's side ends, or the user's; true when it is the user who
/// has gone.
async fn race<T>(
    process: impl Future<Output = T>,
    input: impl Future<Output = bool>,
    sender: &Sender,
) -> (Option<T>, bool) {
    tokio::pin!(process);
    tokio::pin!(input);
    let mut feeding = true;
    loop {
        tokio::select! {
            ended = &mut process => return (Some(ended), false),
            () = sender.hung_up() => return (None, true),
            gone = &mut input, if feeding => {
                if gone {
                    return (None, true);
                }
                // Input has ended; the process goes on.
                feeding = false;
            }
        }
    }
}

/// Frames of the user to the process; true when the user has gone, false when only the input
/// has ended.
async fn to_process(
    incoming: &mut Streaming<StreamFrame>,
    mut input: Input<'_>,
    terminal: Option<&Terminal>,
) -> bool {
    loop {
        let frame = match incoming.message().await {
            Ok(Some(frame)) => frame.frame,
            Ok(None) => return false,
            Err(_) => return true,
        };
        match frame {
            Some(Frame::Data(data)) => {
                let written = match &mut input {
                    Input::None => Ok(()),
                    Input::Pipe(pipe) => pipe.write_all(&data.data).await,
                    Input::Terminal(terminal) => terminal.write_all(&data.data).await,
                };
                if written.is_err() {
                    // The process reads no more.
                    input = Input::None;
                }
            }
            Some(Frame::Resize(size)) => {
                let side = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
                if let Some(terminal) = terminal
                    && let Err(error) = terminal.resize(side(size.width), side(size.height))
                {
                    tracing::debug!(%error, "resize");
                }
            }
            Some(Frame::Close(channel)) if channel == i32::from(Channel::Stdin) => {
                input = Input::None;
            }
            _ => {}
        }
    }
}

async fn from_pipe(
    pipe: Option<pipe::Receiver>,
    channel: Channel,
    sender: &Sender,
) -> Result<(), Hangup> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    let mut buffer = vec![0; CHUNK];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        sender.data(channel, buffer[..read].to_vec()).await?;
    }
    sender.close(channel).await
}

async fn from_terminal(terminal: &Terminal, sender: &Sender) -> Result<(), Hangup> {
    let mut buffer = vec![0; CHUNK];
    while let Ok(read @ 1..) = terminal.read(&mut buffer).await {
        sender
            .data(Channel::Stdout, buffer[..read].to_vec())
            .await?;
    }
    sender.close(Channel::Stdout).await
}
