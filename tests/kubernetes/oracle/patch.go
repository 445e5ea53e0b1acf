package main

import (
	"encoding/json"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// patched is the response to patch: the patched pod, or the error.
type patched struct {
	ID    json.RawMessage `json:"id,omitempty"`
	Pod   json.RawMessage `json:"pod,omitempty"`
	Error string          `json:"error,omitempty"`
}

// patch applies a patch of a type to a pod, with the code of a kube-apiserver.
func patch(req *request) (*patched, error) {
	pod, err := applyPatch(types.PatchType(req.Type), req.Pod, req.Patch)
	if err != nil {
		return &patched{ID: req.ID, Error: err.Error()}, nil
	}
	return &patched{ID: req.ID, Pod: pod}, nil
}

// applyPatch returns the patched pod. The code panics for some patches; a kube-apiserver answers these with 500.
func applyPatch(kind types.PatchType, pod, patch []byte) (result []byte, err error) {
	defer func() {
		if why := recover(); why != nil {
			err = fmt.Errorf("panic: %v", why)
		}
	}()
	switch kind {
	case types.JSONPatchType:
		operations, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, err
		}
		return operations.Apply(pod)
	case types.MergePatchType:
		return jsonpatch.MergePatch(pod, patch)
	case types.StrategicMergePatchType:
		return strategicpatch.StrategicMergePatch(pod, patch, v1.Pod{})
	default:
		return nil, fmt.Errorf("unknown type of patch %q", kind)
	}
}
