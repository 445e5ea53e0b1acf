package main

import (
	"context"
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	registry "k8s.io/kubernetes/pkg/registry/core/pod"
)

// warned is the response to warnings.
type warned struct {
	ID json.RawMessage `json:"id,omitempty"`
	// The number of errors of validation. A pod with errors has no warnings about its fields.
	Errors   int      `json:"errors"`
	Warnings []string `json:"warnings"`
}

// AddWarning records a warning as the handlers of a kube-apiserver do.
func (w *warned) AddWarning(_, text string) { w.Warnings = append(w.Warnings, text) }

// warn returns the warnings of a kube-apiserver that creates a pod: GetWarningsForPod, and those of the strategy.
func warn(req *request) (*warned, error) {
	var given v1.Pod
	if err := json.Unmarshal(req.Pod, &given); err != nil {
		return nil, err
	}
	legacyscheme.Scheme.Default(&given)
	var pod api.Pod
	if err := legacyscheme.Scheme.Convert(&given, &pod, nil); err != nil {
		return nil, err
	}
	response := &warned{ID: req.ID, Warnings: []string{}}
	ctx := warning.WithWarningRecorder(context.Background(), response)
	// It warns of annotations. It also drops the fields of features that are off by default; warnings about them are
	// wanted.
	registry.Strategy.PrepareForCreate(ctx, pod.DeepCopy())
	response.Errors = len(registry.Strategy.Validate(ctx, &pod))
	if response.Errors == 0 {
		for _, text := range registry.Strategy.WarningsOnCreate(ctx, &pod) {
			response.AddWarning("", text)
		}
	}
	return response, nil
}
