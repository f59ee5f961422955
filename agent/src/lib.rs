//! The node side: pods, images, network, services and DNS.
