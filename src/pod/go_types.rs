//! The types that a pod is made of, as Go knows them: each field's name, kind, and whether Go writes its zero value.
//!
//! Made by reflection over `k8s.io/api/core/v1.Pod` v0.36.3 and
//! `k8s.io/apimachinery` v0.36.3: every struct reachable from `Pod`, embedded
//! structs flattened, fields sorted by their JSON name. `pointer` is a Go
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

/// A Go struct: its fields, sorted by name.
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
        self.0.binary_search_by(|field| field.name.cmp(name)).ok().map(|index| &self.0[index])
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
    pointer("nodeAffinity", Of(&NODE_AFFINITY)),
    pointer("podAffinity", Of(&POD_AFFINITY)),
    pointer("podAntiAffinity", Of(&POD_ANTI_AFFINITY)),
]);

static APP_ARMOR_PROFILE: Struct = Struct(&[pointer("localhostProfile", String), always("type", String)]);

static AWS_ELASTIC_BLOCK_STORE_VOLUME_SOURCE: Struct = Struct(&[
    omitted("fsType", String),
    omitted("partition", Int32),
    omitted("readOnly", Bool),
    always("volumeID", String),
]);

static AZURE_DISK_VOLUME_SOURCE: Struct = Struct(&[
    pointer("cachingMode", String),
    always("diskName", String),
    always("diskURI", String),
    pointer("fsType", String),
    pointer("kind", String),
    pointer("readOnly", Bool),
]);

static AZURE_FILE_VOLUME_SOURCE: Struct =
    Struct(&[omitted("readOnly", Bool), always("secretName", String), always("shareName", String)]);

static CAPABILITIES: Struct = Struct(&[omitted("add", List(&String)), omitted("drop", List(&String))]);

static CEPH_FS_VOLUME_SOURCE: Struct = Struct(&[
    always("monitors", List(&String)),
    omitted("path", String),
    omitted("readOnly", Bool),
    omitted("secretFile", String),
    pointer("secretRef", Of(&LOCAL_OBJECT_REFERENCE)),
    omitted("user", String),
]);

static CINDER_VOLUME_SOURCE: Struct = Struct(&[
    omitted("fsType", String),
    omitted("readOnly", Bool),
    pointer("secretRef", Of(&LOCAL_OBJECT_REFERENCE)),
    always("volumeID", String),
]);

static CLUSTER_TRUST_BUNDLE_PROJECTION: Struct = Struct(&[
    pointer("labelSelector", Of(&LABEL_SELECTOR)),
    pointer("name", String),
    pointer("optional", Bool),
    always("path", String),
    pointer("signerName", String),
]);

static CONFIG_MAP_ENV_SOURCE: Struct = Struct(&[omitted("name", String), pointer("optional", Bool)]);

static CONFIG_MAP_KEY_SELECTOR: Struct =
    Struct(&[always("key", String), omitted("name", String), pointer("optional", Bool)]);

static CONFIG_MAP_PROJECTION: Struct =
    Struct(&[omitted("items", List(&Of(&KEY_TO_PATH))), omitted("name", String), pointer("optional", Bool)]);

static CONFIG_MAP_VOLUME_SOURCE: Struct = Struct(&[
    pointer("defaultMode", Int32),
    omitted("items", List(&Of(&KEY_TO_PATH))),
    omitted("name", String),
    pointer("optional", Bool),
]);

static CONTAINER: Struct = Struct(&[
    omitted("args", List(&String)),
    omitted("command", List(&String)),
    omitted("env", List(&Of(&ENV_VAR))),
    omitted("envFrom", List(&Of(&ENV_FROM_SOURCE))),
    omitted("image", String),
    omitted("imagePullPolicy", String),
    pointer("lifecycle", Of(&LIFECYCLE)),
    pointer("livenessProbe", Of(&PROBE)),
    always("name", String),
    omitted("ports", List(&Of(&CONTAINER_PORT))),
    pointer("readinessProbe", Of(&PROBE)),
    omitted("resizePolicy", List(&Of(&CONTAINER_RESIZE_POLICY))),
    always("resources", Of(&RESOURCE_REQUIREMENTS)),
    pointer("restartPolicy", String),
    omitted("restartPolicyRules", List(&Of(&CONTAINER_RESTART_RULE))),
    pointer("securityContext", Of(&SECURITY_CONTEXT)),
    pointer("startupProbe", Of(&PROBE)),
    omitted("stdin", Bool),
    omitted("stdinOnce", Bool),
    omitted("terminationMessagePath", String),
    omitted("terminationMessagePolicy", String),
    omitted("tty", Bool),
    omitted("volumeDevices", List(&Of(&VOLUME_DEVICE))),
    omitted("volumeMounts", List(&Of(&VOLUME_MOUNT))),
    omitted("workingDir", String),
]);

