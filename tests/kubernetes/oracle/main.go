// oracle runs Kubernetes' own code: for each request, one line, it prints the kubelet's result for a manifest
// or for a sequence of listings, the verdict of the Pod Security Standards or the warnings about a pod, or a patched pod.
// It also judges with Porcupine whether a history of operations on podmux is linearizable.
//
// ../README.md describes the requests and the responses.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/capabilities"
)

// A request may contain a manifest of the kubelet's maximum size (10 MiB), escaped.
const maxLine = 64 << 20

type request struct {
	ID json.RawMessage `json:"id,omitempty"`
	Op string          `json:"op"`

	// decode
	Source string `json:"source"`
	Text   string `json:"text"`
	Node   string `json:"node"`

	// merge
	Steps []step `json:"steps"`

	// pod-security, warnings, patch, protobuf
	Pod json.RawMessage `json:"pod"`
	// protobuf
	Protobuf []byte `json:"protobuf"`

	// patch
	Type  string          `json:"type"`
	Patch json.RawMessage `json:"patch"`

	// linearizable
	History []operation `json:"history"`

	// bench-merge, bench-file; the manifest is Text
	N      int `json:"n"`
	Rounds int `json:"rounds"`
}

func main() {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	// The kubelet allows privileged pods.
	capabilities.Initialize(capabilities.Capabilities{AllowPrivileged: true})
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

func serve(requests io.Reader, responses io.Writer) error {
	lines := bufio.NewScanner(requests)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	out := json.NewEncoder(responses)
	out.SetEscapeHTML(false)
	for lines.Scan() {
		var req request
		if err := json.Unmarshal(lines.Bytes(), &req); err != nil {
			return fmt.Errorf("invalid request: %w", err)
		}
		response, err := respond(&req)
		if err != nil {
			return err
		}
		if err := out.Encode(response); err != nil {
			return err
		}
	}
	return lines.Err()
}

func respond(req *request) (any, error) {
	switch req.Op {
	case "decode":
		return decode(req)
	case "merge":
		return merge(req)
	case "pod-security":
		return judge(req)
	case "warnings":
		return warn(req)
	case "patch":
		return patch(req)
	case "protobuf":
		return convert(req)
	case "linearizable":
		return linearizable(req)
	case "bench-merge", "bench-file":
		return bench(req)
	default:
		return nil, fmt.Errorf("unknown op %q", req.Op)
	}
}
