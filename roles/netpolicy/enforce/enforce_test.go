package enforce_test

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy/choice"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/store"
)

// TestForeignAnswers: what another program says on the agent's socket is not that no policy selects a pod. The saved policies are in force,
// and without them ADD fails.
func TestForeignAnswers(t *testing.T) {
	for _, answer := range []string{
		"", "{}\n", `{"end":true}` + "\n", `{"end":true,"absent":true}` + "\n", "HTTP/1.1 400 Bad Request\r\n\r\n",
		`{"node":"a","ready":true,"peers":{"wanted":1}}` + "\n" + `{"peer":"b","state":"programmed"}` + "\n" + `{"end":true}` + "\n",
	} {
		s := store.New(store.Options{RunDir: filepath.Join(t.TempDir(), "run"), StateDir: t.TempDir(), BootID: "5c3e1d6a-52a1-4f2c-9b64-0d5b5d2f6a01"})
		h := &roles.Host{Store: s, Log: slog.New(slog.DiscardHandler)}
		for _, path := range []string{s.AgentSocket(), enforce.SavedPath(s)} {
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		l, err := net.Listen("unix", s.AgentSocket())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(answer))
				_ = c.Close()
			}
		}()
		ask := func() (*netops.PodPolicy, error) {
			p := &netops.PodPolicy{Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2")}}
			_, _, err := enforce.Spec(t.Context(), h, &roles.Request{IfName: enforce.Interface, ContainerID: "a", Conf: []byte(`{}`)}, true, p, netops.Spec{})
			return p, err
		}
		if p, err := ask(); !errors.Is(err, roles.ErrTryAgain) || p.ByAgent {
			t.Errorf("%q without saved policies: by the agent: %t, %v", answer, p.ByAgent, err)
		}
		if _, err := enforce.WriteSaved(s, &choice.Saved{}); err != nil {
			t.Fatal(err)
		}
		if p, err := ask(); err == nil || !strings.Contains(err.Error(), "network policies select pod default/a") || p.ByAgent {
			t.Errorf("%q: by the agent: %t, %v", answer, p.ByAgent, err) // the saved ones select it, and an empty Spec is not filtered
		}
	}
}
