//! What bad input gets: Kubernetes' code, reason and field path, and nothing stored.

use crate::harness::node::{Node, text};

/// Applies a manifest that must be refused and gives the words.
fn refused(node: &Node, manifest: &str) -> String {
    let out = node.kubectl_stdin("create -f -", manifest);
    assert!(
        !out.status.success(),
        "accepted: {manifest}\n{}",
        text(&out.stdout)
    );
    text(&out.stderr)
}

fn deployment(replacement: (&str, &str)) -> String {
    let good =
        std::fs::read_to_string(crate::harness::node::workspace().join("tests/manifests/web.yaml"))
            .expect("web.yaml");
    let good = good.split("---").next().expect("the deployment").to_owned();
    let bad = good.replacen(replacement.0, replacement.1, 1);
    assert_ne!(good, bad, "the replacement matches");
    bad
}

#[test]
fn bad_input_gets_kubernetes_answers_and_changes_nothing() {
    let Some(node) = Node::start() else { return };
    // From 1.25 on kubectl leaves it to the server; older ones look themselves.
    let unknown_field = if node.kubectl_minor() < 25 {
        "unknown field \"imagee\" in io.k8s.api.core.v1.Container"
    } else {
        "unknown field \"spec.template.spec.containers[0].imagee\""
    };
    for (change, want) in [
        (("image:", "imagee:"), unknown_field),
        (("replicas: 3", "replicas: three"), "replicas"),
        (
            ("replicas: 3", "replicas: -1"),
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            ("name: web-api", "name: Web_API"),
            "metadata.name: Invalid value: \"Web_API\"",
        ),
        (
            (
                "        app: web-api\n    spec",
                "        app: other\n    spec",
            ),
            "`selector` does not match template `labels`",
        ),
        (
            ("      - name: web-api\n", "      - name: UPPER\n"),
            "spec.template.spec.containers[0].name: Invalid value: \"UPPER\"",
        ),
        (
            (
                "        image: nginx:1.27",
                "        imagePullPolicy: Always",
            ),
            "spec.template.spec.containers[0].image: Required value",
        ),
        (
            (
                "spec:\n  replicas",
                "spec:\n  strategy: {type: Sometimes}\n  replicas",
            ),
            "spec.strategy: Unsupported value",
        ),
        (
            ("  name: web-api", "  name: web-api\n  namespace: nowhere"),
            "namespaces \"nowhere\" not found",
        ),
    ] {
        let said = refused(&node, &deployment(change));
        assert!(
            said.contains(want),
            "{change:?} says {said:?}, not {want:?}"
        );
    }
    assert_eq!(
        node.field("deploy,rs,pods", "{.items[*].metadata.name}"),
        "",
        "nothing was stored"
    );

    let said = refused(&node, "apiVersion: v1\nkind: Service\nmetadata: [\n");
    assert!(said.contains("yaml") || said.contains("parsing"), "{said}");
    let big = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: big}}\ndata: {{a: {}}}\n",
        "x".repeat(4 << 20)
    );
    let said = refused(&node, &big);
    assert!(
        said.contains("too large") || said.contains("limit is 3145728"),
        "{said}"
    );

    node.kubectl("create configmap once --from-literal=a=b");
    let said = node.kubectl_fails("create configmap once --from-literal=a=c");
    assert!(
        said.contains("configmaps \"once\" already exists"),
        "{said}"
    );
    assert_eq!(node.field("configmap/once", "{.data.a}"), "b");

    let stale = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: once, namespace: default, resourceVersion: \"1\"}\ndata: {a: z}\n";
    let out = node.kubectl_stdin("replace -f -", stale);
    let said = text(&out.stderr);
    assert!(
        said.contains("Conflict") && said.contains("the object has been modified"),
        "{said}"
    );

    node.kubectl("create deployment fixed --image=nginx:1.27 --replicas=0");
    let said = node.kubectl_fails(
        "patch deployment fixed --type=merge -p {\"spec\":{\"selector\":{\"matchLabels\":{\"app\":\"x\"}},\"template\":{\"metadata\":{\"labels\":{\"app\":\"x\"}}}}}",
    );
    assert!(
        said.contains("spec.selector") && said.contains("field is immutable"),
        "{said}"
    );

    let said = node.kubectl_fails("get pods nothing");
    assert!(said.contains("pods \"nothing\" not found"), "{said}");
    let said = node.kubectl_fails("get gadgets");
    assert!(
        said.contains("doesn't have a resource type \"gadgets\""),
        "{said}"
    );
}

#[test]
fn anonymous_requests_are_refused() {
    let Some(node) = Node::start() else { return };
    let server = "https://127.0.0.1:6443";
    let mut command = node.kubectl_command("get pods");
    command.args([
        "--kubeconfig",
        "/dev/null",
        "--server",
        server,
        "--insecure-skip-tls-verify",
    ]);
    command.args(["--token", "none"]);
    let out = command.output().expect("kubectl runs");
    assert!(!out.status.success());
    let said = text(&out.stderr);
    assert!(
        said.contains("You must be logged in to the server"),
        "{said}"
    );
}

#[test]
fn a_missing_image_backs_off_and_harms_no_other_pod() {
    let Some(node) =
        Node::start_with("registries:\n  docker.io:\n    mirrors: [\"http://127.0.0.1:1\"]")
    else {
        return;
    };
    node.import_images();
    node.kubectl("run good --image=nginx:1.27");
    node.kubectl("run bad --image=nginx:no-such-tag");
    node.wait("an image back-off", |node| {
        let reason = node.field(
            "pod/bad",
            "{.status.containerStatuses[0].state.waiting.reason}",
        );
        reason == "ErrImagePull" || reason == "ImagePullBackOff"
    });
    node.wait("the good pod", |node| {
        node.field("pod/good", "{.status.phase}") == "Running"
    });
    node.wait("the Event that says why", |node| {
        node.kubectl("describe pod bad")
            .contains("Failed to pull image \"nginx:no-such-tag\"")
    });
}

#[test]
fn a_pod_that_fits_nowhere_says_why_and_wakes_when_it_fits() {
    let Some(node) = Node::start() else { return };
    node.import_images();
    node.kubectl(
        "run picky --image=nginx:1.27 --overrides={\"spec\":{\"nodeSelector\":{\"disk\":\"ssd\"}}}",
    );
    node.wait("FailedScheduling", |node| {
        node.kubectl("get events").contains(
            "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector",
        )
    });
    node.kubectl("label node node1 disk=ssd");
    node.wait("the pod to run", |node| {
        node.field("pod/picky", "{.status.phase}") == "Running"
    });
}
