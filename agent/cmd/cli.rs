//! The command line, as types. What each command does is in the module of its name; this one
//! only says what can be typed and teaches it through `--help`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use pintle_control_plane::{Cidr, EtcdListen};

use crate::duration;

/// Kubernetes as one program: control plane and node for bare-metal Linux.
#[derive(Debug, Parser)]
#[command(
    name = "pintle",
    version,
    max_term_width = 100,
    after_help = "Start here:\n  \
        pintle up                                  a whole cluster on this machine, as root\n  \
        export KUBECONFIG=/etc/pintle/admin.kubeconfig\n  \
        kubectl apply -f web.yaml                  in another terminal\n  \
        pintle status                              what runs, and what is wrong\n\n\
        More machines: `pintle up --bind ADDR` here, then `pintle token create`, which prints the\n\
        command that makes another machine a node of this cluster, or with `--role server`\n\
        another server."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) instance: Instance,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which instance a command speaks of: several may run on one machine.
#[derive(Clone, Debug, Args)]
pub(crate) struct Instance {
    /// Where everything that outlives a reboot is kept
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "/var/lib/pintle",
        env = "PINTLE_DATA_DIR"
    )]
    pub(crate) data_dir: PathBuf,
    /// Where sockets and other things of this boot are kept; it names the instance
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "/run/pintle",
        env = "PINTLE_RUN_DIR"
    )]
    pub(crate) run_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the control plane and this machine's node: a server
    ///
    /// With --join and --token it becomes another server of a cluster that runs elsewhere, and
    /// later starts need neither. Three servers outlive the loss of one, five that of two.
    ///
    /// Runs in the foreground and prints `ready` when the node is Ready. Stop it with Ctrl-C or
    /// SIGTERM: pods keep running, and the next `pintle up` adopts them. `pintle down` stops them.
    #[command(visible_alias = "server")]
    Up(Box<Up>),
    /// Start this machine as a node of a cluster that runs elsewhere
    ///
    /// The first time give --join and --token, which `pintle token create` prints on a server.
    /// Later starts need neither. Like `pintle up`, it runs in the foreground, prints `ready`, and
    /// leaves pods running when it ends; `down`, `reset`, `status` and `image` work as there.
    Agent(Box<Agent>),
    /// Stop the node and its pods and remove every trace on the host; keep the data
    Down,
    /// Like `down`, and delete the data directory: the cluster is gone
    Reset {
        /// Do not ask
        #[arg(long, short = 'y')]
        yes: bool,
    },
    /// Show what runs, what is wrong and how to mend it
    Status {
        /// Form of the output
        #[arg(long, short, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// List, fetch and remove the node's container images
    #[command(subcommand)]
    Image(ImageCommand),
    /// List and remove the servers of the cluster
    #[command(subcommand)]
    Member(MemberCommand),
    /// Make, list and revoke the tokens that machines join the cluster with
    #[command(subcommand)]
    Token(TokenCommand),
    /// Print a kubeconfig with a new client certificate for a user
    ///
    /// What the user may do hangs on the groups: members of system:masters may do everything,
    /// others may so far only use discovery. A certificate cannot be revoked: keep --ttl short.
    Kubeconfig(Kubeconfig),
    /// Print a completion script for a shell
    ///
    /// For bash: `pintle completion bash > /etc/bash_completion.d/pintle`
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Print the version of the program and of the Kubernetes API it serves
    Version {
        /// Form of the output
        #[arg(long, short, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
}

/// `pintle up`. A flag wins over the config file, which wins over the default.
#[derive(Debug, Args)]
pub(crate) struct Up {
    /// A server of the cluster to join as another server
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) join: Option<String>,
    /// Token to join with, of `pintle token create --role server`; the environment keeps it out
    /// of the list of processes
    #[arg(
        long,
        value_name = "TOKEN",
        env = "PINTLE_TOKEN",
        hide_env_values = true
    )]
    pub(crate) token: Option<String>,
    /// Port at which other servers reach this one's store; open only when there are others
    /// [default: 2380]
    #[arg(long, value_name = "PORT")]
    pub(crate) raft_port: Option<u16>,
    /// Address at which they reach it [default: that of the API]
    #[arg(long, value_name = "ADDR")]
    pub(crate) raft_advertise: Option<IpAddr>,
    /// Where to write the administrator's kubeconfig [default: /etc/pintle/admin.kubeconfig]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Address the API listens on [default: 127.0.0.1]
    ///
    /// For a cluster of several machines give an address that the others reach this one at, or
    /// 0.0.0.0 for all of this machine's.
    #[arg(long, value_name = "ADDR")]
    pub(crate) bind: Option<IpAddr>,
    /// Address at which other machines and pods reach the API [default: --bind, or with 0.0.0.0
    /// the node's address]
    #[arg(long, value_name = "ADDR")]
    pub(crate) advertise: Option<IpAddr>,
    /// Another name or address the API's certificate is to be valid for; may be repeated
    #[arg(long = "tls-san", value_name = "NAME")]
    pub(crate) tls_sans: Vec<String>,
    /// Port the API listens on [default: 6443]
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// Address of this node [default: the source address of the default route]
    #[arg(long, value_name = "ADDR")]
    pub(crate) node_ip: Option<IpAddr>,
    /// Addresses for pods, shared out among nodes as /24s [default: 10.244.0.0/16]
    #[arg(long, value_name = "CIDR")]
    pub(crate) pod_cidr: Option<Cidr>,
    /// Addresses for Services [default: 10.96.0.0/16]
    #[arg(long, value_name = "CIDR")]
    pub(crate) service_cidr: Option<Cidr>,
    /// Domain of the cluster's names [default: cluster.local]
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) cluster_domain: Option<String>,
    /// Serve the store over etcd's v3 API there, to client certificates of the group
    /// system:masters; http://127.0.0.1:PORT serves it unencrypted to everybody on this machine
    /// [default: not served]
    #[arg(long, value_name = "[https://]ADDR:PORT")]
    pub(crate) etcd_listen: Option<EtcdListen>,
    /// Settings in YAML; the README lists them
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Return when the node is Ready and leave it running in the background
    #[arg(long)]
    pub(crate) detach: bool,
}

