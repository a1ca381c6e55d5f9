package netops

import "testing"

// TestSysctlByRequest checks that rtnetlink is used only for values that have
// the same meaning in the file.
func TestSysctlByRequest(t *testing.T) {
	for value, want := range map[string]bool{
		"1": true, "0": true, "-1": true, "2147483647": true,
		"": false, "+1": false, "01": false, "0x1": false, "1 ": false, "2147483648": false, "4294967297": false, "yes": false,
	} {
		c := &Sysctl{In: Container, Key: "net/ipv4/conf/eth0/arp_notify", Value: value}
		if _, _, ok := c.byRequest(); ok != want {
			t.Errorf("%q: %v, want %v", value, ok, want)
		}
	}
}