static CONTAINER_EXTENDED_RESOURCE_REQUEST: Struct =
    Struct(&[always("containerName", String), always("requestName", String), always("resourceName", String)]);

static CONTAINER_PORT: Struct = Struct(&[
    always("containerPort", Int32),
    omitted("hostIP", String),
    omitted("hostPort", Int32),
    omitted("name", String),
    omitted("protocol", String),
]);

static CONTAINER_RESIZE_POLICY: Struct =
    Struct(&[always("resourceName", String), always("restartPolicy", String)]);

static CONTAINER_RESTART_RULE: Struct =
    Struct(&[omitted("action", String), pointer("exitCodes", Of(&CONTAINER_RESTART_RULE_ON_EXIT_CODES))]);

static CONTAINER_RESTART_RULE_ON_EXIT_CODES: Struct =
    Struct(&[omitted("operator", String), omitted("values", List(&Int32))]);

static CONTAINER_STATE: Struct = Struct(&[
    pointer("running", Of(&CONTAINER_STATE_RUNNING)),
    pointer("terminated", Of(&CONTAINER_STATE_TERMINATED)),
    pointer("waiting", Of(&CONTAINER_STATE_WAITING)),
]);

static CONTAINER_STATE_RUNNING: Struct = Struct(&[always("startedAt", Time)]);

static CONTAINER_STATE_TERMINATED: Struct = Struct(&[
    omitted("containerID", String),
    always("exitCode", Int32),
    always("finishedAt", Time),
    omitted("message", String),
    omitted("reason", String),
    omitted("signal", Int32),
    always("startedAt", Time),
]);

static CONTAINER_STATE_WAITING: Struct = Struct(&[omitted("message", String), omitted("reason", String)]);

static CONTAINER_STATUS: Struct = Struct(&[
    omitted("allocatedResources", Map(&Quantity)),
    omitted("allocatedResourcesStatus", List(&Of(&RESOURCE_STATUS))),
    omitted("containerID", String),
    always("image", String),
    always("imageID", String),
    always("lastState", Of(&CONTAINER_STATE)),
    always("name", String),
    always("ready", Bool),
    pointer("resources", Of(&RESOURCE_REQUIREMENTS)),
    always("restartCount", Int32),
    pointer("started", Bool),
    always("state", Of(&CONTAINER_STATE)),
    pointer("stopSignal", String),
    pointer("user", Of(&CONTAINER_USER)),
    omitted("volumeMounts", List(&Of(&VOLUME_MOUNT_STATUS))),
]);

static CONTAINER_USER: Struct = Struct(&[pointer("linux", Of(&LINUX_CONTAINER_USER))]);

static CSI_VOLUME_SOURCE: Struct = Struct(&[
    always("driver", String),
    pointer("fsType", String),
    pointer("nodePublishSecretRef", Of(&LOCAL_OBJECT_REFERENCE)),
    pointer("readOnly", Bool),
    omitted("volumeAttributes", Map(&String)),
]);

static DOWNWARD_API_PROJECTION: Struct = Struct(&[omitted("items", List(&Of(&DOWNWARD_API_VOLUME_FILE)))]);

static DOWNWARD_API_VOLUME_FILE: Struct = Struct(&[
    pointer("fieldRef", Of(&OBJECT_FIELD_SELECTOR)),
    pointer("mode", Int32),
    always("path", String),
    pointer("resourceFieldRef", Of(&RESOURCE_FIELD_SELECTOR)),
]);

static DOWNWARD_API_VOLUME_SOURCE: Struct =
    Struct(&[pointer("defaultMode", Int32), omitted("items", List(&Of(&DOWNWARD_API_VOLUME_FILE)))]);

static EMPTY_DIR_VOLUME_SOURCE: Struct = Struct(&[omitted("medium", String), pointer("sizeLimit", Quantity)]);

static ENV_FROM_SOURCE: Struct = Struct(&[
    pointer("configMapRef", Of(&CONFIG_MAP_ENV_SOURCE)),
    omitted("prefix", String),
    pointer("secretRef", Of(&SECRET_ENV_SOURCE)),
]);

static ENV_VAR: Struct =
    Struct(&[always("name", String), omitted("value", String), pointer("valueFrom", Of(&ENV_VAR_SOURCE))]);