/// `pintle agent`.
#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// A server of the cluster to join
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) join: Option<String>,
    /// Token to join with; the environment keeps it out of the list of processes
    #[arg(
        long,
        value_name = "TOKEN",
        env = "PINTLE_TOKEN",
        hide_env_values = true
    )]
    pub(crate) token: Option<String>,
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// Address of this node [default: the one it reaches the server from]
    #[arg(long, value_name = "ADDR")]
    pub(crate) node_ip: Option<IpAddr>,
    /// Settings in YAML; the README lists them
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Return when the node is Ready and leave it running in the background
    #[arg(long)]
    pub(crate) detach: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Bring images in from OCI layouts or docker archives (a folder, .tar or .tar.gz)
    Import {
        /// What to import
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Fetch an image from its registry
    Pull {
        /// Such as nginx:1.27
        reference: String,
    },
    /// List the images of this node
    #[command(alias = "list")]
    Ls {
        /// Form of the output
        #[arg(long, short, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Remove images
    #[command(alias = "remove")]
    Rm {
        /// References or image ids
        #[arg(required = true)]
        references: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it; nothing else ever shows its secret
    Create {
        /// What the machine becomes: a node, or another server with its node
        #[arg(long, value_enum, default_value_t = TokenRole::Agent)]
        role: TokenRole,
        /// How long it is good for, such as 30m, 24h or 7d
        #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = duration::parse)]
        ttl: Duration,
        /// A note for `pintle token list`
        #[arg(long, value_name = "TEXT", default_value = "")]
        description: String,
    },
    /// List the tokens, without their secrets
    #[command(alias = "ls")]
    List {
        /// Form of the output
        #[arg(long, short, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Revoke tokens; machines that joined with them stay
    #[command(alias = "rm")]
    Revoke {
        /// Ids of tokens, or whole tokens
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

/// What a join token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TokenRole {
    Agent,
    Server,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MemberCommand {
    /// List the servers, and which of them leads
    #[command(alias = "ls")]
    List {
        /// Form of the output
        #[arg(long, short, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Remove a server for ever
    ///
    /// For one that is gone for good, or before it is taken away. What it still sends is refused;
    /// to come back it has to `pintle reset` and join anew. More than half of the servers must be
    /// there. Its Node stays until `kubectl delete node`.
    #[command(alias = "rm")]
    Remove {
        /// As `pintle member list` shows it
        #[arg(value_name = "ID")]
        id: u64,
    },
}

/// `pintle kubeconfig`.
#[derive(Debug, Args)]
pub(crate) struct Kubeconfig {
    /// Name of the user
    #[arg(long, value_name = "NAME")]
    pub(crate) user: String,
    /// A group the user is a member of; may be repeated
    #[arg(long = "group", value_name = "NAME")]
    pub(crate) groups: Vec<String>,
    /// How long the certificate is good for, such as 12h or 30d
    #[arg(long, value_name = "DURATION", default_value = "30d", value_parser = duration::parse)]
    pub(crate) ttl: Duration,
    /// Write it to this file, readable by its owner only, instead of standard output
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
