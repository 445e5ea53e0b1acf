// mirror runs client-go's SharedInformer on all pods of a server and prints what its store holds, or works on a pod as
// clients do.
//
// ../README.md describes its flags and its output.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Longer than a first listing takes on a slow machine.
const syncTimeout = 2 * time.Minute

// store is the line on stdout.
type store struct {
	// The pods by namespace and name, as the informer has them.
	Pods map[string]*v1.Pod `json:"pods"`
	// How many events the handler has received.
	Added   int64 `json:"added"`
	Updated int64 `json:"updated"`
	Deleted int64 `json:"deleted"`
	// How often the server has answered with all pods: a list, or a watch that begins with them.
	Lists int64 `json:"lists"`
}

// counted counts the answers with all pods.
type counted struct {
	next  http.RoundTripper
	lists *atomic.Int64
}

func (c counted) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.next.RoundTrip(request)
	query := request.URL.Query()
	all := query.Get("watch") == "" || query.Get("sendInitialEvents") == "true"
	if err == nil && response.StatusCode == http.StatusOK && all && query.Get("continue") == "" {
		c.lists.Add(1)
	}
	return response, err
}

func main() {
	server := flag.String("server", "", "`URL` of the server, without credentials")
	selector := flag.String("selector", "", "label `selector`")
	form := flag.String("form", "", "media `types` that are accepted, and the first of them is sent; client-go's own if empty")
	work := flag.Bool("work", false, "create, read, change and delete a pod for each line, in place of an informer")
	klog.InitFlags(nil)
	flag.Parse()
	var lists atomic.Int64
	wrap := func(next http.RoundTripper) http.RoundTripper { return counted{next, &lists} }
	config := &rest.Config{Host: *server, QPS: -1, WrapTransport: wrap}
	if first, _, _ := strings.Cut(*form, ","); first != "" {
		config.ContentType, config.AcceptContentTypes = first, *form
	}
	run := func(client kubernetes.Interface) error { return mirror(client, *selector, &lists) }
	if *work {
		run = workAll
	}
	client, err := kubernetes.NewForConfig(config)
	if err == nil {
		err = run(client)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mirror:", err)
		os.Exit(1)
	}
}

func mirror(client kubernetes.Interface, selector string, lists *atomic.Int64) error {
	informer := informers.NewFilteredPodInformer(client, metav1.NamespaceAll, 0, cache.Indexers{},
		func(options *metav1.ListOptions) { options.LabelSelector = selector })
	var added, updated, deleted atomic.Int64
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { added.Add(1) },
		UpdateFunc: func(any, any) { updated.Add(1) },
		DeleteFunc: func(any) { deleted.Add(1) },
	})
	if err != nil {
		return err
	}
	go informer.RunWithContext(context.Background())
	ctx, cancel := context.WithTimeout(context.Background(), syncTimeout)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return fmt.Errorf("no listing within %s", syncTimeout)
	}
	out := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		pods := map[string]*v1.Pod{}
		for _, object := range informer.GetStore().List() {
			pod := object.(*v1.Pod)
			pods[pod.Namespace+"/"+pod.Name] = pod
		}
		if err := out.Encode(store{pods, added.Load(), updated.Load(), deleted.Load(), lists.Load()}); err != nil {
			return err
		}
	}
	return nil
}
