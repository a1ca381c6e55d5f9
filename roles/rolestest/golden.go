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
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/store"
)

// update makes Golden write the computed results.
var update = flag.Bool("update", false, "rewrite testdata/*.txtar")

// Golden computes the specs and results of an interface or chained role for
// testdata/*.txtar, without a kernel and without a store. Each shows one documented
// feature:
//
//	conf.json     the configuration, without name and type
//	ipam.json     IPAM's answer, if there is one
//	args          CNI_ARGS
//	seen.json     the observed state of the kernel, for Observed
//	chained.json  the earlier plugin's result
//	prev.json     prevResult, for the spec of CHECK
//
// and the expected output: either spec, with one object a line in the order of creation,
// and result.json, or error. With -update the expected output is rewritten.
type Golden struct {
	// Role is the role's entry in the table.
	Role roles.Role
	// Observed returns the value of the role's Observe for seen.json, which is empty if
	// the file has none.
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

// split separates input and expected output.
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

// Read returns the SpecBuilder that an interface or chained role makes from a
// configuration.
func Read[R attach.SpecBuilder](role roles.Role, conf []byte) (r R, err error) {
	h, err := role.New(conf)
	if err != nil {
		return r, err
	}
	return h.(interface{ Builder() attach.SpecBuilder }).Builder().(R), nil
}

// compute returns the spec and the result for a configuration.
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

// remarks returns the attributes that an object's line does not show.
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

// input returns an attachment as package attach describes it, with distinct names.
func (g Golden) input(files map[string]string) (*attach.Input, error) {
	key := store.Key{Network: "pods", ContainerID: "c1", IfName: "eth0"}
	args, err := roles.ParseArgs(strings.TrimSpace(files["args"]))
	if err != nil {
		return nil, err
	}
	in := &attach.Input{
		Key: key, Netns: "/run/netns/c1", Args: args, HostLink: "vethhost", Label: attachment.Label(key),
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
