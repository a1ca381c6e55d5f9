package nad

import "testing"

func TestPCIAddress(t *testing.T) {
	for s, want := range map[string]string{
		"0000:03:02.1": "0000:03:02.1", "0000-b1-00-6": "0000:b1:00.6", "10000:e1:00.0": "10000:e1:00.0",
		"": "", "gpu-0": "", "0000:03:02": "", "0000:03:2.1": "", "000:03:02.1": "", "0000:03:02.g": "", "0000--03-02-1": "",
		"0000:03:02.1.": "", "123456789:03:02.1": "", "0000:03:02.11": "",
	} {
		if have := pciAddress(s); have != want {
			t.Errorf("%q: %q, want %q", s, have, want)
		}
	}
}

// FuzzClaims: bytes that are no answer of kubelet are an error or claims without an invalid address.
func FuzzClaims(f *testing.F) {
	f.Add([]byte("\x0a\x24\x1a\x22\x2a\x20\x12\x01c\x22\x1b\x0a\x0c\x0a\x0av/c=0000-03\x12\x01d\x1a\x01p\x22\x0c0000-03-02-1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := readClaimedDevices(b)
		if err != nil && all != nil {
			t.Errorf("%v and %v", all, err)
		}
		for _, c := range all {
			if c.PCI != "" && pciAddress(c.PCI) != c.PCI {
				t.Errorf("address %q", c.PCI)
			}
		}
	})
}
