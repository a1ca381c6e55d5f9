package rolestest

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/attach"
	"github.com/cnibox/cnibox/roles/record"
	"github.com/cnibox/cnibox/store"
)

// update has Golden write what it computes.
var update = flag.Bool("update", false, "rewrite testdata/*.txtar")

// Golden computes what testdata/*.txtar ask of an interface or chained role, without a
// kernel and without a store. Each shows one documented feature:
//
//	conf.json     the configuration, without name and type
//	ipam.json     IPAM's answer, if there is one
//	args          CNI_ARGS
//	seen.json     what was observed of the kernel, for Observed
//	chained.json  the earlier plugin's result
//	prev.json     prevResult, for the spec of CHECK
//
// and then either spec, one object a line in the order of making, and
// result.json, or error. With -update the latter are rewritten.
type Golden struct {
	// Role is the role's entry in the table.
	Role roles.Role
	// Observed is what the role's Observe would have read, from seen.json
	// (empty without one).
	Observed func(seen []byte) (any, error)
}

// Run runs every file as a subtest.
func (g Golden) Run(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata: %d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			asked, want := split(a.Files)
			have, err := g.compute(asked)
			if err != nil {
				have = []txtar.File{{Name: "error", Data: []byte(err.Error() + "\n")}}
			}
			if *update {
				a.Files = slices.Concat(asked, have)
				if err := os.WriteFile(file, txtar.Format(a), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(texts(want), texts(have)); diff != "" {
				t.Errorf("-want +have:\n%s", diff)
			}
		})
	}
}

// split separates questions and answers.
func split(files []txtar.File) (asked, want []txtar.File) {
	for _, f := range files {
		if slices.Contains([]string{"spec", "result.json", "error"}, f.Name) {
			want = append(want, f)
		} else {
			asked = append(asked, f)
		}
	}
	return asked, want
}

func texts(files []txtar.File) map[string]string {
	m := map[string]string{}
	for _, f := range files {
		m[f.Name] = string(f.Data)
	}
	return m
}

// Read is what an interface or chained role makes of a configuration.
func Read[R attach.SpecBuilder](role roles.Role, conf []byte) (r R, err error) {
	h, err := role.New(conf)
	if err != nil {
		return r, err
	}
	return h.(interface{ Builder() attach.SpecBuilder }).Builder().(R), nil
}

// compute goes from the configuration to spec and result.
func (g Golden) compute(asked []txtar.File) ([]txtar.File, error) {
	files := texts(asked)
	role, err := Read[attach.SpecBuilder](g.Role, []byte(files["conf.json"]))
	if err != nil {
		return nil, err
	}
	in, err := g.input(files)
	if err != nil {
		return nil, err
	}
	w, err := role.Build(in)
	if err != nil {
		return nil, err
	}
	var spec strings.Builder
	for _, o := range w.Spec.Objects {
		spec.WriteString(o.String() + remarks(o) + "\n")
	}
	if w.Result == nil {
		w.Result = in.Chained
	}
	result, err := json.MarshalIndent(w.Result, "", "  ")
	return []txtar.File{
		{Name: "spec", Data: []byte(spec.String())},
		{Name: "result.json", Data: append(result, '\n')},
	}, err
}

// remarks are what an object's line does not show.
func remarks(o netops.Object) string {
	var words []string
	if o.IsShared() {
		words = append(words, "shared")
	}
	if a, ok := o.(*netops.Addr); ok && a.Sole {
		words = append(words, "refuses others")
	} else if ok && a.Replace {
		words = append(words, "replaces others")
	}
	if len(words) == 0 {
		return ""
	}
	return " # " + strings.Join(words, ", ")
}

// input is an attachment as attach would describe it, with names that a
// reader can tell apart.
func (g Golden) input(files map[string]string) (*attach.Input, error) {
	key := store.Key{Network: "pods", ContainerID: "c1", IfName: "eth0"}
	args, err := roles.ParseArgs(strings.TrimSpace(files["args"]))
	if err != nil {
		return nil, err
	}
	in := &attach.Input{
		Key: key, Netns: "/run/netns/c1", Args: args, HostLink: "vethhost", Label: record.Label(key),
		HostMAC: "02:00:00:00:00:11", ContainerMAC: "02:00:00:00:00:c1",
	}
	in.IPAM, err = decodeResult(files["ipam.json"])
	errs := []error{err}
	in.Prev, err = decodeResult(files["prev.json"])
	errs = append(errs, err)
	in.Chained, err = decodeResult(files["chained.json"])
	errs = append(errs, err)
	in.Observed, err = g.Observed([]byte(files["seen.json"]))
	return in, errors.Join(append(errs, err)...)
}

func decodeResult(s string) (*roles.Result, error) {
	if s == "" {
		return nil, nil
	}
	r, err := types100.NewResult([]byte(s))
	if err != nil {
		return nil, err
	}
	return types100.GetResult(r)
}
