package trace

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store"
)

func TestScrub(t *testing.T) {
	calls := func() []*store.TracedCall {
		return []*store.TracedCall{
			{
				Role: "bridge", ContainerID: "abc", Netns: "/run/netns/abc", Args: "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=bridge;K8S_POD_INFRA_CONTAINER_ID=abc", Pod: "shop/bridge",
				Stdin:  `{"type":"bridge","name":"abcd","ipam":{"subnet":"10.9.0.0/16","password":"x"},"cni.dev/valid-attachments":[{"containerID":"abc"}]}`,
				Result: `{"ips":[{"address":"10.9.2.3/16","gateway":"10.9.0.1"},{"address":"fd00:1::5/64"}]}`,
			},
			{Role: "bridge", ContainerID: "def", Stdin: `{"type": abc`, Error: `interface "eth0" of container "abc": shop/bridge has 10.9.2.3. And 192.0.2.7, 127.0.0.1, 10.9.0.2:6443, 10.9.0.2-10.9.0.9, fd00:1::2-fd00:1::9`, Details: "abc:"},
		}
	}
	names := calls()
	Scrub(names, true, false)
	a, b := names[0], names[1]
	if a.ContainerID != "container-1" || b.ContainerID != "container-2" || a.Netns != "/run/netns/container-1" || a.Pod != "namespace-1/pod-1" ||
		a.Args != "K8S_POD_NAMESPACE=namespace-1;K8S_POD_NAME=pod-1;K8S_POD_INFRA_CONTAINER_ID=container-1" {
		t.Errorf("%+v", a)
	}
	if a.Stdin != `{"cni.dev/valid-attachments":[{"containerID":"container-1"}],"ipam":{"password":"REDACTED","subnet":"10.9.0.0/16"},"name":"abcd","type":"bridge"}` {
		t.Errorf("input %s", a.Stdin)
	}
	if b.Stdin != `{"type": container-1` || b.Details != "container-1:" ||
		b.Error != `interface "eth0" of container "container-1": namespace-1/pod-1 has 10.9.2.3. And 192.0.2.7, 127.0.0.1, 10.9.0.2:6443, 10.9.0.2-10.9.0.9, fd00:1::2-fd00:1::9` {
		t.Errorf("%+v", b)
	}
	both := calls()
	Scrub(both, true, true)
	if got := both[0].Result; got != `{"ips":[{"address":"10.1.2.3/16","gateway":"10.1.0.1"},{"address":"2001:db8:2::5/64"}]}` {
		t.Errorf("addresses %s", got)
	}
	if !strings.Contains(both[0].Stdin, `"10.1.0.0/16"`) || !strings.HasSuffix(both[1].Error, "pod-1 has 10.1.2.3. And 10.3.2.7, 127.0.0.1, 10.1.0.2:6443, 10.1.0.2-10.1.0.9, 2001:db8:2::2-2001:db8:2::9") {
		t.Errorf("%s, %s", both[0].Stdin, both[1].Error)
	}
	kept := calls()
	Scrub(kept, false, false)
	if kept[0].ContainerID != "abc" || strings.Contains(kept[0].Stdin, `"x"`) {
		t.Errorf("%+v", kept[0])
	}
}

func TestDiffer(t *testing.T) {
	for name, c := range map[string]struct {
		a, b Outcome
		want bool
	}{
		"equal":                       {Outcome{Interfaces: 3, IPv4: 1, Took: 1}, Outcome{Interfaces: 3, IPv4: 1, Took: 2}, false},
		"fewer addresses":             {Outcome{IPv4: 1, IPv6: 1}, Outcome{IPv4: 1}, true},
		"one fails":                   {Outcome{Code: 11}, Outcome{}, true},
		"another code":                {Outcome{Code: 11}, Outcome{Code: 7}, true},
		"an implementation's own one": {Outcome{Code: 105}, Outcome{Code: 999}, false},
		"the first own one":           {Outcome{Code: 100}, Outcome{Code: 99}, false},
		"the last of the spec":        {Outcome{Code: 99}, Outcome{Code: 98}, true},
		"the first of the spec":       {Outcome{Code: 1}, Outcome{Code: 7}, true},
	} {
		if differ(&c.a, &c.b) != c.want || differ(&c.b, &c.a) != c.want {
			t.Errorf("%s: want %v", name, c.want)
		}
	}
}

// FuzzScrub: no name of a container remains as a word, and JSON stays JSON.
func FuzzScrub(f *testing.F) {
	f.Add(`{"a":"web1 10.0.0.1"}`, "web1")
	f.Fuzz(func(t *testing.T, text, id string) {
		c := &store.TracedCall{ContainerID: id, Stdin: text, Time: time.Now()}
		Scrub([]*store.TracedCall{c}, true, true)
		if json.Valid([]byte(text)) && !json.Valid([]byte(c.Stdin)) && c.Stdin != "REDACTED" {
			t.Errorf("%q became %q", text, c.Stdin)
		}
	})
}