static ENV_VAR_SOURCE: Struct = Struct(&[
    pointer("configMapKeyRef", Of(&CONFIG_MAP_KEY_SELECTOR)),
    pointer("fieldRef", Of(&OBJECT_FIELD_SELECTOR)),
    pointer("fileKeyRef", Of(&FILE_KEY_SELECTOR)),
    pointer("resourceFieldRef", Of(&RESOURCE_FIELD_SELECTOR)),
    pointer("secretKeyRef", Of(&SECRET_KEY_SELECTOR)),
]);

static EPHEMERAL_CONTAINER: Struct = Struct(&[
    omitted("args", List(&String)),
    omitted("command", List(&String)),
    omitted("env", List(&Of(&ENV_VAR))),
    omitted("envFrom", List(&Of(&ENV_FROM_SOURCE))),
    omitted("image", String),
    omitted("imagePullPolicy", String),
    pointer("lifecycle", Of(&LIFECYCLE)),
    pointer("livenessProbe", Of(&PROBE)),
    always("name", String),
    omitted("ports", List(&Of(&CONTAINER_PORT))),
    pointer("readinessProbe", Of(&PROBE)),
    omitted("resizePolicy", List(&Of(&CONTAINER_RESIZE_POLICY))),
    always("resources", Of(&RESOURCE_REQUIREMENTS)),
    pointer("restartPolicy", String),
    omitted("restartPolicyRules", List(&Of(&CONTAINER_RESTART_RULE))),
    pointer("securityContext", Of(&SECURITY_CONTEXT)),
    pointer("startupProbe", Of(&PROBE)),
    omitted("stdin", Bool),
    omitted("stdinOnce", Bool),
    omitted("targetContainerName", String),
    omitted("terminationMessagePath", String),
    omitted("terminationMessagePolicy", String),
    omitted("tty", Bool),
    omitted("volumeDevices", List(&Of(&VOLUME_DEVICE))),
    omitted("volumeMounts", List(&Of(&VOLUME_MOUNT))),
    omitted("workingDir", String),
]);

static EPHEMERAL_VOLUME_SOURCE: Struct =
    Struct(&[pointer("volumeClaimTemplate", Of(&PERSISTENT_VOLUME_CLAIM_TEMPLATE))]);

static EXEC_ACTION: Struct = Struct(&[omitted("command", List(&String))]);

static FC_VOLUME_SOURCE: Struct = Struct(&[
    omitted("fsType", String),
    pointer("lun", Int32),
    omitted("readOnly", Bool),
    omitted("targetWWNs", List(&String)),
    omitted("wwids", List(&String)),
]);

static FILE_KEY_SELECTOR: Struct = Struct(&[
    always("key", String),
    pointer("optional", Bool),
    always("path", String),
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
    omitted("partition", Int32),
    always("pdName", String),
    omitted("readOnly", Bool),
]);

static GIT_REPO_VOLUME_SOURCE: Struct =
    Struct(&[omitted("directory", String), always("repository", String), omitted("revision", String)]);

static GLUSTERFS_VOLUME_SOURCE: Struct =
    Struct(&[always("endpoints", String), always("path", String), omitted("readOnly", Bool)]);

static GRPC_ACTION: Struct = Struct(&[always("port", Int32), pointer("service", String)]);

static HOST_ALIAS: Struct = Struct(&[omitted("hostnames", List(&String)), always("ip", String)]);

static HOST_IP: Struct = Struct(&[always("ip", String)]);

static HOST_PATH_VOLUME_SOURCE: Struct = Struct(&[always("path", String), pointer("type", String)]);

static HTTP_GET_ACTION: Struct = Struct(&[
    omitted("host", String),
    omitted("httpHeaders", List(&Of(&HTTP_HEADER))),
    omitted("path", String),
    always("port", IntOrString),
    omitted("scheme", String),
]);

static HTTP_HEADER: Struct = Struct(&[always("name", String), always("value", String)]);

static IMAGE_VOLUME_SOURCE: Struct = Struct(&[omitted("pullPolicy", String), omitted("reference", String)]);

static IMAGE_VOLUME_STATUS: Struct = Struct(&[omitted("imageRef", String)]);

static ISCSI_VOLUME_SOURCE: Struct = Struct(&[
    omitted("chapAuthDiscovery", Bool),
    omitted("chapAuthSession", Bool),
    omitted("fsType", String),
    pointer("initiatorName", String),
    always("iqn", String),
    omitted("iscsiInterface", String),
    always("lun", Int32),
    omitted("portals", List(&String)),
    omitted("readOnly", Bool),
    pointer("secretRef", Of(&LOCAL_OBJECT_REFERENCE)),
    always("targetPortal", String),
]);

