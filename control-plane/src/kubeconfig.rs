//! The administrator's kubeconfig.
//!
//! Changes the file that `--kubeconfig` names, at every start (the port or the certificate may
//! be new); kubectl and the tests read it.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::files;
use crate::pki::{ADMIN_USER, Identity};

/// The kubeconfig's text: YAML, with certificates inside so that the file works on its own.
pub fn render(server: SocketAddr, ca_pem: &str, admin: &Identity) -> String {
    let context = format!("{ADMIN_USER}@pintle");
    let (server, ca) = (format!("https://{server}"), STANDARD.encode(ca_pem));
    let certificate = STANDARD.encode(&admin.certificate_pem);
    let key = STANDARD.encode(&admin.key_pem);
    // Every value here is free of YAML's special characters.
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: pintle\n  cluster:\n    server: {server}\n    \
         certificate-authority-data: {ca}\n\
         users:\n\
         - name: {ADMIN_USER}\n  user:\n    client-certificate-data: {certificate}\n    \
         client-key-data: {key}\n\
         contexts:\n\
         - name: {context}\n  context:\n    cluster: pintle\n    user: {ADMIN_USER}\n\
         current-context: {context}\n"
    )
}

/// Writes the kubeconfig, creating its directory; an unchanged file is left alone.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    if std::fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent)?;
    }
    files::write_secret(path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_kubectl_needs() {
        let admin = Identity {
            certificate_pem: "cert".to_owned(),
            key_pem: "key".to_owned(),
        };
        let text = render("127.0.0.1:6443".parse().unwrap(), "ca", &admin);
        for line in [
            "    server: https://127.0.0.1:6443",
            "    certificate-authority-data: Y2E=",
            "    client-certificate-data: Y2VydA==",
            "    client-key-data: a2V5",
            "current-context: kubernetes-admin@pintle",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/admin.kubeconfig");
        write(&path, &text).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}
