package policy_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles/cluster/policy"
	"github.com/cnibox/cnibox/roles/netpolicy/control"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
	"github.com/cnibox/cnibox/test/await"
)

// TestSavedLost: without the agent, ADD refuses a pod if the saved policies are lost in any way, also after a boot and after the loss of
// node.db. The refused ADD leaves nothing. When the enforcement was ended, ADD succeeds.
func TestSavedLost(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	n.start()()
	path := enforce.SavedPath(n.host.Store)
	saved, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(content []byte) func() {
		return func() {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(paths ...string) func() {
		return func() {
			for _, p := range paths {
				if err := os.RemoveAll(p); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	refused := func(what string, lose func()) {
		t.Helper()
		lose()
		p := n.pod(1, 3, "app=web")
		if a := n.Fail(p.call, 11); !strings.Contains(a.Stdout, "cnibox policy off") {
			t.Errorf("%s: %s", what, a.Stdout)
		}
		n.del(p)
		remove(path)()
		write(saved)()
	}
	for what, content := range map[string]string{
		"an empty file": "", "an empty object": "{}", "null": "null", "a list": "[]", "another type": `{"policies":7}`,
		"other keys": `{"fromFiles":true,"policies":[]}`, "no schema": strings.Replace(string(saved), `"schema":1`, `"schema":0`, 1),
		"another selector": strings.Replace(string(saved), `"web"`, `"wob"`, 1),
	} {
		refused(what, write([]byte(content)))
	}
	for cut := 1; cut < len(saved); cut += 1 + len(saved)/5 {
		refused("a truncated file", write(saved[:cut]))
	}
	refused("a link", func() {
		if err := os.Rename(path, path+".old"); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path+".old", path); err != nil {
			t.Fatal(err)
		}
	})
	refused("deleted", remove(path))
	refused("deleted, and the boot's state", remove(path, n.host.Store.Path()))
	refused("deleted, and the state that outlives a boot", remove(path, n.host.Store.KeepPath()))
	n.start()() // the mark is in keep.db again
	refused("deleted, and a new boot", remove(path, n.host.Store.Path()))
	if err := control.Stop(t.Context(), n.host); err != nil {
		t.Fatal(err)
	}
	n.add(n.pod(1, 3, "app=web"))
	if strings.Contains(ruleset(t), "cnibox_policy") {
		t.Error("the rules are left")
	}
}

// TestSavedLostBesideAgent: while the agent runs, a pod whose ADD finds no saved policies is filtered from its first packet, and the agent
// writes them again.
func TestSavedLostBesideAgent(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	n.start()
	near, web := n.add(n.pod(1, 2, "")), n.pod(1, 3, "app=web")
	path := enforce.SavedPath(n.host.Store)
	allowed, denied := n.sink(web, 80), n.sink(web, 81)
	n.flood(near, web)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	n.add(web)
	n.more(allowed, "the allowed port")
	n.none(denied, "without the saved policies")
	again := func() bool {
		raw, err := os.ReadFile(path)
		return err == nil && bytes.Contains(raw, []byte(`"web"`))
	}
	await.Until(t, again, func() string { return "the policies are not saved again" })
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	await.Until(t, again, func() string { return "the policies are not written over another file" })
}

// TestFlushedBeforeRead: the agent was started again and cannot read its source. What another program deletes of the rules does not open a pod
// that a policy selects: elements come back, and in place of rules that are gone, selected pods are denied. Others are reached.
func TestFlushedBeforeRead(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	stop := n.start()
	near, web, other := n.add(n.pod(1, 2, "")), n.add(n.pod(1, 3, "app=web")), n.add(n.pod(1, 4, ""))
	allowed, denied, open := n.sink(web, 80), n.sink(web, 81), n.sink(other, 81)
	n.flood(near, web)
	n.flood(near, other)
	n.more(allowed, "with the agent")
	stop()
	n.run(policy.Absent{})
	restored := func(address string) {
		t.Helper()
		await.Until(t, func() bool {
			rules, _ := exec.Command("nft", "list", "chain", "inet", "cnibox_policy", "ingress").Output() // it may not exist yet
			return strings.Contains(listed(t, "pod_ingress4"), address) && strings.Contains(string(rules), "accept")
		}, func() string { return "nothing denies " + address })
	}
	for _, flush := range []string{"nft flush map inet cnibox_policy pod_ingress4", "nft delete table inet cnibox_policy", "nft flush ruleset", "nft flush table inet cnibox_policy"} {
		run(t, flush)
		restored("10.1.0.3")
		n.more(open, flush) // what passed before the rules were back has arrived
		n.stops(denied, open, flush)
		if strings.Contains(flush, "map") {
			n.more(allowed, flush)
		} else {
			n.stops(allowed, open, flush)
		}
	}
	if err := os.WriteFile(enforce.SavedPath(n.host.Store), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "nft flush ruleset")
	restored("10.1.0.4")
}

// TestFlushedBeforeADD: without the agent, an ADD after another program's flush makes the tables again and knows one pod. Pods that no policy selects
// go on, and so do all when the agent is back.
func TestFlushedBeforeADD(t *testing.T) {
	n := newNode(t)
	n.put("web.yaml", onlyPort80)
	stop := n.start()
	near, other := n.add(n.pod(1, 2, "")), n.add(n.pod(1, 4, ""))
	open := n.sink(other, 81)
	n.flood(near, other)
	n.more(open, "with the agent")
	stop()
	run(t, "nft flush ruleset")
	web := n.add(n.pod(1, 3, "app=web"))
	allowed, denied := n.sink(web, 80), n.sink(web, 81)
	n.flood(near, web)
	n.more(open, "after ADD")
	n.stops(allowed, open, "after ADD") // the chains of its policies are lost
	n.stops(denied, open, "after ADD")
	n.start()
	n.more(allowed, "with the agent again")
	n.more(open, "with the agent again")
	n.stops(denied, open, "with the agent again")
}
