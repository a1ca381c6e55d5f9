package policy_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cnibox/cnibox/internal/service"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/cluster/policy"
	"github.com/cnibox/cnibox/roles/netpolicy"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// TestDirectoryAbsent: a missing directory is an error with the fix. One that is removed leaves its policies in force.
func TestDirectoryAbsent(t *testing.T) {
	absent := policy.Directory{Path: filepath.Join(t.TempDir(), "absent")}
	if err := absent.Check(); err == nil || !strings.Contains(err.Error(), "mkdir -p "+absent.Path) {
		t.Error(err)
	}
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	n.start()
	near, web := n.add(n.pod(1, 2, "")), n.add(n.pod(1, 3, "app=web"))
	if err := os.RemoveAll(n.dir); err != nil {
		t.Fatal(err)
	}
	allowed, denied := n.sink(web, 80), n.sink(web, 81)
	n.flood(near, web)
	n.more(allowed, "the allowed port")
	n.none(denied, "without the directory")
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	n.more(denied, "with an empty directory")
}

// slow is a Source that is asked for pods and does not answer in time.
type slow struct {
	policy.Directory
	running, most atomic.Int64
}

func (s *slow) FromFiles() bool { return false }

func (s *slow) OnNode(*netpolicy.Pod) bool { return true }

func (s *slow) Fetch(ctx context.Context, _, _ string) (*netpolicy.Pod, error) {
	if now := s.running.Add(1); now > s.most.Load() {
		s.most.Store(now)
	}
	defer s.running.Add(-1)
	<-ctx.Done()
	return nil, fs.ErrNotExist
}

// TestManyUnknown: 250 ADDs at once of pods that the source does not have wait at the same time for few fetches. Each is denied, or
// has no answer if its time is over.
func TestManyUnknown(t *testing.T) {
	n := newNode(t)
	source := &slow{Directory: policy.Directory{Path: n.dir, Log: n.host.Log}}
	n.run(source)
	ask := func(name string) enforce.Answer {
		var a enforce.Answer
		var late service.Error
		p := &netops.PodPolicy{Label: "cnibox:" + name, Namespace: "default", Name: name, UID: name}
		if err := service.Ask(t.Context(), n.host.Store.AgentSocket(), service.PolicyChoose, p, service.Into(&a)); err != nil && !errors.As(err, &late) {
			t.Error(err)
		}
		return a
	}
	answers := make(chan enforce.Answer)
	const pods = 250
	for i := range pods {
		go func() { answers <- ask("pod-" + string(rune('a'+i%26)) + "-" + string(rune('a'+i/26))) }()
	}
	for range pods {
		if a := <-answers; a.Egress != "" && a.Egress != "deny" {
			t.Errorf("%+v", a)
		}
	}
	if most := source.most.Load(); most < 1 || most > 16 {
		t.Errorf("%d fetches at once", most)
	}
}

// TestBypass: a policy that comes after the ADD of a macvlan's pod cannot be enforced, and the agent says so.
func TestBypass(t *testing.T) {
	n := newNode(t)
	netopstest.Master(t, "uplink0")
	var log lines
	n.host.Log = log.logger()
	n.start()
	ns := netopstest.New(t)
	n.OK(rolestest.Call{
		Type: "macvlan", Verb: "ADD", ID: "m1", Netns: ns.Path(), IfName: "eth0",
		Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=m1;" + enforce.LabelsArg + "=app=web",
		Conf: `{"cniVersion":"1.1.0","name":"netm","type":"macvlan","master":"uplink0","ipam":{"type":"static","addresses":[{"address":"10.9.0.3/24"}]}}`,
	})
	n.put("web.yaml", onlyPort80)
	await.Until(t, func() bool {
		return strings.Contains(log.String(), "not enforced: default/m1: attach them by bridge, ptp or routed")
	}, log.String)
}
