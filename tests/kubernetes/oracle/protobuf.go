package main

import (
	"encoding/json"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// converted is the response to protobuf: the pod in both forms, or why Go cannot read it.
type converted struct {
	ID       json.RawMessage `json:"id,omitempty"`
	Pod      *v1.Pod         `json:"pod,omitempty"`
	Protobuf []byte          `json:"protobuf,omitempty"`
	Error    string          `json:"error,omitempty"`
}

// convert converts a pod from JSON to protobuf, or from protobuf to JSON, with the codecs of clients and servers.
func convert(req *request) (*converted, error) {
	codec := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	pod := &v1.Pod{}
	if req.Protobuf != nil {
		if _, _, err := codec.Decode(req.Protobuf, nil, pod); err != nil {
			return &converted{ID: req.ID, Error: err.Error()}, nil
		}
	} else if err := json.Unmarshal(req.Pod, pod); err != nil {
		return &converted{ID: req.ID, Error: err.Error()}, nil
	}
	// What cannot be written as JSON is not read by clients of JSON. Go copies fieldsV1, so that it may not be UTF-8.
	if text, err := json.Marshal(pod); err != nil {
		return &converted{ID: req.ID, Error: err.Error()}, nil
	} else if !utf8.Valid(text) {
		return &converted{ID: req.ID, Error: "the JSON is not UTF-8"}, nil
	}
	pod.APIVersion, pod.Kind = "v1", "Pod"
	data, err := runtime.Encode(codec, pod)
	if err != nil {
		return nil, err
	}
	return &converted{ID: req.ID, Pod: pod, Protobuf: data}, nil
}
