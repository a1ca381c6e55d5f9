package netlist

import (
	"encoding/json"
	"fmt"

	"github.com/cnibox/cnibox/internal/rawjson"
)

// edited is a configuration whose members are changed until the first error.
type edited struct {
	conf json.RawMessage
	err  error
}

func (e *edited) set(name string, v any) {
	if e.err != nil {
		return
	}
	raw, err := json.Marshal(v)
	if err == nil {
		raw, err = rawjson.Set(e.conf, name, raw)
	}
	e.took(raw, name, err)
}

func (e *edited) remove(name string) {
	if e.err != nil {
		return
	}
	raw, err := rawjson.Remove(e.conf, name)
	e.took(raw, name, err)
}

func (e *edited) took(conf json.RawMessage, name string, err error) {
	if err != nil {
		e.err = fmt.Errorf("%s: %w", name, err)
		return
	}
	e.conf = conf
}

// mergeArgs merges an object into args.cni.
func (e *edited) mergeArgs(cni json.RawMessage) {
	if e.err != nil {
		return
	}
	conf, err := mergedArgs(e.conf, cni)
	e.took(conf, "args.cni", err)
}

func mergedArgs(conf, cni json.RawMessage) (json.RawMessage, error) {
	args, err := objectOf(conf, "args")
	if err != nil {
		return nil, err
	}
	merged, err := objectOf(args, "cni")
	if err != nil {
		return nil, err
	}
	members, err := rawjson.Members(cni)
	for i := 0; err == nil && i < len(members); i++ {
		merged, err = rawjson.Set(merged, members[i].Name, members[i].Value)
	}
	if err != nil {
		return nil, err
	}
	if args, err = rawjson.Set(args, "cni", merged); err != nil {
		return nil, err
	}
	return rawjson.Set(conf, "args", args)
}

// objectOf returns a member that is an object, or an empty object.
func objectOf(object json.RawMessage, name string) (json.RawMessage, error) {
	v, err := rawjson.Get(object, name)
	if err == nil && (len(v) == 0 || string(v) == "null") {
		v = json.RawMessage("{}")
	}
	return v, err
}
