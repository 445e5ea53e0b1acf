// The kubelet's own code, asked one question a line: what would it make of this
// manifest, what would it tell its consumer of these listings?
//
// The questions and the answers are in ../README.md.
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

// A question may hold a manifest of the kubelet's greatest size (10 MiB), escaped.
const longestLine = 64 << 20

type question struct {
	ID json.RawMessage `json:"id,omitempty"`
	Op string          `json:"op"`

	// decode
	Source string `json:"source"`
	Text   string `json:"text"`
	Node   string `json:"node"`

	// merge
	Steps []step `json:"steps"`

	// bench-merge, bench-file; the manifest is the text, the node that of decode
	N      int `json:"n"`
	Rounds int `json:"rounds"`
}

func main() {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	// The kubelet allows it to whoever may write its manifests.
	capabilities.Initialize(capabilities.Capabilities{AllowPrivileged: true})
	if err := answerAll(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

func answerAll(questions io.Reader, answers io.Writer) error {
	lines := bufio.NewScanner(questions)
	lines.Buffer(make([]byte, 64<<10), longestLine)
	out := json.NewEncoder(answers)
	out.SetEscapeHTML(false)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return fmt.Errorf("not a question: %w", err)
		}
		answer, err := answer(&asked)
		if err != nil {
			return err
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

func answer(asked *question) (any, error) {
	switch asked.Op {
	case "decode":
		return decode(asked)
	case "merge":
		return merge(asked)
	case "bench-merge", "bench-file":
		return bench(asked)
	default:
		return nil, fmt.Errorf("unknown op %q", asked.Op)
	}
}
