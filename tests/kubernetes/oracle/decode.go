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

// verdict is one case of tests/corpus/pods.jsonl.gz, without its text.
type verdict struct {
	ID    json.RawMessage `json:"id,omitempty"`
	OK    bool            `json:"ok"`
	Stage string          `json:"stage,omitempty"`
	Error string          `json:"error,omitempty"`
	// All problems that validation sees, with the stage "validate".
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

// preparing stands in for a source: it prepares as the source does, and
// remembers what it saw on the way.
type preparing struct {
	file bool
	node types.NodeName

	// The pod that was prepared last: the one that is refused, if one is.
	last *api.Pod
	// For each pod whether its manifest gave it a UID.
	given []bool
}

func (p *preparing) prepare(logger klog.Logger, pod *api.Pod) error {
	p.last = pod
	p.given = append(p.given, pod.UID != "")
	return applyDefaults(logger, pod, "oracle", p.file, p.node)
}

// decode reads a text as the kubelet's file source or polled URL does.
func decode(asked *question) (*verdict, error) {
	if asked.Source != "file" && asked.Source != "http" {
		return nil, fmt.Errorf("unknown source %q", asked.Source)
	}
	source := preparing{file: asked.Source == "file", node: types.NodeName(asked.Node)}
	logger := klog.Background()
	parsed, pod, err := tryDecodeSinglePod(logger, []byte(asked.Text), source.prepare)
	pods := []*v1.Pod{pod}
	if !parsed && !source.file {
		var list v1.PodList
		parsed, list, err = tryDecodePodList(logger, []byte(asked.Text), source.prepare)
		pods = pods[:0]
		for i := range list.Items {
			pods = append(pods, &list.Items[i])
		}
	}
	if err != nil {
		return source.refusal(asked.ID, parsed, err), nil
	}
	for i, pod := range pods {
		withoutDerived(pod, source.given[i])
	}
	return &verdict{ID: asked.ID, OK: true, Pods: pods}, nil
}

// refusal finds out at which stage a text was refused, and all that validation
// has against it: the kubelet only tells that in prose.
func (p *preparing) refusal(id json.RawMessage, parsed bool, err error) *verdict {
	refused := &verdict{ID: id, Error: err.Error()}
	switch {
	case !parsed:
		refused.Stage = "decode"
		return refused
	case p.last == nil || p.last.Name == "":
		refused.Stage = "name"
		return refused
	}
	options := podutil.GetValidationOptionsFromPodSpecAndMeta(&p.last.Spec, nil, &p.last.ObjectMeta, nil)
	problems := validation.ValidatePodCreate(p.last, options)
	if len(problems) == 0 {
		// A list in which a later item has no name ends here as well.
		refused.Stage = "reference"
		if err.Error() == "invalid pod: name is needed for the pod" {
			refused.Stage = "name"
		}
		return refused
	}
	refused.Stage, refused.Error = "validate", ""
	for _, problem := range problems {
		refused.Causes = append(refused.Causes, cause{problem.Field, string(problem.Type), problem.Detail})
	}
	return refused
}

// withoutDerived takes away what each implementation derives in its own way:
// the hash, and a UID that the manifest did not give.
func withoutDerived(pod *v1.Pod, given bool) {
	delete(pod.Annotations, kubetypes.ConfigHashAnnotationKey)
	if len(pod.Annotations) == 0 {
		pod.Annotations = nil
	}
	if !given {
		pod.UID = ""
	}
}
