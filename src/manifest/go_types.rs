//! The types that a pod is made of, as Go knows them: each field's name, kind, and whether Go writes its zero value.
//!
//! Made by reflection over `k8s.io/api/core/v1.Pod` v0.36.3 and
//! `k8s.io/apimachinery` v0.36.3: every struct reachable from `Pod`, embedded
//! structs flattened, fields sorted by the length of their JSON name, then by the name. `pointer` is a Go
//! pointer, `omitted` a value with `omitempty` (`omitzero` for structs),
//! `always` a value that Go writes even when it is zero.

/// What a Go value is.
#[derive(Debug)]
pub(super) enum Type {
    String,
    Bool,
    Int32,
    Int64,
    Quantity,
    Time,
    IntOrString,
    /// `metav1.FieldsV1`: any JSON.
    Any,
    Struct(&'static Struct),
    List(&'static Type),
    Map(&'static Type),
}

/// A Go struct: its fields, the short names first, so that a look-up compares few texts.
#[derive(Debug)]
pub(super) struct Struct(pub(super) &'static [Field]);

/// A field of a Go struct.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Type,
    pub(super) presence: Presence,
}

/// What becomes of a field's zero value when Go writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// A pointer tells absent (nil) from zero: what was given is written.
    Pointer,
    /// Not written.
    Omitted,
    /// Written, given or not.
    Always,
}

impl Struct {
    /// The field of a name, which is case-sensitive.
    pub(super) fn field(&self, name: &str) -> Option<&'static Field> {
        // A scan by length: quicker than a binary search, whose steps nothing can predict.
        self.0.iter().find(|field| field.name.len() == name.len() && field.name == name)
    }
}

use Type::{Any, Bool, Int32, Int64, IntOrString, List, Map, Quantity, String, Struct as Of, Time};

const fn pointer(name: &'static str, kind: Type) -> Field {
    Field { name, kind, presence: Presence::Pointer }
}

const fn omitted(name: &'static str, kind: Type) -> Field {
    Field { name, kind, presence: Presence::Omitted }
}

const fn always(name: &'static str, kind: Type) -> Field {
    Field { name, kind, presence: Presence::Always }
}

static AFFINITY: Struct = Struct(&[
    pointer("podAffinity", Of(&POD_AFFINITY)),
    pointer("nodeAffinity", Of(&NODE_AFFINITY)),
    pointer("podAntiAffinity", Of(&POD_ANTI_AFFINITY)),
]);

static APP_ARMOR_PROFILE: Struct = Struct(&[always("type", String), pointer("localhostProfile", String)]);

static AWS_ELASTIC_BLOCK_STORE_VOLUME_SOURCE: Struct = Struct(&[
    omitted("fsType", String),
    omitted("readOnly", Bool),
    always("volumeID", String),
    omitted("partition", Int32),
]);

static AZURE_DISK_VOLUME_SOURCE: Struct = Struct(&[
    pointer("kind", String),
    pointer("fsType", String),
    always("diskURI", String),
    always("diskName", String),
    pointer("readOnly", Bool),
    pointer("cachingMode", String),
]);

static AZURE_FILE_VOLUME_SOURCE: Struct =
    Struct(&[omitted("readOnly", Bool), always("shareName", String), always("secretName", String)]);

static CAPABILITIES: Struct = Struct(&[omitted("add", List(&String)), omitted("drop", List(&String))]);

static CEPH_FS_VOLUME_SOURCE: Struct = Struct(&[
    omitted("path", String),
    omitted("user", String),
    always("monitors", List(&String)),
    omitted("readOnly", Bool),
    pointer("secretRef", Of(&LOCAL_OBJECT_REFERENCE)),
    omitted("secretFile", String),
]);

static CINDER_VOLUME_SOURCE: Struct = Struct(&[
    omitted("fsType", String),
    omitted("readOnly", Bool),
    always("volumeID", String),
    pointer("secretRef", Of(&LOCAL_OBJECT_REFERENCE)),
]);

static CLUSTER_TRUST_BUNDLE_PROJECTION: Struct = Struct(&[
    pointer("name", String),
    always("path", String),
    pointer("optional", Bool),
    pointer("signerName", String),
    pointer("labelSelector", Of(&LABEL_SELECTOR)),
]);

static CONFIG_MAP_ENV_SOURCE: Struct = Struct(&[omitted("name", String), pointer("optional", Bool)]);

static CONFIG_MAP_KEY_SELECTOR: Struct =
    Struct(&[always("key", String), omitted("name", String), pointer("optional", Bool)]);

static CONFIG_MAP_PROJECTION: Struct =
    Struct(&[omitted("name", String), omitted("items", List(&Of(&KEY_TO_PATH))), pointer("optional", Bool)]);

static CONFIG_MAP_VOLUME_SOURCE: Struct = Struct(&[
    omitted("name", String),
    omitted("items", List(&Of(&KEY_TO_PATH))),
    pointer("optional", Bool),
    pointer("defaultMode", Int32),
]);

static CONTAINER: Struct = Struct(&[
    omitted("env", List(&Of(&ENV_VAR))),
    omitted("tty", Bool),
    omitted("args", List(&String)),
    always("name", String),
    omitted("image", String),
    omitted("ports", List(&Of(&CONTAINER_PORT))),
    omitted("stdin", Bool),
    omitted("command", List(&String)),
    omitted("envFrom", List(&Of(&ENV_FROM_SOURCE))),
    pointer("lifecycle", Of(&LIFECYCLE)),
    always("resources", Of(&RESOURCE_REQUIREMENTS)),
    omitted("stdinOnce", Bool),
    omitted("workingDir", String),
    omitted("resizePolicy", List(&Of(&CONTAINER_RESIZE_POLICY))),
    pointer("startupProbe", Of(&PROBE)),
    omitted("volumeMounts", List(&Of(&VOLUME_MOUNT))),
    pointer("livenessProbe", Of(&PROBE)),
    pointer("restartPolicy", String),
    omitted("volumeDevices", List(&Of(&VOLUME_DEVICE))),
    pointer("readinessProbe", Of(&PROBE)),
    omitted("imagePullPolicy", String),
    pointer("securityContext", Of(&SECURITY_CONTEXT)),
    omitted("restartPolicyRules", List(&Of(&CONTAINER_RESTART_RULE))),
    omitted("terminationMessagePath", String),
    omitted("terminationMessagePolicy", String),
]);

static CONTAINER_EXTENDED_RESOURCE_REQUEST: Struct =
    Struct(&[always("requestName", String), always("resourceName", String), always("containerName", String)]);

static CONTAINER_PORT: Struct = Struct(&[
    omitted("name", String),
    omitted("hostIP", String),
    omitted("hostPort", Int32),
    omitted("protocol", String),
    always("containerPort", Int32),
]);

static CONTAINER_RESIZE_POLICY: Struct =
    Struct(&[always("resourceName", String), always("restartPolicy", String)]);

static CONTAINER_RESTART_RULE: Struct =
    Struct(&[omitted("action", String), pointer("exitCodes", Of(&CONTAINER_RESTART_RULE_ON_EXIT_CODES))]);

static CONTAINER_RESTART_RULE_ON_EXIT_CODES: Struct =
    Struct(&[omitted("values", List(&Int32)), omitted("operator", String)]);

static CONTAINER_STATE: Struct = Struct(&[
    pointer("running", Of(&CONTAINER_STATE_RUNNING)),
    pointer("waiting", Of(&CONTAINER_STATE_WAITING)),
    pointer("terminated", Of(&CONTAINER_STATE_TERMINATED)),
]);

static CONTAINER_STATE_RUNNING: Struct = Struct(&[always("startedAt", Time)]);

static CONTAINER_STATE_TERMINATED: Struct = Struct(&[
    omitted("reason", String),
    omitted("signal", Int32),
    omitted("message", String),
    always("exitCode", Int32),
    always("startedAt", Time),
    always("finishedAt", Time),
    omitted("containerID", String),
]);

static CONTAINER_STATE_WAITING: Struct = Struct(&[omitted("reason", String), omitted("message", String)]);

static CONTAINER_STATUS: Struct = Struct(&[
    always("name", String),
    pointer("user", Of(&CONTAINER_USER)),
    always("image", String),
    always("ready", Bool),
    always("state", Of(&CONTAINER_STATE)),
    always("imageID", String),
    pointer("started", Bool),
    always("lastState", Of(&CONTAINER_STATE)),
    pointer("resources", Of(&RESOURCE_REQUIREMENTS)),
    pointer("stopSignal", String),
    omitted("containerID", String),
    always("restartCount", Int32),
    omitted("volumeMounts", List(&Of(&VOLUME_MOUNT_STATUS))),
    omitted("allocatedResources", Map(&Quantity)),
    omitted("allocatedResourcesStatus", List(&Of(&RESOURCE_STATUS))),
]);

static CONTAINER_USER: Struct = Struct(&[pointer("linux", Of(&LINUX_CONTAINER_USER))]);

static CSI_VOLUME_SOURCE: Struct = Struct(&[
    always("driver", String),
    pointer("fsType", String),
    pointer("readOnly", Bool),
    omitted("volumeAttributes", Map(&String)),
    pointer("nodePublishSecretRef", Of(&LOCAL_OBJECT_REFERENCE)),
]);

static DOWNWARD_API_PROJECTION: Struct = Struct(&[omitted("items", List(&Of(&DOWNWARD_API_VOLUME_FILE)))]);

static DOWNWARD_API_VOLUME_FILE: Struct = Struct(&[
    pointer("mode", Int32),
    always("path", String),
    pointer("fieldRef", Of(&OBJECT_FIELD_SELECTOR)),
    pointer("resourceFieldRef", Of(&RESOURCE_FIELD_SELECTOR)),
]);

static DOWNWARD_API_VOLUME_SOURCE: Struct =
    Struct(&[omitted("items", List(&Of(&DOWNWARD_API_VOLUME_FILE))), pointer("defaultMode", Int32)]);

static EMPTY_DIR_VOLUME_SOURCE: Struct = Struct(&[omitted("medium", String), pointer("sizeLimit", Quantity)]);

static ENV_FROM_SOURCE: Struct = Struct(&[
    omitted("prefix", String),
    pointer("secretRef", Of(&SECRET_ENV_SOURCE)),
    pointer("configMapRef", Of(&CONFIG_MAP_ENV_SOURCE)),
]);

static ENV_VAR: Struct =
    Struct(&[always("name", String), omitted("value", String), pointer("valueFrom", Of(&ENV_VAR_SOURCE))]);

static ENV_VAR_SOURCE: Struct = Struct(&[
    pointer("fieldRef", Of(&OBJECT_FIELD_SELECTOR)),
    pointer("fileKeyRef", Of(&FILE_KEY_SELECTOR)),
    pointer("secretKeyRef", Of(&SECRET_KEY_SELECTOR)),
    pointer("configMapKeyRef", Of(&CONFIG_MAP_KEY_SELECTOR)),
    pointer("resourceFieldRef", Of(&RESOURCE_FIELD_SELECTOR)),
]);

static EPHEMERAL_CONTAINER: Struct = Struct(&[
    omitted("env", List(&Of(&ENV_VAR))),
    omitted("tty", Bool),
    omitted("args", List(&String)),
    always("name", String),
    omitted("image", String),
    omitted("ports", List(&Of(&CONTAINER_PORT))),
    omitted("stdin", Bool),
    omitted("command", List(&String)),
    omitted("envFrom", List(&Of(&ENV_FROM_SOURCE))),
    pointer("lifecycle", Of(&LIFECYCLE)),
    always("resources", Of(&RESOURCE_REQUIREMENTS)),
    omitted("stdinOnce", Bool),
    omitted("workingDir", String),
    omitted("resizePolicy", List(&Of(&CONTAINER_RESIZE_POLICY))),
    pointer("startupProbe", Of(&PROBE)),
    omitted("volumeMounts", List(&Of(&VOLUME_MOUNT))),
    pointer("livenessProbe", Of(&PROBE)),
    pointer("restartPolicy", String),
    omitted("volumeDevices", List(&Of(&VOLUME_DEVICE))),
    pointer("readinessProbe", Of(&PROBE)),
    omitted("imagePullPolicy", String),
    pointer("securityContext", Of(&SECURITY_CONTEXT)),
    omitted("restartPolicyRules", List(&Of(&CONTAINER_RESTART_RULE))),
    omitted("targetContainerName", String),
    omitted("terminationMessagePath", String),
    omitted("terminationMessagePolicy", String),
]);

static EPHEMERAL_VOLUME_SOURCE: Struct =
    Struct(&[pointer("volumeClaimTemplate", Of(&PERSISTENT_VOLUME_CLAIM_TEMPLATE))]);

static EXEC_ACTION: Struct = Struct(&[omitted("command", List(&String))]);

static FC_VOLUME_SOURCE: Struct = Struct(&[
    pointer("lun", Int32),
    omitted("wwids", List(&String)),
    omitted("fsType", String),
    omitted("readOnly", Bool),
    omitted("targetWWNs", List(&String)),
]);

static FILE_KEY_SELECTOR: Struct = Struct(&[
    always("key", String),
    always("path", String),
    pointer("optional", Bool),
    always("volumeName", String),
]);

static FLEX_VOLUME_SOURCE: Struct = Struct(&[
    always("driver", String),
    omitted("fsType", String),
    omitted("options", Map(&String)),
    omitted("readOnly", Bool),
    pointer("secretRef", Of(&LOCAL_OBJECT_REFERENCE)),
]);

static FLOCKER_VOLUME_SOURCE: Struct =
    Struct(&[omitted("datasetName", String), omitted("datasetUUID", String)]);

static GCE_PERSISTENT_DISK_VOLUME_SOURCE: Struct = Struct(&[
    omitted("fsType", String),
    always("pdName", String),
    omitted("readOnly", Bool),
    omitted("partition", Int32),
]);

static GIT_REPO_VOLUME_SOURCE: Struct =
    Struct(&[omitted("revision", String), omitted("directory", String), always("repository", String)]);

static GLUSTERFS_VOLUME_SOURCE: Struct =
    Struct(&[always("path", String), omitted("readOnly", Bool), always("endpoints", String)]);

static GRPC_ACTION: Struct = Struct(&[always("port", Int32), pointer("service", String)]);

static HOST_ALIAS: Struct = Struct(&[always("ip", String), omitted("hostnames", List(&String))]);

static HOST_IP: Struct = Struct(&[always("ip", String)]);

static HOST_PATH_VOLUME_SOURCE: Struct = Struct(&[always("path", String), pointer("type", String)]);

static HTTP_GET_ACTION: Struct = Struct(&[
    omitted("host", String),
    omitted("path", String),
    always("port", IntOrString),
    omitted("scheme", String),
    omitted("httpHeaders", List(&Of(&HTTP_HEADER))),
]);

static HTTP_HEADER: Struct = Struct(&[always("name", String), always("value", String)]);

static IMAGE_VOLUME_SOURCE: Struct = Struct(&[omitted("reference", String), omitted("pullPolicy", String)]);

static IMAGE_VOLUME_STATUS: Struct = Struct(&[omitted("imageRef", String)]);

static ISCSI_VOLUME_SOURCE: Struct = Struct(&[
    always("iqn", String),
    always("lun", Int32),
    omitted("fsType", String),
    omitted("portals", List(&String)),
    omitted("readOnly", Bool),
    pointer("secretRef", Of(&LOCAL_OBJECT_REFERENCE)),
    always("targetPortal", String),
    pointer("initiatorName", String),
    omitted("iscsiInterface", String),
    omitted("chapAuthSession", Bool),
    omitted("chapAuthDiscovery", Bool),
]);

static KEY_TO_PATH: Struct = Struct(&[always("key", String), pointer("mode", Int32), always("path", String)]);

static LABEL_SELECTOR: Struct = Struct(&[
    omitted("matchLabels", Map(&String)),
    omitted("matchExpressions", List(&Of(&LABEL_SELECTOR_REQUIREMENT))),
]);

static LABEL_SELECTOR_REQUIREMENT: Struct =
    Struct(&[always("key", String), omitted("values", List(&String)), always("operator", String)]);

static LIFECYCLE: Struct = Struct(&[
    pointer("preStop", Of(&LIFECYCLE_HANDLER)),
    pointer("postStart", Of(&LIFECYCLE_HANDLER)),
    pointer("stopSignal", String),
]);

static LIFECYCLE_HANDLER: Struct = Struct(&[
    pointer("exec", Of(&EXEC_ACTION)),
    pointer("sleep", Of(&SLEEP_ACTION)),
    pointer("httpGet", Of(&HTTP_GET_ACTION)),
    pointer("tcpSocket", Of(&TCP_SOCKET_ACTION)),
]);

static LINUX_CONTAINER_USER: Struct =
    Struct(&[always("gid", Int64), always("uid", Int64), omitted("supplementalGroups", List(&Int64))]);

static LOCAL_OBJECT_REFERENCE: Struct = Struct(&[omitted("name", String)]);

static MANAGED_FIELDS_ENTRY: Struct = Struct(&[
    pointer("time", Time),
    omitted("manager", String),
    pointer("fieldsV1", Any),
    omitted("operation", String),
    omitted("apiVersion", String),
    omitted("fieldsType", String),
    omitted("subresource", String),
]);

static NFS_VOLUME_SOURCE: Struct =
    Struct(&[always("path", String), always("server", String), omitted("readOnly", Bool)]);

static NODE_AFFINITY: Struct = Struct(&[
    pointer("requiredDuringSchedulingIgnoredDuringExecution", Of(&NODE_SELECTOR)),
    omitted("preferredDuringSchedulingIgnoredDuringExecution", List(&Of(&PREFERRED_SCHEDULING_TERM))),
]);

static NODE_ALLOCATABLE_RESOURCE_CLAIM_STATUS: Struct = Struct(&[
    always("resources", Map(&Quantity)),
    omitted("containers", List(&String)),
    always("resourceClaimName", String),
]);

static NODE_SELECTOR: Struct = Struct(&[always("nodeSelectorTerms", List(&Of(&NODE_SELECTOR_TERM)))]);

static NODE_SELECTOR_REQUIREMENT: Struct =
    Struct(&[always("key", String), omitted("values", List(&String)), always("operator", String)]);

static NODE_SELECTOR_TERM: Struct = Struct(&[
    omitted("matchFields", List(&Of(&NODE_SELECTOR_REQUIREMENT))),
    omitted("matchExpressions", List(&Of(&NODE_SELECTOR_REQUIREMENT))),
]);

static OBJECT_FIELD_SELECTOR: Struct = Struct(&[always("fieldPath", String), omitted("apiVersion", String)]);

static OBJECT_META: Struct = Struct(&[
    omitted("uid", String),
    omitted("name", String),
    omitted("labels", Map(&String)),
    omitted("selfLink", String),
    omitted("namespace", String),
    omitted("finalizers", List(&String)),
    omitted("generation", Int64),
    omitted("annotations", Map(&String)),
    omitted("generateName", String),
    omitted("managedFields", List(&Of(&MANAGED_FIELDS_ENTRY))),
    omitted("ownerReferences", List(&Of(&OWNER_REFERENCE))),
    omitted("resourceVersion", String),
    omitted("creationTimestamp", Time),
    pointer("deletionTimestamp", Time),
    pointer("deletionGracePeriodSeconds", Int64),
]);

static OWNER_REFERENCE: Struct = Struct(&[
    always("uid", String),
    always("kind", String),
    always("name", String),
    always("apiVersion", String),
    pointer("controller", Bool),
    pointer("blockOwnerDeletion", Bool),
]);

static PERSISTENT_VOLUME_CLAIM_SPEC: Struct = Struct(&[
    pointer("selector", Of(&LABEL_SELECTOR)),
    always("resources", Of(&VOLUME_RESOURCE_REQUIREMENTS)),
    pointer("dataSource", Of(&TYPED_LOCAL_OBJECT_REFERENCE)),
    pointer("volumeMode", String),
    omitted("volumeName", String),
    omitted("accessModes", List(&String)),
    pointer("dataSourceRef", Of(&TYPED_OBJECT_REFERENCE)),
    pointer("storageClassName", String),
    pointer("volumeAttributesClassName", String),
]);

static PERSISTENT_VOLUME_CLAIM_TEMPLATE: Struct =
    Struct(&[always("spec", Of(&PERSISTENT_VOLUME_CLAIM_SPEC)), always("metadata", Of(&OBJECT_META))]);

static PERSISTENT_VOLUME_CLAIM_VOLUME_SOURCE: Struct =
    Struct(&[omitted("readOnly", Bool), always("claimName", String)]);

static PHOTON_PERSISTENT_DISK_VOLUME_SOURCE: Struct =
    Struct(&[always("pdID", String), omitted("fsType", String)]);

pub(super) static POD: Struct = Struct(&[
    omitted("kind", String),
    always("spec", Of(&POD_SPEC)),
    always("status", Of(&POD_STATUS)),
    always("metadata", Of(&OBJECT_META)),
    omitted("apiVersion", String),
]);

static POD_AFFINITY: Struct = Struct(&[
    omitted("requiredDuringSchedulingIgnoredDuringExecution", List(&Of(&POD_AFFINITY_TERM))),
    omitted("preferredDuringSchedulingIgnoredDuringExecution", List(&Of(&WEIGHTED_POD_AFFINITY_TERM))),
]);

static POD_AFFINITY_TERM: Struct = Struct(&[
    omitted("namespaces", List(&String)),
    always("topologyKey", String),
    pointer("labelSelector", Of(&LABEL_SELECTOR)),
    omitted("matchLabelKeys", List(&String)),
    omitted("mismatchLabelKeys", List(&String)),
    pointer("namespaceSelector", Of(&LABEL_SELECTOR)),
]);

static POD_ANTI_AFFINITY: Struct = Struct(&[
    omitted("requiredDuringSchedulingIgnoredDuringExecution", List(&Of(&POD_AFFINITY_TERM))),
    omitted("preferredDuringSchedulingIgnoredDuringExecution", List(&Of(&WEIGHTED_POD_AFFINITY_TERM))),
]);

static POD_CERTIFICATE_PROJECTION: Struct = Struct(&[
    omitted("keyPath", String),
    omitted("keyType", String),
    omitted("signerName", String),
    omitted("userAnnotations", Map(&String)),
    omitted("certificateChainPath", String),
    omitted("credentialBundlePath", String),
    pointer("maxExpirationSeconds", Int32),
]);

static POD_CONDITION: Struct = Struct(&[
    always("type", String),
    omitted("reason", String),
    always("status", String),
    omitted("message", String),
    always("lastProbeTime", Time),
    always("lastTransitionTime", Time),
    omitted("observedGeneration", Int64),
]);

static POD_DNS_CONFIG: Struct = Struct(&[
    omitted("options", List(&Of(&POD_DNS_CONFIG_OPTION))),
    omitted("searches", List(&String)),
    omitted("nameservers", List(&String)),
]);

static POD_DNS_CONFIG_OPTION: Struct = Struct(&[omitted("name", String), pointer("value", String)]);

static POD_EXTENDED_RESOURCE_CLAIM_STATUS: Struct = Struct(&[
    always("requestMappings", List(&Of(&CONTAINER_EXTENDED_RESOURCE_REQUEST))),
    always("resourceClaimName", String),
]);

static POD_IP: Struct = Struct(&[always("ip", String)]);

static POD_OS: Struct = Struct(&[always("name", String)]);

static POD_READINESS_GATE: Struct = Struct(&[always("conditionType", String)]);

static POD_RESOURCE_CLAIM: Struct = Struct(&[
    always("name", String),
    pointer("resourceClaimName", String),
    pointer("resourceClaimTemplateName", String),
]);

static POD_RESOURCE_CLAIM_STATUS: Struct =
    Struct(&[always("name", String), pointer("resourceClaimName", String)]);

static POD_SCHEDULING_GATE: Struct = Struct(&[always("name", String)]);

static POD_SCHEDULING_GROUP: Struct = Struct(&[pointer("podGroupName", String)]);

static POD_SECURITY_CONTEXT: Struct = Struct(&[
    pointer("fsGroup", Int64),
    omitted("sysctls", List(&Of(&SYSCTL))),
    pointer("runAsUser", Int64),
    pointer("runAsGroup", Int64),
    pointer("runAsNonRoot", Bool),
    pointer("seLinuxOptions", Of(&SE_LINUX_OPTIONS)),
    pointer("seccompProfile", Of(&SECCOMP_PROFILE)),
    pointer("windowsOptions", Of(&WINDOWS_SECURITY_CONTEXT_OPTIONS)),
    pointer("appArmorProfile", Of(&APP_ARMOR_PROFILE)),
    omitted("supplementalGroups", List(&Int64)),
    pointer("fsGroupChangePolicy", String),
    pointer("seLinuxChangePolicy", String),
    pointer("supplementalGroupsPolicy", String),
]);

static POD_SPEC: Struct = Struct(&[
    pointer("os", Of(&POD_OS)),
    omitted("hostIPC", Bool),
    omitted("hostPID", Bool),
    omitted("volumes", List(&Of(&VOLUME))),
    pointer("affinity", Of(&AFFINITY)),
    omitted("hostname", String),
    omitted("nodeName", String),
    omitted("overhead", Map(&Quantity)),
    pointer("priority", Int32),
    pointer("dnsConfig", Of(&POD_DNS_CONFIG)),
    omitted("dnsPolicy", String),
    pointer("hostUsers", Bool),
    pointer("resources", Of(&RESOURCE_REQUIREMENTS)),
    omitted("subdomain", String),
    always("containers", List(&Of(&CONTAINER))),
    omitted("hostAliases", List(&Of(&HOST_ALIAS))),
    omitted("hostNetwork", Bool),
    omitted("tolerations", List(&Of(&TOLERATION))),
    omitted("nodeSelector", Map(&String)),
    omitted("restartPolicy", String),
    omitted("schedulerName", String),
    omitted("initContainers", List(&Of(&CONTAINER))),
    omitted("readinessGates", List(&Of(&POD_READINESS_GATE))),
    omitted("resourceClaims", List(&Of(&POD_RESOURCE_CLAIM))),
    omitted("serviceAccount", String),
    omitted("schedulingGates", List(&Of(&POD_SCHEDULING_GATE))),
    pointer("schedulingGroup", Of(&POD_SCHEDULING_GROUP)),
    pointer("securityContext", Of(&POD_SECURITY_CONTEXT)),
    pointer("hostnameOverride", String),
    omitted("imagePullSecrets", List(&Of(&LOCAL_OBJECT_REFERENCE))),
    pointer("preemptionPolicy", String),
    pointer("runtimeClassName", String),
    omitted("priorityClassName", String),
    pointer("setHostnameAsFQDN", Bool),
    pointer("enableServiceLinks", Bool),
    omitted("serviceAccountName", String),
    omitted("ephemeralContainers", List(&Of(&EPHEMERAL_CONTAINER))),
    pointer("activeDeadlineSeconds", Int64),
    pointer("shareProcessNamespace", Bool),
    omitted("topologySpreadConstraints", List(&Of(&TOPOLOGY_SPREAD_CONSTRAINT))),
    pointer("automountServiceAccountToken", Bool),
    pointer("terminationGracePeriodSeconds", Int64),
]);

static POD_STATUS: Struct = Struct(&[
    omitted("phase", String),
    omitted("podIP", String),
    omitted("hostIP", String),
    omitted("podIPs", List(&Of(&POD_IP))),
    omitted("reason", String),
    omitted("resize", String),
    omitted("hostIPs", List(&Of(&HOST_IP))),
    omitted("message", String),
    omitted("qosClass", String),
    pointer("resources", Of(&RESOURCE_REQUIREMENTS)),
    pointer("startTime", Time),
    omitted("conditions", List(&Of(&POD_CONDITION))),
    omitted("containerStatuses", List(&Of(&CONTAINER_STATUS))),
    omitted("nominatedNodeName", String),
    omitted("allocatedResources", Map(&Quantity)),
    omitted("observedGeneration", Int64),
    omitted("initContainerStatuses", List(&Of(&CONTAINER_STATUS))),
    omitted("resourceClaimStatuses", List(&Of(&POD_RESOURCE_CLAIM_STATUS))),
    omitted("ephemeralContainerStatuses", List(&Of(&CONTAINER_STATUS))),
    pointer("extendedResourceClaimStatus", Of(&POD_EXTENDED_RESOURCE_CLAIM_STATUS)),
    omitted("nodeAllocatableResourceClaimStatuses", List(&Of(&NODE_ALLOCATABLE_RESOURCE_CLAIM_STATUS))),
]);

static PORTWORX_VOLUME_SOURCE: Struct =
    Struct(&[omitted("fsType", String), omitted("readOnly", Bool), always("volumeID", String)]);

static PREFERRED_SCHEDULING_TERM: Struct =
    Struct(&[always("weight", Int32), always("preference", Of(&NODE_SELECTOR_TERM))]);

static PROBE: Struct = Struct(&[
    pointer("exec", Of(&EXEC_ACTION)),
    pointer("grpc", Of(&GRPC_ACTION)),
    pointer("httpGet", Of(&HTTP_GET_ACTION)),
    pointer("tcpSocket", Of(&TCP_SOCKET_ACTION)),
    omitted("periodSeconds", Int32),
    omitted("timeoutSeconds", Int32),
    omitted("failureThreshold", Int32),
    omitted("successThreshold", Int32),
    omitted("initialDelaySeconds", Int32),
    pointer("terminationGracePeriodSeconds", Int64),
]);

static PROJECTED_VOLUME_SOURCE: Struct =
    Struct(&[always("sources", List(&Of(&VOLUME_PROJECTION))), pointer("defaultMode", Int32)]);

static QUOBYTE_VOLUME_SOURCE: Struct = Struct(&[
    omitted("user", String),
    omitted("group", String),
    omitted("tenant", String),
    always("volume", String),
    omitted("readOnly", Bool),
    always("registry", String),
]);

static RBD_VOLUME_SOURCE: Struct = Struct(&[
    omitted("pool", String),
    omitted("user", String),
    always("image", String),
    omitted("fsType", String),
    omitted("keyring", String),
    always("monitors", List(&String)),
    omitted("readOnly", Bool),
    pointer("secretRef", Of(&LOCAL_OBJECT_REFERENCE)),
]);

static RESOURCE_CLAIM: Struct = Struct(&[always("name", String), omitted("request", String)]);

static RESOURCE_FIELD_SELECTOR: Struct =
    Struct(&[always("divisor", Quantity), always("resource", String), omitted("containerName", String)]);

static RESOURCE_HEALTH: Struct =
    Struct(&[omitted("health", String), pointer("message", String), always("resourceID", String)]);

static RESOURCE_REQUIREMENTS: Struct = Struct(&[
    omitted("claims", List(&Of(&RESOURCE_CLAIM))),
    omitted("limits", Map(&Quantity)),
    omitted("requests", Map(&Quantity)),
]);

static RESOURCE_STATUS: Struct =
    Struct(&[always("name", String), omitted("resources", List(&Of(&RESOURCE_HEALTH)))]);

static SCALE_IO_VOLUME_SOURCE: Struct = Struct(&[
    omitted("fsType", String),
    always("system", String),
    always("gateway", String),
    omitted("readOnly", Bool),
    pointer("secretRef", Of(&LOCAL_OBJECT_REFERENCE)),
    omitted("sslEnabled", Bool),
    omitted("volumeName", String),
    omitted("storageMode", String),
    omitted("storagePool", String),
    omitted("protectionDomain", String),
]);

static SECCOMP_PROFILE: Struct = Struct(&[always("type", String), pointer("localhostProfile", String)]);

static SECRET_ENV_SOURCE: Struct = Struct(&[omitted("name", String), pointer("optional", Bool)]);

static SECRET_KEY_SELECTOR: Struct =
    Struct(&[always("key", String), omitted("name", String), pointer("optional", Bool)]);

static SECRET_PROJECTION: Struct =
    Struct(&[omitted("name", String), omitted("items", List(&Of(&KEY_TO_PATH))), pointer("optional", Bool)]);

static SECRET_VOLUME_SOURCE: Struct = Struct(&[
    omitted("items", List(&Of(&KEY_TO_PATH))),
    pointer("optional", Bool),
    omitted("secretName", String),
    pointer("defaultMode", Int32),
]);

static SECURITY_CONTEXT: Struct = Struct(&[
    pointer("procMount", String),
    pointer("runAsUser", Int64),
    pointer("privileged", Bool),
    pointer("runAsGroup", Int64),
    pointer("capabilities", Of(&CAPABILITIES)),
    pointer("runAsNonRoot", Bool),
    pointer("seLinuxOptions", Of(&SE_LINUX_OPTIONS)),
    pointer("seccompProfile", Of(&SECCOMP_PROFILE)),
    pointer("windowsOptions", Of(&WINDOWS_SECURITY_CONTEXT_OPTIONS)),
    pointer("appArmorProfile", Of(&APP_ARMOR_PROFILE)),
    pointer("readOnlyRootFilesystem", Bool),
    pointer("allowPrivilegeEscalation", Bool),
]);

static SERVICE_ACCOUNT_TOKEN_PROJECTION: Struct =
    Struct(&[always("path", String), omitted("audience", String), pointer("expirationSeconds", Int64)]);

static SE_LINUX_OPTIONS: Struct = Struct(&[
    omitted("role", String),
    omitted("type", String),
    omitted("user", String),
    omitted("level", String),
]);

static SLEEP_ACTION: Struct = Struct(&[always("seconds", Int64)]);

static STORAGE_OS_VOLUME_SOURCE: Struct = Struct(&[
    omitted("fsType", String),
    omitted("readOnly", Bool),
    pointer("secretRef", Of(&LOCAL_OBJECT_REFERENCE)),
    omitted("volumeName", String),
    omitted("volumeNamespace", String),
]);

static SYSCTL: Struct = Struct(&[always("name", String), always("value", String)]);

static TCP_SOCKET_ACTION: Struct = Struct(&[omitted("host", String), always("port", IntOrString)]);

static TOLERATION: Struct = Struct(&[
    omitted("key", String),
    omitted("value", String),
    omitted("effect", String),
    omitted("operator", String),
    pointer("tolerationSeconds", Int64),
]);

static TOPOLOGY_SPREAD_CONSTRAINT: Struct = Struct(&[
    always("maxSkew", Int32),
    pointer("minDomains", Int32),
    always("topologyKey", String),
    pointer("labelSelector", Of(&LABEL_SELECTOR)),
    omitted("matchLabelKeys", List(&String)),
    pointer("nodeTaintsPolicy", String),
    always("whenUnsatisfiable", String),
    pointer("nodeAffinityPolicy", String),
]);

static TYPED_LOCAL_OBJECT_REFERENCE: Struct =
    Struct(&[always("kind", String), always("name", String), pointer("apiGroup", String)]);

static TYPED_OBJECT_REFERENCE: Struct = Struct(&[
    always("kind", String),
    always("name", String),
    pointer("apiGroup", String),
    pointer("namespace", String),
]);

static VOLUME: Struct = Struct(&[
    pointer("fc", Of(&FC_VOLUME_SOURCE)),
    pointer("csi", Of(&CSI_VOLUME_SOURCE)),
    pointer("nfs", Of(&NFS_VOLUME_SOURCE)),
    pointer("rbd", Of(&RBD_VOLUME_SOURCE)),
    always("name", String),
    pointer("image", Of(&IMAGE_VOLUME_SOURCE)),
    pointer("iscsi", Of(&ISCSI_VOLUME_SOURCE)),
    pointer("cephfs", Of(&CEPH_FS_VOLUME_SOURCE)),
    pointer("cinder", Of(&CINDER_VOLUME_SOURCE)),
    pointer("secret", Of(&SECRET_VOLUME_SOURCE)),
    pointer("flocker", Of(&FLOCKER_VOLUME_SOURCE)),
    pointer("gitRepo", Of(&GIT_REPO_VOLUME_SOURCE)),
    pointer("quobyte", Of(&QUOBYTE_VOLUME_SOURCE)),
    pointer("scaleIO", Of(&SCALE_IO_VOLUME_SOURCE)),
    pointer("emptyDir", Of(&EMPTY_DIR_VOLUME_SOURCE)),
    pointer("hostPath", Of(&HOST_PATH_VOLUME_SOURCE)),
    pointer("azureDisk", Of(&AZURE_DISK_VOLUME_SOURCE)),
    pointer("azureFile", Of(&AZURE_FILE_VOLUME_SOURCE)),
    pointer("configMap", Of(&CONFIG_MAP_VOLUME_SOURCE)),
    pointer("ephemeral", Of(&EPHEMERAL_VOLUME_SOURCE)),
    pointer("glusterfs", Of(&GLUSTERFS_VOLUME_SOURCE)),
    pointer("projected", Of(&PROJECTED_VOLUME_SOURCE)),
    pointer("storageos", Of(&STORAGE_OS_VOLUME_SOURCE)),
    pointer("flexVolume", Of(&FLEX_VOLUME_SOURCE)),
    pointer("downwardAPI", Of(&DOWNWARD_API_VOLUME_SOURCE)),
    pointer("vsphereVolume", Of(&VSPHERE_VIRTUAL_DISK_VOLUME_SOURCE)),
    pointer("portworxVolume", Of(&PORTWORX_VOLUME_SOURCE)),
    pointer("gcePersistentDisk", Of(&GCE_PERSISTENT_DISK_VOLUME_SOURCE)),
    pointer("awsElasticBlockStore", Of(&AWS_ELASTIC_BLOCK_STORE_VOLUME_SOURCE)),
    pointer("photonPersistentDisk", Of(&PHOTON_PERSISTENT_DISK_VOLUME_SOURCE)),
    pointer("persistentVolumeClaim", Of(&PERSISTENT_VOLUME_CLAIM_VOLUME_SOURCE)),
]);

static VOLUME_DEVICE: Struct = Struct(&[always("name", String), always("devicePath", String)]);

static VOLUME_MOUNT: Struct = Struct(&[
    always("name", String),
    omitted("subPath", String),
    omitted("readOnly", Bool),
    always("mountPath", String),
    omitted("subPathExpr", String),
    pointer("mountPropagation", String),
    pointer("recursiveReadOnly", String),
]);

static VOLUME_MOUNT_STATUS: Struct = Struct(&[
    always("name", String),
    omitted("readOnly", Bool),
    always("mountPath", String),
    pointer("volumeStatus", Of(&VOLUME_STATUS)),
    pointer("recursiveReadOnly", String),
]);

static VOLUME_PROJECTION: Struct = Struct(&[
    pointer("secret", Of(&SECRET_PROJECTION)),
    pointer("configMap", Of(&CONFIG_MAP_PROJECTION)),
    pointer("downwardAPI", Of(&DOWNWARD_API_PROJECTION)),
    pointer("podCertificate", Of(&POD_CERTIFICATE_PROJECTION)),
    pointer("clusterTrustBundle", Of(&CLUSTER_TRUST_BUNDLE_PROJECTION)),
    pointer("serviceAccountToken", Of(&SERVICE_ACCOUNT_TOKEN_PROJECTION)),
]);

static VOLUME_RESOURCE_REQUIREMENTS: Struct =
    Struct(&[omitted("limits", Map(&Quantity)), omitted("requests", Map(&Quantity))]);

static VOLUME_STATUS: Struct = Struct(&[pointer("image", Of(&IMAGE_VOLUME_STATUS))]);

static VSPHERE_VIRTUAL_DISK_VOLUME_SOURCE: Struct = Struct(&[
    omitted("fsType", String),
    always("volumePath", String),
    omitted("storagePolicyID", String),
    omitted("storagePolicyName", String),
]);

static WEIGHTED_POD_AFFINITY_TERM: Struct =
    Struct(&[always("weight", Int32), always("podAffinityTerm", Of(&POD_AFFINITY_TERM))]);

static WINDOWS_SECURITY_CONTEXT_OPTIONS: Struct = Struct(&[
    pointer("hostProcess", Bool),
    pointer("runAsUserName", String),
    pointer("gmsaCredentialSpec", String),
    pointer("gmsaCredentialSpecName", String),
]);
