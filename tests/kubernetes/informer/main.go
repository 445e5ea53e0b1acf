// informer measures the time and memory that client-go's SharedInformer needs for the first sync of one node's pods.
// Each measurement is a separate process, so that the peak of the memory has no other cause.
//
// ../README.md describes its flags and its output.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// Longer than any listing takes on a slow machine.
	syncTimeout = 2 * time.Minute
	// client-go's WaitForCacheSync polls every 100 ms, which is too coarse here.
	pollInterval = time.Millisecond
)

// synced is the line on stdout.
type synced struct {
	Pods    int64   `json:"pods"`
	Seconds float64 `json:"seconds"`
	// The peak of the process's resident memory.
	RSS int64 `json:"rss_kib"`
}

func main() {
	if err := measure(); err != nil {
		fmt.Fprintln(os.Stderr, "informer:", err)
		os.Exit(1)
	}
}

func measure() error {
	begin := time.Now()
	kubeconfig := flag.String("kubeconfig", "", "`path` of the kubeconfig")
	node := flag.String("node", "node1", "`name` of the node whose pods are listed")
	form := flag.String("form", "json", "`json` or protobuf")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	switch *form {
	case "json":
		config.ContentType = runtime.ContentTypeJSON
	case "protobuf":
		config.ContentType = runtime.ContentTypeProtobuf
	default:
		return fmt.Errorf("--form must be json or protobuf, not %q", *form)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	pods, err := sync(client, *node)
	if err != nil {
		return err
	}
	seconds := time.Since(begin).Seconds()
	peak, err := peakRSS()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(synced{pods, seconds, peak})
}

// sync runs an informer until its handler has received all pods, and returns their count.
func sync(client kubernetes.Interface, node string) (int64, error) {
	selected := fields.OneTermEqualSelector("spec.nodeName", node).String()
	informer := informers.NewFilteredPodInformer(client, metav1.NamespaceAll, 0, cache.Indexers{},
		func(options *metav1.ListOptions) { options.FieldSelector = selected })
	var pods atomic.Int64
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { pods.Add(1) },
	})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), syncTimeout)
	defer cancel()
	go informer.RunWithContext(ctx)
	for !registration.HasSynced() {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("no listing within %s", syncTimeout)
		case <-time.After(pollInterval):
		}
	}
	return pods.Load(), nil
}

// peakRSS returns VmHWM, the peak of the resident memory, in KiB.
func peakRSS() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			return strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		}
	}
	return 0, fmt.Errorf("no VmHWM in /proc/self/status")
}
