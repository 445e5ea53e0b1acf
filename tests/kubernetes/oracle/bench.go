package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/config"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
)

const (
	// Longer than any update takes.
	updateTimeout = time.Minute
	// The time between two changes, so that the source is idle at each change.
	pause = 5 * time.Millisecond
	// A prime, so that successive changes are far apart and all pods change in turn.
	stride = 7919
	// The kubelet rescans its directory every 20 s by default. The benchmark measures the watch, not the rescan.
	fileCheckPeriod = time.Hour
)

// percentiles is the response to a benchmark.
type percentiles struct {
	ID  json.RawMessage `json:"id,omitempty"`
	P50 int64           `json:"p50_ns"`
	P99 int64           `json:"p99_ns"`
}

func percentilesOf(id json.RawMessage, durations []time.Duration) *percentiles {
	slices.Sort(durations)
	at := func(part int) int64 { return durations[min(len(durations)*part/100, len(durations)-1)].Nanoseconds() }
	return &percentiles{id, at(50), at(99)}
}

func bench(req *request) (*percentiles, error) {
	if req.N < 1 || req.Rounds < 1 {
		return nil, fmt.Errorf("%s: n and rounds must be at least 1, not %d and %d", req.Op, req.N, req.Rounds)
	}
	if req.Op == "bench-merge" {
		return benchMerge(req)
	}
	return benchFile(req)
}

// benchMerge measures the time from a source's listing, in which one of n pods
// has a new image, to the update on the channel.
func benchMerge(req *request) (*percentiles, error) {
	source := preparation{file: true, node: types.NodeName(req.Node)}
	_, template, err := tryDecodeSinglePod(klog.Background(), []byte(req.Text), source.prepare)
	if err != nil {
		return nil, err
	}
	pods := make([]*v1.Pod, req.N)
	for i := range pods {
		pods[i] = template.DeepCopy()
		pods[i].Name, pods[i].UID = name(i), types.UID(name(i))
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	podConfig := config.NewPodConfig(&record.FakeRecorder{}, noObserver{})
	channel := podConfig.Channel(ctx, kubetypes.FileSource)
	publish(channel, pods)
	if _, err := next(podConfig, kubetypes.ADD); err != nil {
		return nil, err
	}
	durations := make([]time.Duration, req.Rounds)
	for round := range durations {
		// Like the store of a source: a new listing with one new pod; the others are the same objects.
		i := round * stride % req.N
		pods = slices.Clone(pods)
		pods[i] = pods[i].DeepCopy()
		pods[i].Spec.Containers[0].Image = fmt.Sprintf("image:%d", round)
		begin := time.Now()
		publish(channel, pods)
		if _, err := next(podConfig, kubetypes.UPDATE); err != nil {
			return nil, err
		}
		durations[round] = time.Since(begin)
	}
	return percentilesOf(req.ID, durations), nil
}

// benchFile measures the time from rename(2) of a changed manifest into a
// directory of n manifests to the update on the channel.
func benchFile(req *request) (*percentiles, error) {
	temporary, err := os.MkdirTemp("", "oracle-")
	if err != nil {
		return nil, err
	}
	// The source cannot be stopped; without its directory it is idle.
	defer os.RemoveAll(temporary)
	directory, staged := filepath.Join(temporary, "manifests"), filepath.Join(temporary, "staged")
	if err := os.Mkdir(directory, 0o700); err != nil {
		return nil, err
	}
	path := func(i int) string { return filepath.Join(directory, name(i)+".json") }
	for i := range req.N {
		if err := req.writeManifest(path(i), i, 0); err != nil {
			return nil, err
		}
	}
	podConfig := config.NewPodConfig(&record.FakeRecorder{}, noObserver{})
	config.NewSourceFile(klog.Background(), directory, types.NodeName(req.Node), fileCheckPeriod,
		podConfig.Channel(context.Background(), kubetypes.FileSource))
	if _, err := next(podConfig, kubetypes.ADD); err != nil {
		return nil, err
	}
	durations := make([]time.Duration, req.Rounds)
	for round := range durations {
		time.Sleep(pause)
		i := round * stride % req.N
		if err := req.writeManifest(staged, i, round+1); err != nil {
			return nil, err
		}
		begin := time.Now()
		if err := os.Rename(staged, path(i)); err != nil {
			return nil, err
		}
		update, err := next(podConfig, kubetypes.UPDATE)
		if err != nil {
			return nil, err
		}
		durations[round] = time.Since(begin)
		if len(update.Pods) != 1 || update.Pods[0].Name != name(i)+"-"+req.Node {
			return nil, fmt.Errorf("expected one update of %s, got one of %d pods", name(i), len(update.Pods))
		}
	}
	return percentilesOf(req.ID, durations), nil
}

// publish sends a listing. It is generic because the kubelet's package does not export the channel's type.
func publish[T ~struct{ Pods []*v1.Pod }](channel chan<- T, pods []*v1.Pod) {
	channel <- T{Pods: pods}
}

// next waits for the next update with this operation. It skips updates without pods, which only mark a source as synced.
func next(podConfig *config.PodConfig, op kubetypes.PodOperation) (kubetypes.PodUpdate, error) {
	for {
		select {
		case update := <-podConfig.Updates():
			if update.Op == op {
				return update, nil
			}
			if len(update.Pods) > 0 {
				return update, fmt.Errorf("expected %s, got %s of %d pods", ops[op], ops[update.Op], len(update.Pods))
			}
		case <-time.After(updateTimeout):
			return kubetypes.PodUpdate{}, fmt.Errorf("no %s within %s", ops[op], updateTimeout)
		}
	}
}

func name(i int) string { return fmt.Sprintf("pod-%05d", i) }

// writeManifest writes the i-th copy of the request's manifest, with the image of a round.
func (r *request) writeManifest(path string, i, round int) error {
	var manifest v1.Pod
	if err := json.Unmarshal([]byte(r.Text), &manifest); err != nil {
		return err
	}
	// Without a UID in the manifest the kubelet derives one from the content: a change would be another pod.
	manifest.Name, manifest.UID = name(i), types.UID(name(i))
	manifest.Spec.Containers[0].Image = fmt.Sprintf("image:%d", round)
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
