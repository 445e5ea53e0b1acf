package main

import (
	"context"
	"encoding/json"
	"sort"
	"time"
	_ "unsafe" // for go:linkname

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	_ "k8s.io/kubernetes/pkg/kubelet/config" // for go:linkname
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
)

// step is one listing of a source: all its pods.
type step struct {
	Source string    `json:"source"`
	Pods   []*v1.Pod `json:"pods"`
}

// podUpdate is the form of an update in a response.
type podUpdate struct {
	Op     string   `json:"op"`
	Source string   `json:"source"`
	Pods   []string `json:"pods"`
}

// merged is the response to merge.
type merged struct {
	ID json.RawMessage `json:"id,omitempty"`
	// The updates of each step.
	Steps [][]podUpdate `json:"steps"`
}

// podStorage stands for the kubelet's type of that name. This program only uses pointers to it.
type podStorage struct{}

// sourceUpdate has the same fields as the kubelet's type of that name.
type sourceUpdate struct{ Pods []*v1.Pod }

type sliObserver interface {
	ObservedPodOnWatch(pod *v1.Pod, when time.Time)
}

type noObserver struct{}

func (noObserver) ObservedPodOnWatch(*v1.Pod, time.Time) {}

//go:linkname newPodStorage k8s.io/kubernetes/pkg/kubelet/config.newPodStorage
func newPodStorage(chan<- kubetypes.PodUpdate, record.EventRecorderLogger, sliObserver) *podStorage

//go:linkname mergeInto k8s.io/kubernetes/pkg/kubelet/config.(*podStorage).Merge
func mergeInto(storage *podStorage, ctx context.Context, source string, update sourceUpdate) error

var ops = map[kubetypes.PodOperation]string{
	kubetypes.ADD:       "ADD",
	kubetypes.DELETE:    "DELETE",
	kubetypes.REMOVE:    "REMOVE",
	kubetypes.UPDATE:    "UPDATE",
	kubetypes.RECONCILE: "RECONCILE",
}

// merge merges each listing into a new storage and collects the updates after each.
func merge(req *request) (*merged, error) {
	// One listing causes at most six updates, so that the storage never blocks.
	updates := make(chan kubetypes.PodUpdate, 50)
	storage := newPodStorage(updates, &record.FakeRecorder{}, noObserver{})
	response := &merged{ID: req.ID, Steps: [][]podUpdate{}}
	for _, step := range req.Steps {
		if err := mergeInto(storage, context.Background(), step.Source, sourceUpdate{step.Pods}); err != nil {
			return nil, err
		}
		sent := []podUpdate{}
		for len(updates) > 0 {
			sent = append(sent, summary(<-updates))
		}
		response.Steps = append(response.Steps, sent)
	}
	return response, nil
}

func summary(update kubetypes.PodUpdate) podUpdate {
	pods := []string{}
	for _, pod := range update.Pods {
		pods = append(pods, pod.Namespace+"/"+pod.Name+"/"+string(pod.UID))
	}
	sort.Strings(pods)
	return podUpdate{ops[update.Op], update.Source, pods}
}
