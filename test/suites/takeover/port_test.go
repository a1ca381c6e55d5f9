package takeover

import (
	"encoding/json"
	"strings"
	"testing"
)

// mapping is an entry of runtimeConfig.portMappings.
func mapping(port int, protocol, hostIP string) object {
	return object{"hostPort": port, "containerPort": 80, "protocol": protocol, "hostIP": hostIP}
}

// TestPorts: ADD refuses a host port that a container of the reference holds, and names that container. When that container is
// detached the port is free. The reference itself takes a port over without an error.
func TestPorts(t *testing.T) {
	for name, list := range chains() {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, known(list)[:2]...)
			n.list[0]["ipam"] = n.hostLocal("bridge")
			prepare(t, n)
			theirs8080 := n.container(gone).add(theirs)
			for _, v := range []struct {
				mapping object
				taken   bool
			}{
				{mapping(8080, "tcp", ""), true},
				{mapping(8080, "tcp", "10.9.9.9"), true},
				{mapping(8080, "tcp", "::"), true},
				{mapping(8080, "udp", ""), false},
				{mapping(8079, "tcp", ""), false},
				{object{"hostPort": 8070, "containerPort": 8070, "protocol": "tcp", "range": 20}, true},
				{mapping(8081, "udp", ""), true},
				{mapping(8081, "udp", "0.0.0.0"), true},
				{mapping(8081, "udp", "127.0.0.1"), true},
				{mapping(8081, "udp", "10.9.9.9"), false},
				{mapping(8081, "tcp", ""), false},
			} {
				c := n.container(stays)
				c.publish(v.mapping)
				said, code := c.tryAdd()
				if taken := code != 0; taken != v.taken || taken && !strings.Contains(said, `"code": 112`) {
					t.Errorf("%v: exit %d: %s", v.mapping, code, said)
				}
				if v.taken && !strings.Contains(said, gone) {
					t.Errorf("%v: %q does not name the container", v.mapping, said)
				}
				c.del(ours, c.ns.Path())
				theirs8080.check(theirs)
			}
			theirs8080.del(ours, theirs8080.ns.Path())
			c := n.container(stays)
			c.publish(mapping(8080, "tcp", ""))
			c.add(ours).check(ours)
			c.del(ours, c.ns.Path())
		})
	}
}

// publish gives a container other host ports than the list has.
func (c *container) publish(mappings ...object) {
	own := *c.node
	own.list = []object{c.list[0], {"type": "portmap", "runtimeConfig": object{"portMappings": mappings}}}
	c.node = &own
}

// tryAdd attaches a container with cnibox until a plugin fails.
func (c *container) tryAdd() (said string, code int) {
	c.t.Helper()
	for i := range c.list {
		a := c.Run(c.call("ADD", i, c.prev()))
		if a.Code != 0 {
			return a.Stdout, a.Code
		}
		c.result = json.RawMessage(a.Stdout)
	}
	return "", 0
}
