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
	updatePatience = time.Minute
	// Between two changes, so that each finds the source at rest.
	pause = 5 * time.Millisecond
	// A prime step: no two changes in a row are neighbours, and all pods have their turn.
	stride = 7919
	// A directory is read anew every 20 s by default; that is not what is measured.
	fileCheckPeriod = time.Hour
)

// figures is the answer to a benchmark.
type figures struct {
	ID  json.RawMessage `json:"id,omitempty"`
	P50 int64           `json:"p50_ns"`
	P99 int64           `json:"p99_ns"`
}

func figuresOf(id json.RawMessage, durations []time.Duration) *figures {
	slices.Sort(durations)
	at := func(part int) int64 { return durations[min(len(durations)*part/100, len(durations)-1)].Nanoseconds() }
	return &figures{id, at(50), at(99)}
}

func bench(asked *question) (*figures, error) {
	if asked.N < 1 || asked.Rounds < 1 {
		return nil, fmt.Errorf("%s: of %d pods, %d times", asked.Op, asked.N, asked.Rounds)
	}
	if asked.Op == "bench-merge" {
		return benchMerge(asked)
	}
	return benchFile(asked)
}

// benchMerge is how long it takes from a source's listing, in which one of n
// pods has another image, to the update on the channel.
func benchMerge(asked *question) (*figures, error) {
	source := preparing{file: true, node: types.NodeName(asked.Node)}
	_, template, err := tryDecodeSinglePod(klog.Background(), []byte(asked.Text), source.prepare)
	if err != nil {
		return nil, err
	}
	pods := make([]*v1.Pod, asked.N)
	for i := range pods {
		pods[i] = template.DeepCopy()
		pods[i].Name, pods[i].UID = name(i), types.UID(name(i))
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	podConfig := config.NewPodConfig(&record.FakeRecorder{}, noObserver{})
	channel := podConfig.Channel(ctx, kubetypes.FileSource)
	push(channel, pods)
	if _, err := next(podConfig, kubetypes.ADD); err != nil {
		return nil, err
	}
	durations := make([]time.Duration, asked.Rounds)
	for round := range durations {
		// As a source's store does it: a new pod in a new listing of the old ones.
		i := round * stride % asked.N
		pods = slices.Clone(pods)
		pods[i] = pods[i].DeepCopy()
		pods[i].Spec.Containers[0].Image = fmt.Sprintf("image:%d", round)
		begin := time.Now()
		push(channel, pods)
		if _, err := next(podConfig, kubetypes.UPDATE); err != nil {
			return nil, err
		}
		durations[round] = time.Since(begin)
	}
	return figuresOf(asked.ID, durations), nil
}

// benchFile is how long it takes from rename(2) of a changed manifest into a
// directory of n to the update on the channel.
func benchFile(asked *question) (*figures, error) {
	place, err := os.MkdirTemp("", "oracle-")
	if err != nil {
		return nil, err
	}
	// The source has no end; without its directory it has nothing to do.
	defer os.RemoveAll(place)
	directory, staged := filepath.Join(place, "manifests"), filepath.Join(place, "staged")
	if err := os.Mkdir(directory, 0o700); err != nil {
		return nil, err
	}
	path := func(i int) string { return filepath.Join(directory, name(i)+".json") }
	for i := range asked.N {
		if err := asked.writeManifest(path(i), i, 0); err != nil {
			return nil, err
		}
	}
	podConfig := config.NewPodConfig(&record.FakeRecorder{}, noObserver{})
	config.NewSourceFile(klog.Background(), directory, types.NodeName(asked.Node), fileCheckPeriod,
		podConfig.Channel(context.Background(), kubetypes.FileSource))
	if _, err := next(podConfig, kubetypes.ADD); err != nil {
		return nil, err
	}
	durations := make([]time.Duration, asked.Rounds)
	for round := range durations {
		time.Sleep(pause)
		i := round * stride % asked.N
		if err := asked.writeManifest(staged, i, round+1); err != nil {
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
		if len(update.Pods) != 1 || update.Pods[0].Name != name(i)+"-"+asked.Node {
			return nil, fmt.Errorf("not the update of %s: %d pods", name(i), len(update.Pods))
		}
	}
	return figuresOf(asked.ID, durations), nil
}

// push sends a listing: the channel's type has no name outside of the kubelet's package.
func push[T ~struct{ Pods []*v1.Pod }](channel chan<- T, pods []*v1.Pod) {
	channel <- T{Pods: pods}
}

// next waits for the next update of that kind; one without pods only says that the source is there.
func next(podConfig *config.PodConfig, op kubetypes.PodOperation) (kubetypes.PodUpdate, error) {
	for {
		select {
		case update := <-podConfig.Updates():
			if update.Op == op {
				return update, nil
			}
			if len(update.Pods) > 0 {
				return update, fmt.Errorf("%s of %d pods, where %s belongs", ops[update.Op], len(update.Pods), ops[op])
			}
		case <-time.After(updatePatience):
			return kubetypes.PodUpdate{}, fmt.Errorf("no %s after %s", ops[op], updatePatience)
		}
	}
}

func name(i int) string { return fmt.Sprintf("pod-%05d", i) }

// writeManifest writes the i-th copy of the question's manifest, which differs from round to round.
func (q *question) writeManifest(path string, i, round int) error {
	var manifest v1.Pod
	if err := json.Unmarshal([]byte(q.Text), &manifest); err != nil {
		return err
	}
	// The kubelet makes a UID of all that a manifest says: a change would be another pod.
	manifest.Name, manifest.UID = name(i), types.UID(name(i))
	manifest.Spec.Containers[0].Image = fmt.Sprintf("image:%d", round)
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