static KEY_TO_PATH: Struct = Struct(&[always("key", String), pointer("mode", Int32), always("path", String)]);

static LABEL_SELECTOR: Struct = Struct(&[
    omitted("matchExpressions", List(&Of(&LABEL_SELECTOR_REQUIREMENT))),
    omitted("matchLabels", Map(&String)),
]);

static LABEL_SELECTOR_REQUIREMENT: Struct =
    Struct(&[always("key", String), always("operator", String), omitted("values", List(&String))]);

static LIFECYCLE: Struct = Struct(&[
    pointer("postStart", Of(&LIFECYCLE_HANDLER)),
    pointer("preStop", Of(&LIFECYCLE_HANDLER)),
    pointer("stopSignal", String),
]);

static LIFECYCLE_HANDLER: Struct = Struct(&[
    pointer("exec", Of(&EXEC_ACTION)),
    pointer("httpGet", Of(&HTTP_GET_ACTION)),
    pointer("sleep", Of(&SLEEP_ACTION)),
    pointer("tcpSocket", Of(&TCP_SOCKET_ACTION)),
]);

static LINUX_CONTAINER_USER: Struct =
    Struct(&[always("gid", Int64), omitted("supplementalGroups", List(&Int64)), always("uid", Int64)]);

static LOCAL_OBJECT_REFERENCE: Struct = Struct(&[omitted("name", String)]);

static MANAGED_FIELDS_ENTRY: Struct = Struct(&[
    omitted("apiVersion", String),
    omitted("fieldsType", String),
    pointer("fieldsV1", Any),
    omitted("manager", String),
    omitted("operation", String),
    omitted("subresource", String),
    pointer("time", Time),
]);

static NFS_VOLUME_SOURCE: Struct =
    Struct(&[always("path", String), omitted("readOnly", Bool), always("server", String)]);

static NODE_AFFINITY: Struct = Struct(&[
    omitted("preferredDuringSchedulingIgnoredDuringExecution", List(&Of(&PREFERRED_SCHEDULING_TERM))),
    pointer("requiredDuringSchedulingIgnoredDuringExecution", Of(&NODE_SELECTOR)),
]);

static NODE_ALLOCATABLE_RESOURCE_CLAIM_STATUS: Struct = Struct(&[
    omitted("containers", List(&String)),
    always("resourceClaimName", String),
    always("resources", Map(&Quantity)),
]);

static NODE_SELECTOR: Struct = Struct(&[always("nodeSelectorTerms", List(&Of(&NODE_SELECTOR_TERM)))]);

static NODE_SELECTOR_REQUIREMENT: Struct =
    Struct(&[always("key", String), always("operator", String), omitted("values", List(&String))]);

static NODE_SELECTOR_TERM: Struct = Struct(&[
    omitted("matchExpressions", List(&Of(&NODE_SELECTOR_REQUIREMENT))),
    omitted("matchFields", List(&Of(&NODE_SELECTOR_REQUIREMENT))),
]);

static OBJECT_FIELD_SELECTOR: Struct = Struct(&[omitted("apiVersion", String), always("fieldPath", String)]);

static OBJECT_META: Struct = Struct(&[
    omitted("annotations", Map(&String)),
    omitted("creationTimestamp", Time),
    pointer("deletionGracePeriodSeconds", Int64),
    pointer("deletionTimestamp", Time),
    omitted("finalizers", List(&String)),
    omitted("generateName", String),
    omitted("generation", Int64),
    omitted("labels", Map(&String)),
    omitted("managedFields", List(&Of(&MANAGED_FIELDS_ENTRY))),
    omitted("name", String),
    omitted("namespace", String),
    omitted("ownerReferences", List(&Of(&OWNER_REFERENCE))),
    omitted("resourceVersion", String),
    omitted("selfLink", String),
    omitted("uid", String),
]);

static OWNER_REFERENCE: Struct = Struct(&[
    always("apiVersion", String),
    pointer("blockOwnerDeletion", Bool),
    pointer("controller", Bool),
    always("kind", String),
    always("name", String),
    always("uid", String),
]);

static PERSISTENT_VOLUME_CLAIM_SPEC: Struct = Struct(&[
    omitted("accessModes", List(&String)),
    pointer("dataSource", Of(&TYPED_LOCAL_OBJECT_REFERENCE)),
    pointer("dataSourceRef", Of(&TYPED_OBJECT_REFERENCE)),
    always("resources", Of(&VOLUME_RESOURCE_REQUIREMENTS)),
    pointer("selector", Of(&LABEL_SELECTOR)),
    pointer("storageClassName", String),
    pointer("volumeAttributesClassName", String),
    pointer("volumeMode", String),
    omitted("volumeName", String),
]);

