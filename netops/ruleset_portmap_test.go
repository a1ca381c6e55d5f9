package netops

import "testing"

// FuzzPortMapChain: a chain's name may come from a state file.
func FuzzPortMapChain(f *testing.F) {
	for _, s := range []string{"portmap_if4/saddr/10.0.0.0/8", "portmap_if6/not/daddr/fd00__/8/iif/eth/any", "portmap_bit31", "portmap_if4/not", "portmap_if4/iif", "portmap_if4//", "portmap"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		c, ok := portMapChain(name)
		if !ok {
			return
		}
		if c.Name != name || len(c.Rules) != 1 {
			t.Errorf("%q makes %+v", name, c)
		}
		if _, err := c.Rules[0].Message(inetTable(), c.Name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	})
}
