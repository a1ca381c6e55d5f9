package attach_test

import (
	"context"
	"errors"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
	"github.com/cnibox/cnibox/roles/call/node"
	"github.com/cnibox/cnibox/store"
)

// blindConf and blind are a chained role that maps a port without looking whether it
// is free, as if another ADD took the port directly after the look.
type blindConf struct{ roles.NetConf }

func (*blindConf) Validate() error { return nil }

type blind struct{}

func (blind) Wants() bool      { return true }
func (blind) Shared() []string { return nil }

func (blind) Observe(context.Context, *roles.Host, *attach.Input, *netops.Namespace) error {
	return nil
}

func (blind) Build(in *attach.Input) (*attach.Desired, error) {
	w := &attach.Desired{Claims: []store.Resource{{Kind: store.KindPort, Ports: store.Ports{First: 8080, Last: 8080, Protocol: "tcp", Family: "IPv4"}}}}
	w.Spec.Add(&netops.Element{Set: "portmap4", Key: []string{"tcp", "8080"}, Value: []string{"10.1.0.2", "80"}, Label: in.Label})
	return w, nil
}

// TestRaceNamesHolder: if the kernel's object of another attachment exists when an ADD
// is planned, the error names that attachment by its claim.
func TestRaceNamesHolder(t *testing.T) {
	h, done, err := node.Open(t.Context(), node.Options{RunDir: t.TempDir(), StateDir: t.TempDir(), CacheDirs: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	role := attach.ChainedRole(roles.Role{Names: []string{"blind"}}, func(*blindConf) attach.Chained { return blind{} })
	conf := []byte(`{"cniVersion":"1.1.0","name":"net","type":"blind"}`)
	handler, err := role.New(conf)
	if err != nil {
		t.Fatal(err)
	}
	add := func(id string) error {
		ns := netopstest.New(t)
		_, err := handler.Add(t.Context(), h, &roles.Request{
			ContainerID: id, Netns: ns.Path(), IfName: "eth0", Network: "net", CNIVersion: "1.1.0", Conf: conf, PrevResult: &roles.Result{CNIVersion: "1.1.0"},
		})
		return err
	}
	if err := add("first"); err != nil {
		t.Fatal(err)
	}
	var taken *store.TakenError
	if err := add("second"); !errors.As(err, &taken) || taken.Owner.ContainerID != "first" {
		t.Errorf("the second ADD: %v, want a TakenError that names the first container", err)
	}
}
