package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Longer than a write and its event take on a slow machine.
const workTimeout = time.Minute

// worked is the line on stdout: what the server answered to each request.
type worked struct {
	Created *v1.Pod    `json:"created"`
	Read    *v1.Pod    `json:"read"`
	Updated *v1.Pod    `json:"updated"`
	Listed  v1.PodList `json:"listed"`
	// The types of the events of a watch since before the creation, and the pod of the last one.
	Events []watch.EventType `json:"events"`
	Last   *v1.Pod           `json:"last"`
	// The errors of a second creation, of an update of an old version, of an invalid pod and of a missing pod.
	Exists   metav1.Status `json:"exists"`
	Conflict metav1.Status `json:"conflict"`
	Invalid  metav1.Status `json:"invalid"`
	Missing  metav1.Status `json:"missing"`
}

// workAll works on the pod of each line.
func workAll(client kubernetes.Interface) error {
	out := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var pod v1.Pod
		if err := json.Unmarshal(lines.Bytes(), &pod); err != nil {
			return err
		}
		done, err := work(client.CoreV1().Pods(pod.Namespace), &pod)
		if err != nil {
			return err
		}
		if err := out.Encode(done); err != nil {
			return err
		}
	}
	return lines.Err()
}

// work creates, reads, changes, lists and deletes a pod while it watches.
func work(pods corev1.PodInterface, pod *v1.Pod) (*worked, error) {
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	before, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	events, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: before.ResourceVersion})
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	defer events.Stop()
	var done worked
	if done.Created, err = pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	_, err = pods.Create(ctx, pod, metav1.CreateOptions{})
	done.Exists = status(err)
	if done.Read, err = pods.Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	changed := done.Read.DeepCopy()
	changed.Labels = map[string]string{"changed": "yes"}
	if done.Updated, err = pods.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("update: %w", err)
	}
	_, err = pods.Update(ctx, done.Created, metav1.UpdateOptions{})
	done.Conflict = status(err)
	invalid := pod.DeepCopy()
	invalid.Name, invalid.Spec.Containers[0].Name = "invalid", "UPPER"
	_, err = pods.Create(ctx, invalid, metav1.CreateOptions{})
	done.Invalid = status(err)
	listed, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "changed=yes"})
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	done.Listed = *listed
	now := int64(0)
	options := metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &done.Read.UID}}
	if err := pods.Delete(ctx, pod.Name, options); err != nil {
		return nil, fmt.Errorf("delete: %w", err)
	}
	for len(done.Events) == 0 || done.Events[len(done.Events)-1] != watch.Deleted {
		event, open := <-events.ResultChan()
		if !open {
			return nil, fmt.Errorf("the watch ended after %v", done.Events)
		}
		done.Events = append(done.Events, event.Type)
		done.Last, _ = event.Object.(*v1.Pod)
	}
	_, err = pods.Get(ctx, pod.Name, metav1.GetOptions{})
	done.Missing = status(err)
	return &done, nil
}

// status returns the status of an error that the server has answered.
func status(err error) metav1.Status {
	if answered, ok := err.(errors.APIStatus); ok {
		return answered.Status()
	}
	return metav1.Status{Message: fmt.Sprint(err)}
}
