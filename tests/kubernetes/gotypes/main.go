// gotypes prints the Rust table of the Go types that a pod, and what a client sends with one, consist of.
//
// ../README.md describes the table and how to generate it again.
package main

import (
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// roots are the types that the other Rust modules use, beside those that they refer to.
var roots = []reflect.Type{
	reflect.TypeFor[v1.Pod](),
	reflect.TypeFor[v1.PodList](),
	reflect.TypeFor[metav1.DeleteOptions](),
	reflect.TypeFor[metav1.Status](),
	reflect.TypeFor[authorizationv1.SelfSubjectAccessReviewSpec](),
	reflect.TypeFor[authorizationv1.SelfSubjectRulesReviewSpec](),
}

// modules declare the types in the table.
var modules = []string{"k8s.io/api", "k8s.io/apimachinery"}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gotypes:", err)
		os.Exit(1)
	}
}

func run() error {
	versions, err := versions()
	if err != nil {
		return err
	}
	found := structs{}
	var names []string
	for _, root := range roots {
		name, err := found.add(root)
		if err != nil {
			return err
		}
		names = append(names, name)
	}
	table, err := render(found, names, versions)
	if err != nil {
		return err
	}
	_, err = os.Stdout.WriteString(table)
	return err
}

// versions returns each of the modules with its version, from the build information of this program.
func versions() ([]string, error) {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, fmt.Errorf("no build information: build this program with go build in module mode")
	}
	var versions []string
	for _, module := range modules {
		i := slices.IndexFunc(build.Deps, func(dep *debug.Module) bool { return dep.Path == module })
		if i < 0 {
			return nil, fmt.Errorf("no version of %s in the build information", module)
		}
		dep := build.Deps[i]
		if dep.Replace != nil {
			dep = dep.Replace
		}
		versions = append(versions, dep.Path+" "+dep.Version)
	}
	return versions, nil
}