static PERSISTENT_VOLUME_CLAIM_TEMPLATE: Struct =
    Struct(&[always("metadata", Of(&OBJECT_META)), always("spec", Of(&PERSISTENT_VOLUME_CLAIM_SPEC))]);

static PERSISTENT_VOLUME_CLAIM_VOLUME_SOURCE: Struct =
    Struct(&[always("claimName", String), omitted("readOnly", Bool)]);

static PHOTON_PERSISTENT_DISK_VOLUME_SOURCE: Struct =
    Struct(&[omitted("fsType", String), always("pdID", String)]);

pub(super) static POD: Struct = Struct(&[
    omitted("apiVersion", String),
    omitted("kind", String),
    always("metadata", Of(&OBJECT_META)),
    always("spec", Of(&POD_SPEC)),
    always("status", Of(&POD_STATUS)),
]);

static POD_AFFINITY: Struct = Struct(&[
    omitted("preferredDuringSchedulingIgnoredDuringExecution", List(&Of(&WEIGHTED_POD_AFFINITY_TERM))),
    omitted("requiredDuringSchedulingIgnoredDuringExecution", List(&Of(&POD_AFFINITY_TERM))),
]);

static POD_AFFINITY_TERM: Struct = Struct(&[
    pointer("labelSelector", Of(&LABEL_SELECTOR)),
    omitted("matchLabelKeys", List(&String)),
    omitted("mismatchLabelKeys", List(&String)),
    pointer("namespaceSelector", Of(&LABEL_SELECTOR)),
    omitted("namespaces", List(&String)),
    always("topologyKey", String),
]);

static POD_ANTI_AFFINITY: Struct = Struct(&[
    omitted("preferredDuringSchedulingIgnoredDuringExecution", List(&Of(&WEIGHTED_POD_AFFINITY_TERM))),
    omitted("requiredDuringSchedulingIgnoredDuringExecution", List(&Of(&POD_AFFINITY_TERM))),
]);

static POD_CERTIFICATE_PROJECTION: Struct = Struct(&[
    omitted("certificateChainPath", String),
    omitted("credentialBundlePath", String),
    omitted("keyPath", String),
    omitted("keyType", String),
    pointer("maxExpirationSeconds", Int32),
    omitted("signerName", String),
    omitted("userAnnotations", Map(&String)),
]);

static POD_CONDITION: Struct = Struct(&[
    always("lastProbeTime", Time),
    always("lastTransitionTime", Time),
    omitted("message", String),
    omitted("observedGeneration", Int64),
    omitted("reason", String),
    always("status", String),
    always("type", String),
]);

static POD_DNS_CONFIG: Struct = Struct(&[
    omitted("nameservers", List(&String)),
    omitted("options", List(&Of(&POD_DNS_CONFIG_OPTION))),
    omitted("searches", List(&String)),
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
    pointer("appArmorProfile", Of(&APP_ARMOR_PROFILE)),
    pointer("fsGroup", Int64),
    pointer("fsGroupChangePolicy", String),
    pointer("runAsGroup", Int64),
    pointer("runAsNonRoot", Bool),
    pointer("runAsUser", Int64),
    pointer("seLinuxChangePolicy", String),
    pointer("seLinuxOptions", Of(&SE_LINUX_OPTIONS)),
    pointer("seccompProfile", Of(&SECCOMP_PROFILE)),
    omitted("supplementalGroups", List(&Int64)),
    pointer("supplementalGroupsPolicy", String),
    omitted("sysctls", List(&Of(&SYSCTL))),
    pointer("windowsOptions", Of(&WINDOWS_SECURITY_CONTEXT_OPTIONS)),
]);

