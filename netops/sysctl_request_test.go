package netops

import "testing"

// TestSysctlByRequest checks that rtnetlink is used only for values that have
// the same meaning in the file.
func TestSysctlByRequest(t *testing.T) {
	for key, values := range map[string]map[string]bool{
		"net/ipv4/conf/eth0/arp_notify": {
			"1": true, "0": true, "-1": true, "2147483647": true,
			"": false, "+1": false, "01": false, "0x1": false, "1 ": false, "2147483648": false, "4294967297": false, "yes": false,
		},
		"net/ipv6/conf/eth0/addr_gen_mode": {"1": true, "0": false, "3": false, "01": false},
		"net/ipv6/conf/all/addr_gen_mode":  {"1": false},
	} {
		for value, want := range values {
			c := &Sysctl{In: Container, Key: key, Value: value}
			if _, _, ok := c.byRequest(); ok != want {
				t.Errorf("%s=%q: %v, want %v", key, value, ok, want)
			}
		}
	}
}
