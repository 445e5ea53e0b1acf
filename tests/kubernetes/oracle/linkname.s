// An empty assembly file: it lets functions without a body be declared for go:linkname.
