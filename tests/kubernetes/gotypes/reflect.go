package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// scalars are the structs that have a JSON form of their own, with their Rust kind.
var scalars = map[reflect.Type]string{
	reflect.TypeFor[resource.Quantity]():  "Quantity",
	reflect.TypeFor[metav1.Time]():        "Time",
	reflect.TypeFor[intstr.IntOrString](): "IntOrString",
	reflect.TypeFor[metav1.FieldsV1]():    "Any",
}

var (
	typeMeta    = reflect.TypeFor[metav1.TypeMeta]()
	unmarshaler = reflect.TypeFor[json.Unmarshaler]()
)

// Presence of a field's zero value in Go's JSON; the names of Rust functions.
const (
	pointer = "pointer"
	omitted = "omitted"
	always  = "always"
)

// structs are the Go structs found so far, by the name of their Rust static.
type structs map[string]*structType

type structType struct {
	reflected reflect.Type
	fields    []field
}

// field is one field of a Go struct or of a struct embedded in it.
type field struct {
	name     string
	kind     string
	presence string
	// The protobuf field number; 0 for a field in the envelope.
	number uint8
	// The number of the message that holds the field, if Go embeds the struct that declares it; otherwise 0.
	message uint8
	// The merge key of a list whose items a strategic merge patch merges: the field that identifies an item, or
	// noKey for a list of scalars. Empty for a list that a patch replaces, and for all other fields.
	mergeKey string
}

// noKey is the merge key of a list of scalars that a patch adds to.
const noKey = "Itself"

// add adds a struct and all structs that it refers to, and returns its Rust name.
func (s structs) add(t reflect.Type) (string, error) {
	name := screamingSnake(t.Name())
	if known, ok := s[name]; ok {
		if known.reflected != t {
			return "", fmt.Errorf("%s and %s have the same name in the table", known.reflected, t)
		}
		return name, nil
	}
	found := &structType{reflected: t}
	s[name] = found
	fields, err := s.fields(t)
	if err != nil {
		return "", err
	}
	// Rust looks a field up by the length of its name first.
	slices.SortFunc(fields, func(a, b field) int {
		if len(a.name) != len(b.name) {
			return len(a.name) - len(b.name)
		}
		return strings.Compare(a.name, b.name)
	})
	for i := range len(fields) - 1 {
		if fields[i].name == fields[i+1].name {
			return "", fmt.Errorf("%s has two fields %q", t, fields[i].name)
		}
	}
	found.fields = fields
	return name, nil
}

// fields returns the fields of a struct in Go's order, with those of embedded structs in place.
func (s structs) fields(t reflect.Type) ([]field, error) {
	var all []field
	for i := range t.NumField() {
		declared := t.Field(i)
		name, _, _ := strings.Cut(declared.Tag.Get("json"), ",")
		var found []field
		var err error
		switch {
		case name != "":
			found, err = s.named(name, declared)
		case declared.Anonymous && declared.Type.Kind() == reflect.Struct:
			found, err = s.embedded(declared)
		default:
			err = fmt.Errorf("no JSON name")
		}
		if err != nil {
			return nil, fmt.Errorf("%s.%s: %w", t, declared.Name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

func (s structs) named(name string, declared reflect.StructField) ([]field, error) {
	number, err := protobufNumber(declared)
	if err != nil {
		return nil, err
	}
	t := declared.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	kind, err := s.kind(t)
	if err != nil {
		return nil, err
	}
	mergeKey, err := mergeKey(declared)
	if err != nil {
		return nil, err
	}
	return []field{{name: name, kind: kind, presence: presence(declared), number: number, mergeKey: mergeKey}}, nil
}

// mergeKey returns the merge key in the tags patchStrategy and patchMergeKey, as the name of a Rust variant.
func mergeKey(declared reflect.StructField) (string, error) {
	key := declared.Tag.Get("patchMergeKey")
	// A patch that replaces a map says itself which keys to retain.
	switch strategy := declared.Tag.Get("patchStrategy"); strategy {
	case "":
		if key != "" {
			return "", fmt.Errorf("the merge key %q without a strategy", key)
		}
		return "", nil
	case "merge", "merge,retainKeys":
		if declared.Type.Kind() != reflect.Slice {
			return "", fmt.Errorf("the table has no form for a patch strategy of %s", declared.Type)
		}
		if key == "" {
			return noKey, nil
		}
		return strings.ToUpper(key[:1]) + key[1:], nil
	default:
		return "", fmt.Errorf("the table has no form for the patch strategy %q", strategy)
	}
}

// embedded returns the fields of an embedded struct. JSON has them among those of the outer
// struct; protobuf has a message for the embedded one.
func (s structs) embedded(declared reflect.StructField) ([]field, error) {
	fields, err := s.fields(declared.Type)
	if err != nil {
		return nil, err
	}
	var message uint8
	// Protobuf has kind and apiVersion in runtime.Unknown, the envelope of an object.
	envelope := declared.Type == typeMeta
	if !envelope {
		if message, err = protobufNumber(declared); err != nil {
			return nil, err
		}
	}
	for i := range fields {
		field := &fields[i]
		switch {
		case field.message != 0 || field.number == 0:
			return nil, fmt.Errorf("%s is embedded twice: the table has no form for that", field.name)
		case envelope && field.presence != omitted:
			return nil, fmt.Errorf("%s is not omitted: the table has no form for that in the envelope", field.name)
		case envelope:
			field.number = 0
		default:
			field.message = message
		}
	}
	return fields, nil
}

// kind returns the Rust kind of a type, and adds the structs that it refers to.
func (s structs) kind(t reflect.Type) (string, error) {
	if kind, ok := scalars[t]; ok {
		return kind, nil
	}
	if reflect.PointerTo(t).Implements(unmarshaler) {
		return "", fmt.Errorf("%s has a JSON form of its own, which the table does not know", t)
	}
	switch t.Kind() {
	case reflect.String:
		return "String", nil
	case reflect.Bool:
		return "Bool", nil
	case reflect.Int32:
		return "Int32", nil
	case reflect.Int64:
		return "Int64", nil
	case reflect.Struct:
		name, err := s.add(t)
		return "Of(&" + name + ")", err
	case reflect.Slice:
		item, err := s.kind(t.Elem())
		return "List(&" + item + ")", err
	case reflect.Map:
		if t.Key().Kind() == reflect.String {
			value, err := s.kind(t.Elem())
			return "Map(&" + value + ")", err
		}
	}
	return "", fmt.Errorf("the table has no kind for %s", t)
}

func presence(declared reflect.StructField) string {
	options := strings.Split(declared.Tag.Get("json"), ",")[1:]
	kind := declared.Type.Kind()
	switch {
	case kind == reflect.Pointer:
		return pointer
	// Go ignores omitempty for a struct.
	case slices.Contains(options, "omitzero"), kind != reflect.Struct && slices.Contains(options, "omitempty"):
		return omitted
	default:
		return always
	}
}

// protobufNumber returns the number in a tag like `protobuf:"bytes,1,opt,name=metadata"`.
func protobufNumber(declared reflect.StructField) (uint8, error) {
	tag := declared.Tag.Get("protobuf")
	parts := strings.Split(tag, ",")
	if len(parts) < 2 {
		return 0, fmt.Errorf("no protobuf field number in the tag %q", tag)
	}
	number, err := strconv.ParseUint(parts[1], 10, 8)
	if err != nil || number == 0 {
		return 0, fmt.Errorf("the protobuf field number in the tag %q is not between 1 and 255", tag)
	}
	return uint8(number), nil
}
