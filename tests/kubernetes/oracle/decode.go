package main

import (
	"encoding/json"
	"fmt"
	_ "unsafe" // for go:linkname

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
)

// decoded is the response to decode: a case of tests/corpus/pods.jsonl.gz without its text.
type decoded struct {
	ID    json.RawMessage `json:"id,omitempty"`
	OK    bool            `json:"ok"`
	Stage string          `json:"stage,omitempty"`
	Error string          `json:"error,omitempty"`
	// All problems that validation finds, for the stage "validate".
	Causes []cause   `json:"causes,omitempty"`
	Pods   []*v1.Pod `json:"pods,omitempty"`
}

type cause struct {
	Field  string `json:"field"`
	Reason string `json:"reason"`
	Detail string `json:"detail,omitempty"`
}

//go:linkname tryDecodeSinglePod k8s.io/kubernetes/pkg/kubelet/config.tryDecodeSinglePod
func tryDecodeSinglePod(klog.Logger, []byte, func(klog.Logger, *api.Pod) error) (bool, *v1.Pod, error)

//go:linkname tryDecodePodList k8s.io/kubernetes/pkg/kubelet/config.tryDecodePodList
func tryDecodePodList(klog.Logger, []byte, func(klog.Logger, *api.Pod) error) (bool, v1.PodList, error)

//go:linkname applyDefaults k8s.io/kubernetes/pkg/kubelet/config.applyDefaults
func applyDefaults(logger klog.Logger, pod *api.Pod, source string, isFile bool, node types.NodeName) error

// preparation prepares pods as a source of the kubelet does, and records them.
type preparation struct {
	file bool
	node types.NodeName

	// The pod that was prepared last. If a pod is rejected, it is this one.
	last *api.Pod
	// For each pod, whether its manifest has a UID.
	given []bool
}

func (p *preparation) prepare(logger klog.Logger, pod *api.Pod) error {
	p.last = pod
	p.given = append(p.given, pod.UID != "")
	return applyDefaults(logger, pod, "oracle", p.file, p.node)
}

// decode decodes a text as the kubelet's file source or URL source does.
func decode(req *request) (*decoded, error) {
	if req.Source != "file" && req.Source != "http" {
		return nil, fmt.Errorf("unknown source %q", req.Source)
	}
	source := preparation{file: req.Source == "file", node: types.NodeName(req.Node)}
	logger := klog.Background()
	parsed, pod, err := tryDecodeSinglePod(logger, []byte(req.Text), source.prepare)
	pods := []*v1.Pod{pod}
	if !parsed && !source.file {
		var list v1.PodList
		parsed, list, err = tryDecodePodList(logger, []byte(req.Text), source.prepare)
		pods = pods[:0]
		for i := range list.Items {
			pods = append(pods, &list.Items[i])
		}
	}
	if err != nil {
		return source.rejection(req.ID, parsed, err), nil
	}
	for i, pod := range pods {
		withoutDerived(pod, source.given[i])
	}
	return &decoded{ID: req.ID, OK: true, Pods: pods}, nil
}

// rejection determines the stage at which the kubelet rejected a text, and all problems that validation finds.
// The kubelet itself returns them as one text.
func (p *preparation) rejection(id json.RawMessage, parsed bool, err error) *decoded {
	rejected := &decoded{ID: id, Error: err.Error()}
	switch {
	case !parsed:
		rejected.Stage = "decode"
		return rejected
	case p.last == nil || p.last.Name == "":
		rejected.Stage = "name"
		return rejected
	}
	options := podutil.GetValidationOptionsFromPodSpecAndMeta(&p.last.Spec, nil, &p.last.ObjectMeta, nil)
	problems := validation.ValidatePodCreate(p.last, options)
	if len(problems) == 0 {
		// The stage is also "name" if a later item of a list has no name.
		rejected.Stage = "reference"
		if err.Error() == "invalid pod: name is needed for the pod" {
			rejected.Stage = "name"
		}
		return rejected
	}
	rejected.Stage, rejected.Error = "validate", ""
	for _, problem := range problems {
		rejected.Causes = append(rejected.Causes, cause{problem.Field, string(problem.Type), problem.Detail})
	}
	return rejected
}

// withoutDerived removes the values that each implementation derives in a different way:
// the hash, and a UID that is not in the manifest.
func withoutDerived(pod *v1.Pod, given bool) {
	delete(pod.Annotations, kubetypes.ConfigHashAnnotationKey)
	if len(pod.Annotations) == 0 {
		pod.Annotations = nil
	}
	if !given {
		pod.UID = ""
	}
}