static POD_SPEC: Struct = Struct(&[
    pointer("activeDeadlineSeconds", Int64),
    pointer("affinity", Of(&AFFINITY)),
    pointer("automountServiceAccountToken", Bool),
    always("containers", List(&Of(&CONTAINER))),
    pointer("dnsConfig", Of(&POD_DNS_CONFIG)),
    omitted("dnsPolicy", String),
    pointer("enableServiceLinks", Bool),
    omitted("ephemeralContainers", List(&Of(&EPHEMERAL_CONTAINER))),
    omitted("hostAliases", List(&Of(&HOST_ALIAS))),
    omitted("hostIPC", Bool),
    omitted("hostNetwork", Bool),
    omitted("hostPID", Bool),
    pointer("hostUsers", Bool),
    omitted("hostname", String),
    pointer("hostnameOverride", String),
    omitted("imagePullSecrets", List(&Of(&LOCAL_OBJECT_REFERENCE))),
    omitted("initContainers", List(&Of(&CONTAINER))),
    omitted("nodeName", String),
    omitted("nodeSelector", Map(&String)),
    pointer("os", Of(&POD_OS)),
    omitted("overhead", Map(&Quantity)),
    pointer("preemptionPolicy", String),
    pointer("priority", Int32),
    omitted("priorityClassName", String),
    omitted("readinessGates", List(&Of(&POD_READINESS_GATE))),
    omitted("resourceClaims", List(&Of(&POD_RESOURCE_CLAIM))),
    pointer("resources", Of(&RESOURCE_REQUIREMENTS)),
    omitted("restartPolicy", String),
    pointer("runtimeClassName", String),
    omitted("schedulerName", String),
    omitted("schedulingGates", List(&Of(&POD_SCHEDULING_GATE))),
    pointer("schedulingGroup", Of(&POD_SCHEDULING_GROUP)),
    pointer("securityContext", Of(&POD_SECURITY_CONTEXT)),
    omitted("serviceAccount", String),
    omitted("serviceAccountName", String),
    pointer("setHostnameAsFQDN", Bool),
    pointer("shareProcessNamespace", Bool),
    omitted("subdomain", String),
    pointer("terminationGracePeriodSeconds", Int64),
    omitted("tolerations", List(&Of(&TOLERATION))),
    omitted("topologySpreadConstraints", List(&Of(&TOPOLOGY_SPREAD_CONSTRAINT))),
    omitted("volumes", List(&Of(&VOLUME))),
]);

static POD_STATUS: Struct = Struct(&[
    omitted("allocatedResources", Map(&Quantity)),
    omitted("conditions", List(&Of(&POD_CONDITION))),
    omitted("containerStatuses", List(&Of(&CONTAINER_STATUS))),
    omitted("ephemeralContainerStatuses", List(&Of(&CONTAINER_STATUS))),
    pointer("extendedResourceClaimStatus", Of(&POD_EXTENDED_RESOURCE_CLAIM_STATUS)),
    omitted("hostIP", String),
    omitted("hostIPs", List(&Of(&HOST_IP))),
    omitted("initContainerStatuses", List(&Of(&CONTAINER_STATUS))),
    omitted("message", String),
    omitted("nodeAllocatableResourceClaimStatuses", List(&Of(&NODE_ALLOCATABLE_RESOURCE_CLAIM_STATUS))),
    omitted("nominatedNodeName", String),
    omitted("observedGeneration", Int64),
    omitted("phase", String),
    omitted("podIP", String),
    omitted("podIPs", List(&Of(&POD_IP))),
    omitted("qosClass", String),
    omitted("reason", String),
    omitted("resize", String),
    omitted("resourceClaimStatuses", List(&Of(&POD_RESOURCE_CLAIM_STATUS))),
    pointer("resources", Of(&RESOURCE_REQUIREMENTS)),
    pointer("startTime", Time),
]);

static PORTWORX_VOLUME_SOURCE: Struct =
    Struct(&[omitted("fsType", String), omitted("readOnly", Bool), always("volumeID", String)]);

static PREFERRED_SCHEDULING_TERM: Struct =
    Struct(&[always("preference", Of(&NODE_SELECTOR_TERM)), always("weight", Int32)]);

static PROBE: Struct = Struct(&[
    pointer("exec", Of(&EXEC_ACTION)),
    omitted("failureThreshold", Int32),
    pointer("grpc", Of(&GRPC_ACTION)),
    pointer("httpGet", Of(&HTTP_GET_ACTION)),
    omitted("initialDelaySeconds", Int32),
    omitted("periodSeconds", Int32),
    omitted("successThreshold", Int32),
    pointer("tcpSocket", Of(&TCP_SOCKET_ACTION)),
    pointer("terminationGracePeriodSeconds", Int64),
    omitted("timeoutSeconds", Int32),
]);

static PROJECTED_VOLUME_SOURCE: Struct =
    Struct(&[pointer("defaultMode", Int32), always("sources", List(&Of(&VOLUME_PROJECTION)))]);

static QUOBYTE_VOLUME_SOURCE: Struct = Struct(&[
    omitted("group", String),
    omitted("readOnly", Bool),
    always("registry", String),
    omitted("tenant", String),
    omitted("user", String),
    always("volume", String),
]);

