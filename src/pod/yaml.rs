//! From text to a tree of values with positions, by the rules of YAML that the kubelet lives by.
