// client-go's SharedInformer on the pods of one node, once: how long it takes
// until all of them are known, and how much memory. Each measurement is a process
// of its own, so that the peak is that of this one thing.
//
// What it takes and prints is in ../README.md.
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
	patience = 2 * time.Minute
	// A closer look than client-go's own WaitForCacheSync takes, which is ten a second.
	lookEvery = time.Millisecond
)

// synced is the one line on stdout.
type synced struct {
	Pods    int64   `json:"pods"`
	Seconds float64 `json:"seconds"`
	// The most memory that the process had until then.
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
	node := flag.String("node", "node1", "`name` of the node whose pods are wanted")
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
		return fmt.Errorf("--form is json or protobuf, not %q", *form)
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

// sync runs an informer until its handler has been told of all pods, and says how many.
func sync(client kubernetes.Interface, node string) (int64, error) {
	selected := fields.OneTermEqualSelector("spec.nodeName", node).String()
	informer := informers.NewFilteredPodInformer(client, metav1.NamespaceAll, 0, cache.Indexers{},
		func(options *metav1.ListOptions) { options.FieldSelector = selected })
	var pods atomic.Int64
	told, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { pods.Add(1) },
	})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	go informer.RunWithContext(ctx)
	for !told.HasSynced() {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("no listing after %s", patience)
		case <-time.After(lookEvery):
		}
	}
	return pods.Load(), nil
}

// peakRSS is the kernel's count, in KiB.
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
	return 0, fmt.Errorf("/proc/self/status says no VmHWM")
}
