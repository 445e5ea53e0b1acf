package main

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// The longest search for an order. It takes milliseconds unless the history has none.
const searchTime = time.Minute

// How many operations of the longest order a response has.
const shownSteps = 12

// operation is one operation on the pods, with its answer.
type operation struct {
	Client int `json:"client"`
	// When it began and ended, in nanoseconds. One without an answer ends with the process that it was sent to.
	Call   int64  `json:"call"`
	Return int64  `json:"return"`
	Verb   string `json:"verb"`
	// The name of the pod.
	Name string `json:"name"`
	// What a create or a replacement puts into the pod, or what a patch adds.
	Write string `json:"write"`
	// The precondition: the UID, and the content of the pod when it had the resourceVersion of the request.
	IfUID     string   `json:"if_uid"`
	IfContent *content `json:"if_content"`
	// The HTTP status; 0 if there was no answer.
	Code   int    `json:"code"`
	Reason string `json:"reason"`
	// The pods of the answer, by name.
	Pods map[string]pod `json:"pods"`
	// The resourceVersion of a list.
	Version uint64 `json:"version"`
	index   int
}

// content tells the states of a pod apart: what the last create or replacement put into it, and the last patch since.
type content struct {
	Base  string `json:"base"`
	Patch string `json:"patch"`
}

// pod is a pod as it was read. In a state the UID is empty while it is not known, and the version is the highest one
// of any read or write of the name.
type pod struct {
	content
	UID     string `json:"uid"`
	Version uint64 `json:"version"`
}

// exists says whether there is a pod of the name.
func (p pod) exists() bool { return p.Base != "" }

// store is a state: what each name has, by its index, and the highest versions of writes and of lists.
type store struct {
	pods            [8]pod
	written, listed uint64
}

// judgement is the response to linearizable.
type judgement struct {
	ID json.RawMessage `json:"id,omitempty"`
	// Ok, Illegal or Unknown.
	Result porcupine.CheckResult `json:"result"`
	// The end of the longest order that was found, and the first operation to end that has no place in it.
	Order []int `json:"order"`
	Next  *int  `json:"next"`
}

// linearizable looks for an order of the operations in which each answer is true.
func linearizable(req *request) (*judgement, error) {
	names := map[string]int{}
	history := make([]porcupine.Operation, len(req.History))
	for i := range req.History {
		op := &req.History[i]
		op.index = i
		if _, known := names[op.Name]; !known && op.Name != "" {
			names[op.Name] = len(names)
		}
		history[i] = porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Call, Return: op.Return}
	}
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{store{}} },
		Step: func(state, input, _ any) []any { return after(state.(store), input.(*operation), names) },
	}
	result, info := porcupine.CheckOperationsVerbose(model.ToModel(), history, searchTime)
	response := &judgement{ID: req.ID, Result: result, Order: []int{}}
	if result != porcupine.Ok {
		response.explain(req.History, info)
	}
	return response, nil
}

func (j *judgement) explain(history []operation, info porcupine.LinearizationInfo) {
	var longest []int
	for _, partial := range info.PartialLinearizations()[0] {
		if len(partial) > len(longest) {
			longest = partial
		}
	}
	for i, op := range history {
		if !slices.Contains(longest, i) && (j.Next == nil || op.Return < history[*j.Next].Return) {
			j.Next = &history[i].index
		}
	}
	j.Order = append(j.Order, longest[max(0, len(longest)-shownSteps):]...)
}

// after returns the possible states after an operation; none if its answer is not true in this one.
func after(s store, op *operation, names map[string]int) []any {
	if op.Verb == "list" {
		return one(s.list(op, names))
	}
	name := names[op.Name]
	switch {
	case op.Code == 0:
		// It was performed or not.
		next, possible := s.write(op, name, nil)
		if possible {
			return []any{s, next}
		}
		return one(s, true)
	case op.Code == 503:
		return one(s, true)
	case op.Code >= 400:
		return one(s, s.rejects(op, s.pods[name]))
	case op.Verb == "get":
		return one(s.read(name, op.Pods[op.Name]))
	default:
		answer := op.Pods[op.Name]
		return one(s.write(op, name, &answer))
	}
}

func one(s store, possible bool) []any {
	if possible {
		return []any{s}
	}
	return nil
}

// rejects says whether a pod is a reason for the error.
func (s store) rejects(op *operation, p pod) bool {
	switch {
	case op.Code == 404:
		return op.Verb != "create" && !p.exists()
	case op.Reason == "AlreadyExists":
		return op.Verb == "create" && p.exists()
	case op.Reason == "Conflict":
		// A patch without a precondition gives up if other writes overtake it.
		// A UID that is not known yet, of a creation without an answer, may be another one.
		isOther := !op.allowed(p) || (op.IfUID != "" && p.UID == "")
		return (op.Verb == "patch" && op.IfContent == nil) || (p.exists() && isOther)
	default:
		return false
	}
}

// allowed says whether a pod meets the preconditions.
func (op *operation) allowed(p pod) bool {
	uid := op.IfUID == "" || p.UID == "" || op.IfUID == p.UID
	return uid && (op.IfContent == nil || *op.IfContent == p.content)
}

// write performs a write, if it is possible here and its answer, if there is one, is true. The versions of writes grow.
func (s store) write(op *operation, name int, answer *pod) (store, bool) {
	before := s.pods[name]
	if before.exists() == (op.Verb == "create") || (op.Verb != "create" && !op.allowed(before)) {
		return s, false
	}
	next := before
	switch op.Verb {
	case "create":
		next.content, next.UID = content{Base: op.Write}, ""
	case "replace":
		next.content = content{Base: op.Write}
	case "patch":
		next.Patch = op.Write
	}
	if answer != nil {
		if answer.content != next.content || (next.UID != "" && answer.UID != next.UID) || answer.Version <= s.written {
			return s, false
		}
		s.written, next.UID = answer.Version, answer.UID
		// A read may have had a higher number before: that of an event while this write waited for the disk.
		next.Version = max(next.Version, answer.Version)
	}
	if op.Verb == "delete" {
		next.content, next.UID = content{}, ""
	}
	s.pods[name] = next
	return s, true
}

// read says whether a pod is what is read of a name. Its versions never go back.
func (s store) read(name int, seen pod) (store, bool) {
	is := s.pods[name]
	possible := is.content == seen.content && is.exists() && (is.UID == "" || is.UID == seen.UID) && seen.Version >= is.Version
	s.pods[name] = seen
	return s, possible
}

// list says whether a list has all pods, and a version that is not below those of earlier lists and of its pods.
func (s store) list(op *operation, names map[string]int) (store, bool) {
	for text, name := range names {
		seen, listed := op.Pods[text]
		if listed != s.pods[name].exists() {
			return s, false
		}
		if listed {
			next, possible := s.read(name, seen)
			if !possible || seen.Version > op.Version {
				return s, false
			}
			s = next
		}
	}
	possible := op.Version >= s.listed
	s.listed = op.Version
	return s, possible
}
