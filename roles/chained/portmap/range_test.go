package portmap_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRange publishes ranges of ports. A range is one element and one claim for each
// address family, however long it is, and conflicts with each of its ports.
func TestRange(t *testing.T) {
	w := newTown(t)
	a := w.run("a").publish(conf(`{"hostPort":1,"containerPort":1,"range":65535}`))
	w.wants("a 192.0.2.2", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 80)
	w.wants("a 2001:db8::2", w.outside, "tcp", "2001:db8::2", "2001:db8::1", 80)
	w.wants("a 10.1.0.1", nil, "tcp", "", "127.0.0.1", 80)
	w.wants("a 10.1.0.1", a.NS, "tcp", a.addrs[0].String(), "192.0.2.1", 80)
	for _, set := range []string{"portmap_range4", "portmap_range6"} {
		if have := run(t, "nft", "list", "map", "inet", "cnibox", set); strings.Count(have, "tcp . 1-65535") != 1 {
			t.Errorf("want one element:\n%s", have)
		}
	}
	must(t, filepath.WalkDir(w.RunDir(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "node.db" {
			return err
		}
		st, err := os.Stat(path)
		if err == nil && st.Size() > 256<<10 {
			t.Errorf("%s has %d bytes with one range", path, st.Size())
		}
		return err
	}))
	b := w.run("b")
	for _, mapping := range []string{`{"hostPort":8080,"containerPort":80}`, `{"hostPort":8080,"containerPort":8080,"hostIP":"192.0.2.1","range":2}`} {
		if answer := w.Run(b.plugin("ADD", conf(mapping))); answer.Code == 0 || !strings.Contains(answer.Stdout, `"code": 112`) || !strings.Contains(answer.Stdout, `\"a\"`) {
			t.Errorf("%s: %s, want an error that names container a", mapping, answer.Stdout)
		}
	}
	w.OK(a.plugin("CHECK", conf(`{"hostPort":1,"containerPort":1,"range":65535}`, `"maxPorts":1`))) // maxPorts was reduced
	a.withdraw()
	w.wants("", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 80)
	w.run("c").publish(conf(`{"hostPort":79,"containerPort":79,"range":3,"hostIP":"192.0.2.1"},{"hostPort":8080,"containerPort":79,"range":3}`))
	w.wants("c 192.0.2.2", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 80)
	w.wants("c 192.0.2.2", w.outside, "tcp", "192.0.2.2", "192.0.2.1", 8081)
	w.wants("c 2001:db8::2", w.outside, "tcp", "2001:db8::2", "2001:db8::1", 8081)
	w.wants("", w.outside, "tcp", "2001:db8::2", "2001:db8::1", 80)
}

// TestTooManyPorts refuses more ports than maxPorts. Without this key a container can have any number, also without ranges.
func TestTooManyPorts(t *testing.T) {
	w := newTown(t)
	a := w.run("a")
	var many []string // as nerdctl passes them: one by one, and the protocols in turn
	for port := 32000; port <= 32200; port++ {
		for _, protocol := range []string{"tcp", "udp"} {
			many = append(many, fmt.Sprintf(`{"hostPort":%d,"containerPort":%d,"protocol":%q}`, port, port+1, protocol))
		}
	}
	for _, v := range []struct{ mappings, keys, err string }{
		{`{"hostPort":1000,"containerPort":1000,"range":3}`, `"maxPorts":2`, "asks for 3 ports, and portmap's key maxPorts allows 2"},
		{`{"hostPort":1000,"containerPort":1000,"range":2},{"hostPort":1000,"containerPort":1000,"protocol":"udp"}`, `"maxPorts":2`, "asks for 3 ports, and portmap's key maxPorts allows 2"},
		{`{"hostPort":1000,"containerPort":1000}`, `"maxPorts":-1`, "maxPorts: -1 is not a number of ports"},
		{`{"hostPort":1000,"containerPort":1000,"range":2},{"hostPort":1000,"containerPort":1000,"range":2}`, `"maxPorts":2`, ""},
		{strings.Join(many, ","), `"backend":"nftables"`, ""},
	} {
		answer := w.Run(a.plugin("ADD", conf(v.mappings, v.keys)))
		if v.err == "" && answer.Code != 0 || v.err != "" && (!strings.Contains(answer.Stdout, `"code": 7`) || !strings.Contains(answer.Stdout, v.err)) {
			t.Errorf("%s %s: %s, want %q", v.mappings, v.keys, answer.Stdout, v.err)
		}
		if v.err == "" {
			w.OK(a.plugin("DEL", conf(web)))
		}
	}
}
