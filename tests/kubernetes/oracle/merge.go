package main

import (
	"context"
	"encoding/json"
	"sort"
	"time"
	_ "unsafe" // for go:linkname

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	_ "k8s.io/kubernetes/pkg/kubelet/config" // its functions are reached by go:linkname
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
)

// step is one listing of a source: everything it wants now.
type step struct {
	Source string    `json:"source"`
	Pods   []*v1.Pod `json:"pods"`
}

// told is one update, for reading.
type told struct {
	Op     string   `json:"op"`
	Source string   `json:"source"`
	Pods   []string `json:"pods"`
}

type merged struct {
	ID json.RawMessage `json:"id,omitempty"`
	// For each step, its updates.
	Steps [][]told `json:"steps"`
}

// podStorage is the kubelet's own; what it is made of is its business.
type podStorage struct{}

// sourceUpdate has the fields of the kubelet's own.
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

// merge gives each listing of a history to a fresh storage and collects what it
// tells after each. One merge sends at most six updates, far below the queue's length.
func merge(asked *question) (*merged, error) {
	updates := make(chan kubetypes.PodUpdate, 50)
	storage := newPodStorage(updates, &record.FakeRecorder{}, noObserver{})
	answer := &merged{ID: asked.ID, Steps: [][]told{}}
	for _, step := range asked.Steps {
		if err := mergeInto(storage, context.Background(), step.Source, sourceUpdate{step.Pods}); err != nil {
			return nil, err
		}
		lines := []told{}
		for len(updates) > 0 {
			lines = append(lines, line(<-updates))
		}
		answer.Steps = append(answer.Steps, lines)
	}
	return answer, nil
}

func line(update kubetypes.PodUpdate) told {
	pods := []string{}
	for _, pod := range update.Pods {
		pods = append(pods, pod.Namespace+"/"+pod.Name+"/"+string(pod.UID))
	}
	sort.Strings(pods)
	return told{ops[update.Op], update.Source, pods}
}
