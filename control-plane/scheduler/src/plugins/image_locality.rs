//! Score: rather a node that has the pod's images already, the more the larger they are.

use super::MAX_SCORE;
use crate::cluster::{Cluster, NodeInfo, PodInfo};

const MEGABYTE: i64 = 1024 * 1024;
/// Below this the images do not matter.
const SMALL: i64 = 23 * MEGABYTE;
/// From this on, per container, they matter most.
const LARGE: i64 = 1000 * MEGABYTE;

/// An image name with a tag, as nodes report it.
fn tagged(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains(':') || name.contains('@') {
        name.to_owned()
    } else {
        format!("{name}:latest")
    }
}

pub(crate) fn score(cluster: &Cluster, pod: &PodInfo, node: &NodeInfo) -> i64 {
    let Some(spec) = &pod.pod.spec else {
        return 0;
    };
    let nodes = i64::try_from(cluster.nodes().count()).unwrap_or(i64::MAX);
    let containers = spec.containers.iter();
    let images = containers
        .chain(spec.init_containers.iter().flatten())
        .filter_map(|container| container.image.as_deref());
    let mut sum = 0_i64;
    let mut count = 0_i64;
    for image in images {
        count += 1;
        let image = tagged(image);
        // Nodes report full names; a short one means the default registry.
        let names = [
            image.clone(),
            format!("docker.io/{image}"),
            format!("docker.io/library/{image}"),
        ];
        let size = |node: &NodeInfo| names.iter().find_map(|name| node.image(name));
        if let Some(bytes) = size(node) {
            let having = cluster
                .nodes()
                .filter(|(_, other)| size(other).is_some())
                .count();
            // An image on few nodes counts less, or all its pods would go there.
            let having = i64::try_from(having).unwrap_or(nodes);
            sum = sum.saturating_add(bytes / nodes.max(1) * having);
        }
    }
    let most = LARGE * count.max(1);
    MAX_SCORE * (sum.clamp(SMALL, most) - SMALL) / (most - SMALL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_a_tag() {
        assert_eq!(tagged("nginx"), "nginx:latest");
        assert_eq!(tagged("nginx:1.27"), "nginx:1.27");
        assert_eq!(
            tagged("localhost:5000/nginx"),
            "localhost:5000/nginx:latest"
        );
        assert_eq!(tagged("nginx@sha256:abc"), "nginx@sha256:abc");
    }
}
