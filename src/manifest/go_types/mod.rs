//! The Go types that a pod consists of: each field's name, kind, presence, protobuf number and merge key.

#[cfg_attr(not(feature = "agent"), allow(dead_code, reason = "the library alone has no protobuf"))]
mod table;

pub(super) use table::POD;
#[cfg(feature = "agent")]
pub(super) use table::{
    DELETE_OPTIONS, POD_LIST, SELF_SUBJECT_ACCESS_REVIEW_SPEC, SELF_SUBJECT_RULES_REVIEW_SPEC, STATUS,
};

/// The kind of a Go value.
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

/// A Go struct: its fields and those of embedded structs, sorted by the length of the name, then by the name.
#[derive(Debug)]
pub(super) struct Struct(pub(super) &'static [Field]);

/// A field of a Go struct.
#[derive(Debug)]
pub(super) struct Field {
    /// The name in JSON.
    pub(super) name: &'static str,
    pub(super) kind: Type,
    pub(super) presence: Presence,
    /// The protobuf field number; none for `kind` and `apiVersion`, which are in the envelope, `runtime.Unknown`.
    #[cfg_attr(not(feature = "agent"), expect(dead_code, reason = "the library alone has no protobuf"))]
    pub(super) number: Option<u8>,
    /// The field number of the message that has the field, if Go embeds the struct that declares it.
    #[cfg_attr(not(feature = "agent"), expect(dead_code, reason = "the library alone has no protobuf"))]
    pub(super) message: Option<u8>,
    /// What identifies the items of a list that a strategic merge patch merges. None for a list that a patch
    /// replaces, and for every other field.
    #[cfg_attr(not(feature = "agent"), expect(dead_code, reason = "only the agent applies patches"))]
    pub(super) merge_key: Option<MergeKey>,
}

/// What identifies an item of a list that a strategic merge patch merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MergeKey {
    /// The scalar itself.
    Itself,
    ContainerPort,
    DevicePath,
    Ip,
    MountPath,
    Name,
    TopologyKey,
    Type,
    Uid,
}

impl MergeKey {
    /// The field that identifies the item; empty for a scalar.
    #[cfg(feature = "agent")]
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Itself => "",
            Self::ContainerPort => "containerPort",
            Self::DevicePath => "devicePath",
            Self::Ip => "ip",
            Self::MountPath => "mountPath",
            Self::Name => "name",
            Self::TopologyKey => "topologyKey",
            Self::Type => "type",
            Self::Uid => "uid",
        }
    }
}

/// When Go writes a field's zero value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// A Go pointer, which distinguishes absent (nil) from zero: a zero value that was given is written.
    Pointer,
    /// A value with `omitempty`, for structs `omitzero`: not written.
    Omitted,
    /// Any other value: always written.
    Always,
}

impl Struct {
    /// The field of a name, which is case-sensitive.
    pub(super) fn field(&self, name: &str) -> Option<&'static Field> {
        // A scan by length is faster than a binary search, whose branches the processor cannot predict.
        self.0.iter().find(|field| field.name.len() == name.len() && field.name == name)
    }

    /// The field with a protobuf number, in the struct's own message or in that of an embedded struct.
    #[cfg(feature = "agent")]
    pub(super) fn numbered(&self, message: Option<u8>, number: u8) -> Option<&Field> {
        self.0.iter().find(|field| field.number == Some(number) && field.message == message)
    }

    /// Whether a protobuf number is that of an embedded struct.
    #[cfg(feature = "agent")]
    pub(super) fn embeds(&self, number: u8) -> bool {
        self.0.iter().any(|field| field.message == Some(number))
    }
}

const fn pointer(number: u8, name: &'static str, kind: Type) -> Field {
    Field { name, kind, presence: Presence::Pointer, number: Some(number), message: None, merge_key: None }
}

const fn omitted(number: u8, name: &'static str, kind: Type) -> Field {
    Field { presence: Presence::Omitted, ..pointer(number, name, kind) }
}

const fn always(number: u8, name: &'static str, kind: Type) -> Field {
    Field { presence: Presence::Always, ..pointer(number, name, kind) }
}

/// A field of an embedded struct, whose message has this number.
const fn embedded(message: u8, field: Field) -> Field {
    Field { message: Some(message), ..field }
}

/// A list whose items a strategic merge patch merges.
const fn merged(key: MergeKey, field: Field) -> Field {
    Field { merge_key: Some(key), ..field }
}

/// A field that protobuf has in the envelope.
const fn envelope(name: &'static str, kind: Type) -> Field {
    Field { number: None, ..omitted(0, name, kind) }
}