static RBD_VOLUME_SOURCE: Struct = Struct(&[
    omitted("fsType", String),
    always("image", String),
    omitted("keyring", String),
    always("monitors", List(&String)),
    omitted("pool", String),
    omitted("readOnly", Bool),
    pointer("secretRef", Of(&LOCAL_OBJECT_REFERENCE)),
    omitted("user", String),
]);

static RESOURCE_CLAIM: Struct = Struct(&[always("name", String), omitted("request", String)]);

static RESOURCE_FIELD_SELECTOR: Struct =
    Struct(&[omitted("containerName", String), always("divisor", Quantity), always("resource", String)]);

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
    always("gateway", String),
    omitted("protectionDomain", String),
    omitted("readOnly", Bool),
    pointer("secretRef", Of(&LOCAL_OBJECT_REFERENCE)),
    omitted("sslEnabled", Bool),
    omitted("storageMode", String),
    omitted("storagePool", String),
    always("system", String),
    omitted("volumeName", String),
]);

static SECCOMP_PROFILE: Struct = Struct(&[pointer("localhostProfile", String), always("type", String)]);

static SECRET_ENV_SOURCE: Struct = Struct(&[omitted("name", String), pointer("optional", Bool)]);

static SECRET_KEY_SELECTOR: Struct =
    Struct(&[always("key", String), omitted("name", String), pointer("optional", Bool)]);

static SECRET_PROJECTION: Struct =
    Struct(&[omitted("items", List(&Of(&KEY_TO_PATH))), omitted("name", String), pointer("optional", Bool)]);

static SECRET_VOLUME_SOURCE: Struct = Struct(&[
    pointer("defaultMode", Int32),
    omitted("items", List(&Of(&KEY_TO_PATH))),
    pointer("optional", Bool),
    omitted("secretName", String),
]);

static SECURITY_CONTEXT: Struct = Struct(&[
    pointer("allowPrivilegeEscalation", Bool),
    pointer("appArmorProfile", Of(&APP_ARMOR_PROFILE)),
    pointer("capabilities", Of(&CAPABILITIES)),
    pointer("privileged", Bool),
    pointer("procMount", String),
    pointer("readOnlyRootFilesystem", Bool),
    pointer("runAsGroup", Int64),
    pointer("runAsNonRoot", Bool),
    pointer("runAsUser", Int64),
    pointer("seLinuxOptions", Of(&SE_LINUX_OPTIONS)),
    pointer("seccompProfile", Of(&SECCOMP_PROFILE)),
    pointer("windowsOptions", Of(&WINDOWS_SECURITY_CONTEXT_OPTIONS)),
]);

static SERVICE_ACCOUNT_TOKEN_PROJECTION: Struct =
    Struct(&[omitted("audience", String), pointer("expirationSeconds", Int64), always("path", String)]);

static SE_LINUX_OPTIONS: Struct = Struct(&[
    omitted("level", String),
    omitted("role", String),
    omitted("type", String),
    omitted("user", String),
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
    omitted("effect", String),
    omitted("key", String),
    omitted("operator", String),
    pointer("tolerationSeconds", Int64),
    omitted("value", String),
]);

static TOPOLOGY_SPREAD_CONSTRAINT: Struct = Struct(&[
    pointer("labelSelector", Of(&LABEL_SELECTOR)),
    omitted("matchLabelKeys", List(&String)),
    always("maxSkew", Int32),
    pointer("minDomains", Int32),
    pointer("nodeAffinityPolicy", String),
    pointer("nodeTaintsPolicy", String),
    always("topologyKey", String),
    always("whenUnsatisfiable", String),
]);

static TYPED_LOCAL_OBJECT_REFERENCE: Struct =
    Struct(&[pointer("apiGroup", String), always("kind", String), always("name", String)]);

static TYPED_OBJECT_REFERENCE: Struct = Struct(&[
    pointer("apiGroup", String),
    always("kind", String),
    always("name", String),
    pointer("namespace", String),
]);

