//! Which single values of Kubernetes' types are pointers in Go: they are told apart from their zero
//! value, and are encoded only where they were set. Any other single value is always encoded, and its
//! zero means that it was not set.
//!
//! Written by hand: neither the OpenAPI documents nor the protobuf messages tell.

/// Message → its pointers to numbers, booleans, texts and integers-or-texts. Pointers to structs,
/// times and quantities need no mark: those have no zero that could be mistaken.
pub(super) const POINTERS: &[(&str, &[&str])] = &[
    // --- workloads
    (
        "apps.v1.DeploymentSpec",
        &[
            "replicas",
            "revisionHistoryLimit",
            "progressDeadlineSeconds",
        ],
    ),
    (
        "apps.v1.DeploymentStatus",
        &["collisionCount", "terminatingReplicas"],
    ),
    ("apps.v1.ReplicaSetSpec", &["replicas"]),
    ("apps.v1.ReplicaSetStatus", &["terminatingReplicas"]),
    (
        "apps.v1.RollingUpdateDeployment",
        &["maxUnavailable", "maxSurge"],
    ),
    // --- pods
    (
        "core.v1.PodSpec",
        &[
            "terminationGracePeriodSeconds",
            "activeDeadlineSeconds",
            "automountServiceAccountToken",
            "shareProcessNamespace",
            "priority",
            "runtimeClassName",
            "enableServiceLinks",
            "preemptionPolicy",
            "setHostnameAsFQDN",
            "hostUsers",
            "hostnameOverride",
        ],
    ),
    (
        "core.v1.PodSecurityContext",
        &[
            "runAsUser",
            "runAsGroup",
            "runAsNonRoot",
            "fsGroup",
            "fsGroupChangePolicy",
            "supplementalGroupsPolicy",
            "seLinuxChangePolicy",
        ],
    ),
    (
        "core.v1.SecurityContext",
        &[
            "privileged",
            "runAsUser",
            "runAsGroup",
            "runAsNonRoot",
            "readOnlyRootFilesystem",
            "allowPrivilegeEscalation",
            "procMount",
        ],
    ),
    (
        "core.v1.WindowsSecurityContextOptions",
        &[
            "gmsaCredentialSpecName",
            "gmsaCredentialSpec",
            "runAsUserName",
            "hostProcess",
        ],
    ),
    ("core.v1.SeccompProfile", &["localhostProfile"]),
    ("core.v1.AppArmorProfile", &["localhostProfile"]),
    ("core.v1.Container", &["restartPolicy"]),
    ("core.v1.EphemeralContainerCommon", &["restartPolicy"]),
    ("core.v1.Lifecycle", &["stopSignal"]),
    ("core.v1.Probe", &["terminationGracePeriodSeconds"]),
    ("core.v1.GRPCAction", &["service"]),
    ("core.v1.PodDNSConfigOption", &["value"]),
    (
        "core.v1.PodResourceClaim",
        &["resourceClaimName", "resourceClaimTemplateName"],
    ),
    ("core.v1.Toleration", &["tolerationSeconds"]),
    (
        "core.v1.TopologySpreadConstraint",
        &["minDomains", "nodeAffinityPolicy", "nodeTaintsPolicy"],
    ),
    (
        "core.v1.VolumeMount",
        &["mountPropagation", "recursiveReadOnly"],
    ),
    ("core.v1.ConfigMapEnvSource", &["optional"]),
    ("core.v1.ConfigMapKeySelector", &["optional"]),
    ("core.v1.SecretEnvSource", &["optional"]),
    ("core.v1.SecretKeySelector", &["optional"]),
    ("core.v1.FileKeySelector", &["optional"]),
    // --- pods: what nodes report
    ("core.v1.ContainerStatus", &["started", "stopSignal"]),
    ("core.v1.VolumeMountStatus", &["recursiveReadOnly"]),
    ("core.v1.PodResourceClaimStatus", &["resourceClaimName"]),
    // --- volumes
    (
        "core.v1.ConfigMapVolumeSource",
        &["defaultMode", "optional"],
    ),
    ("core.v1.ConfigMapProjection", &["optional"]),
    ("core.v1.SecretVolumeSource", &["defaultMode", "optional"]),
    ("core.v1.SecretProjection", &["optional"]),
    ("core.v1.ProjectedVolumeSource", &["defaultMode"]),
    ("core.v1.DownwardAPIVolumeSource", &["defaultMode"]),
    ("core.v1.DownwardAPIVolumeFile", &["mode"]),
    ("core.v1.KeyToPath", &["mode"]),
    (
        "core.v1.ServiceAccountTokenProjection",
        &["expirationSeconds"],
    ),
    (
        "core.v1.ClusterTrustBundleProjection",
        &["name", "signerName", "optional"],
    ),
    (
        "core.v1.PodCertificateProjection",
        &["maxExpirationSeconds"],
    ),
    ("core.v1.HostPathVolumeSource", &["type"]),
    ("core.v1.CSIVolumeSource", &["readOnly", "fsType"]),
    (
        "core.v1.AzureDiskVolumeSource",
        &["cachingMode", "fsType", "readOnly", "kind"],
    ),
    ("core.v1.FCVolumeSource", &["lun"]),
    ("core.v1.ISCSIVolumeSource", &["initiatorName"]),
    (
        "core.v1.PersistentVolumeClaimSpec",
        &[
            "storageClassName",
            "volumeMode",
            "volumeAttributesClassName",
        ],
    ),
    ("core.v1.TypedLocalObjectReference", &["apiGroup"]),
    ("core.v1.TypedObjectReference", &["apiGroup", "namespace"]),
    // --- configuration and identities
    ("core.v1.ConfigMap", &["immutable"]),
    ("core.v1.Secret", &["immutable"]),
    ("core.v1.ServiceAccount", &["automountServiceAccountToken"]),
    ("authentication.v1.TokenRequestSpec", &["expirationSeconds"]),
    // --- Services and endpoints
    (
        "core.v1.ServiceSpec",
        &[
            "ipFamilyPolicy",
            "allocateLoadBalancerNodePorts",
            "loadBalancerClass",
            "internalTrafficPolicy",
            "trafficDistribution",
        ],
    ),
    ("core.v1.ServicePort", &["appProtocol"]),
    ("core.v1.ClientIPConfig", &["timeoutSeconds"]),
    ("core.v1.LoadBalancerIngress", &["ipMode"]),
    ("core.v1.PortStatus", &["error"]),
    ("core.v1.EndpointAddress", &["nodeName"]),
    ("core.v1.EndpointPort", &["appProtocol"]),
    ("discovery.v1.Endpoint", &["hostname", "nodeName", "zone"]),
    (
        "discovery.v1.EndpointConditions",
        &["ready", "serving", "terminating"],
    ),
    (
        "discovery.v1.EndpointPort",
        &["name", "protocol", "port", "appProtocol"],
    ),
    // --- policy
    (
        "policy.v1.PodDisruptionBudgetSpec",
        &[
            "minAvailable",
            "maxUnavailable",
            "unhealthyPodEvictionPolicy",
        ],
    ),
    // --- nodes and leases
    ("core.v1.NodeFeatures", &["supplementalGroupsPolicy"]),
    (
        "core.v1.NodeRuntimeHandlerFeatures",
        &["recursiveReadOnlyMounts", "userNamespaces"],
    ),
    ("core.v1.NodeSwapStatus", &["capacity"]),
    (
        "coordination.v1.LeaseSpec",
        &[
            "holderIdentity",
            "leaseDurationSeconds",
            "leaseTransitions",
            "strategy",
            "preferredHolder",
        ],
    ),
    // --- every object
    ("meta.v1.ObjectMeta", &["deletionGracePeriodSeconds"]),
    (
        "meta.v1.OwnerReference",
        &["controller", "blockOwnerDeletion"],
    ),
    ("meta.v1.Preconditions", &["uid", "resourceVersion"]),
    (
        "meta.v1.DeleteOptions",
        &[
            "gracePeriodSeconds",
            "orphanDependents",
            "propagationPolicy",
            "ignoreStoreReadErrorWithClusterBreakingPotential",
        ],
    ),
];
