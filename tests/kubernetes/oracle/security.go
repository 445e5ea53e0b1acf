package main

import (
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// judged is the response to pod-security: a case of tests/corpus/pod_security.jsonl.gz without its pod. A
// violation is empty if the level allows the pod.
type judged struct {
	ID         json.RawMessage `json:"id,omitempty"`
	Baseline   string          `json:"baseline"`
	Restricted string          `json:"restricted"`
}

// judge evaluates the latest version of the Pod Security Standards, as the admission of a kube-apiserver does.
func judge(req *request) (*judged, error) {
	var pod v1.Pod
	if err := json.Unmarshal(req.Pod, &pod); err != nil {
		return nil, err
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, err
	}
	violation := func(level api.Level) string {
		latest := api.LevelVersion{Level: level, Version: api.LatestVersion()}
		result := policy.AggregateCheckResults(evaluator.EvaluatePod(latest, &pod.ObjectMeta, &pod.Spec))
		return result.ForbiddenDetail()
	}
	return &judged{ID: req.ID, Baseline: violation(api.LevelBaseline), Restricted: violation(api.LevelRestricted)}, nil
}