static VOLUME: Struct = Struct(&[
    pointer("awsElasticBlockStore", Of(&AWS_ELASTIC_BLOCK_STORE_VOLUME_SOURCE)),
    pointer("azureDisk", Of(&AZURE_DISK_VOLUME_SOURCE)),
    pointer("azureFile", Of(&AZURE_FILE_VOLUME_SOURCE)),
    pointer("cephfs", Of(&CEPH_FS_VOLUME_SOURCE)),
    pointer("cinder", Of(&CINDER_VOLUME_SOURCE)),
    pointer("configMap", Of(&CONFIG_MAP_VOLUME_SOURCE)),
    pointer("csi", Of(&CSI_VOLUME_SOURCE)),
    pointer("downwardAPI", Of(&DOWNWARD_API_VOLUME_SOURCE)),
    pointer("emptyDir", Of(&EMPTY_DIR_VOLUME_SOURCE)),
    pointer("ephemeral", Of(&EPHEMERAL_VOLUME_SOURCE)),
    pointer("fc", Of(&FC_VOLUME_SOURCE)),
    pointer("flexVolume", Of(&FLEX_VOLUME_SOURCE)),
    pointer("flocker", Of(&FLOCKER_VOLUME_SOURCE)),
    pointer("gcePersistentDisk", Of(&GCE_PERSISTENT_DISK_VOLUME_SOURCE)),
    pointer("gitRepo", Of(&GIT_REPO_VOLUME_SOURCE)),
    pointer("glusterfs", Of(&GLUSTERFS_VOLUME_SOURCE)),
    pointer("hostPath", Of(&HOST_PATH_VOLUME_SOURCE)),
    pointer("image", Of(&IMAGE_VOLUME_SOURCE)),
    pointer("iscsi", Of(&ISCSI_VOLUME_SOURCE)),
    always("name", String),
    pointer("nfs", Of(&NFS_VOLUME_SOURCE)),
    pointer("persistentVolumeClaim", Of(&PERSISTENT_VOLUME_CLAIM_VOLUME_SOURCE)),
    pointer("photonPersistentDisk", Of(&PHOTON_PERSISTENT_DISK_VOLUME_SOURCE)),
    pointer("portworxVolume", Of(&PORTWORX_VOLUME_SOURCE)),
    pointer("projected", Of(&PROJECTED_VOLUME_SOURCE)),
    pointer("quobyte", Of(&QUOBYTE_VOLUME_SOURCE)),
    pointer("rbd", Of(&RBD_VOLUME_SOURCE)),
    pointer("scaleIO", Of(&SCALE_IO_VOLUME_SOURCE)),
    pointer("secret", Of(&SECRET_VOLUME_SOURCE)),
    pointer("storageos", Of(&STORAGE_OS_VOLUME_SOURCE)),
    pointer("vsphereVolume", Of(&VSPHERE_VIRTUAL_DISK_VOLUME_SOURCE)),
]);

static VOLUME_DEVICE: Struct = Struct(&[always("devicePath", String), always("name", String)]);

static VOLUME_MOUNT: Struct = Struct(&[
    always("mountPath", String),
    pointer("mountPropagation", String),
    always("name", String),
    omitted("readOnly", Bool),
    pointer("recursiveReadOnly", String),
    omitted("subPath", String),
    omitted("subPathExpr", String),
]);

static VOLUME_MOUNT_STATUS: Struct = Struct(&[
    always("mountPath", String),
    always("name", String),
    omitted("readOnly", Bool),
    pointer("recursiveReadOnly", String),
    pointer("volumeStatus", Of(&VOLUME_STATUS)),
]);

static VOLUME_PROJECTION: Struct = Struct(&[
    pointer("clusterTrustBundle", Of(&CLUSTER_TRUST_BUNDLE_PROJECTION)),
    pointer("configMap", Of(&CONFIG_MAP_PROJECTION)),
    pointer("downwardAPI", Of(&DOWNWARD_API_PROJECTION)),
    pointer("podCertificate", Of(&POD_CERTIFICATE_PROJECTION)),
    pointer("secret", Of(&SECRET_PROJECTION)),
    pointer("serviceAccountToken", Of(&SERVICE_ACCOUNT_TOKEN_PROJECTION)),
]);

static VOLUME_RESOURCE_REQUIREMENTS: Struct =
    Struct(&[omitted("limits", Map(&Quantity)), omitted("requests", Map(&Quantity))]);

static VOLUME_STATUS: Struct = Struct(&[pointer("image", Of(&IMAGE_VOLUME_STATUS))]);

static VSPHERE_VIRTUAL_DISK_VOLUME_SOURCE: Struct = Struct(&[
    omitted("fsType", String),
    omitted("storagePolicyID", String),
    omitted("storagePolicyName", String),
    always("volumePath", String),
]);

static WEIGHTED_POD_AFFINITY_TERM: Struct =
    Struct(&[always("podAffinityTerm", Of(&POD_AFFINITY_TERM)), always("weight", Int32)]);

static WINDOWS_SECURITY_CONTEXT_OPTIONS: Struct = Struct(&[
    pointer("gmsaCredentialSpec", String),
    pointer("gmsaCredentialSpecName", String),
    pointer("hostProcess", Bool),
    pointer("runAsUserName", String),
]);
