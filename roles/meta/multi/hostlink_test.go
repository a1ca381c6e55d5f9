package multi

import (
	"strings"
	"testing"
)

// TestHostLinkConf checks the keys of host interfaces. A plugin's own keys with these names are
// ignored.
func TestHostLinkConf(t *testing.T) {
	for _, c := range []struct{ conf, want, fault string }{
		{`{"host_device":"eth1","vlan":100}`, `vlan eth1.100`, ""},
		{`{"host_device":"eth1","vxlan":70000}`, `vxlan vxlan70000 239.1.17.112`, ""},
		{`{"type":"bridge","vlan":100}`, "", ""},
		{`{"type":"vlan","vlan":{"id":5},"host_device":7}`, "", ""},
		{`{"host_device":"eth1","vlan":5000}`, "", "vlan: is 5000"},
		{`{"host_device":"eth1","vxlan":-1}`, "", "vxlan: is -1"},
		{`{"host_device":"eth1","vlan":1,"vxlan":1}`, "", "vxlan: cannot be combined with vlan"},
		{`{"host_device":"eth1234567890","vlan":100}`, "", "host_device: "},
		{`{"host_device":"a/b","vxlan":1}`, "", "host_device: "},
	} {
		l, err := hostLink([]byte(c.conf))
		switch {
		case c.fault != "":
			if err == nil || !strings.HasPrefix(err.Error(), c.fault) {
				t.Errorf("%s: %v, want %s", c.conf, err, c.fault)
			}
		case c.want == "":
			if l != nil || err != nil {
				t.Errorf("%s: %v, %v", c.conf, l, err)
			}
		default:
			if err != nil {
				t.Errorf("%s: %v", c.conf, err)
				continue
			}
			have := l.Kind + " " + l.Name
			if l.Group4.IsValid() {
				have += " " + l.Group4.String()
			}
			if have != c.want {
				t.Errorf("%s: %s, want %s", c.conf, have, c.want)
			}
		}
	}
}
