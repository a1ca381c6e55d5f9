// Package trace prepares traced calls for reports and replays them.
package trace

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/internal/redact"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Scrub replaces names of pods, namespaces and containers, and IP addresses, by names and addresses that are
// the same in all calls. Secrets are redacted again, because a report leaves the node.
func Scrub(calls []*store.TracedCall, names, addresses bool) {
	s := &scrubber{names: map[string]string{}, counts: map[string]int{}, networks: map[string]int{}, addresses: addresses}
	if names {
		for _, c := range calls {
			s.learn(c)
		}
	}
	for _, c := range calls {
		for _, text := range []*string{&c.ContainerID, &c.Netns, &c.Args, &c.Error, &c.Details} {
			*text = s.text(*text)
		}
		if ns, pod, ok := strings.Cut(c.Pod, "/"); ok {
			c.Pod = s.text(ns) + "/" + s.text(pod)
		}
		c.Stdin, c.Result = s.json(c.Stdin), s.json(c.Result)
	}
}

type scrubber struct {
	// names has the replacements of names.
	names     map[string]string
	addresses bool
	// networks has the numbers of the networks of the replaced addresses.
	networks map[string]int
	// counts has the number of names of each kind.
	counts map[string]int
}

// learn chooses the replacements of a call's names.
func (s *scrubber) learn(c *store.TracedCall) {
	args, _ := roles.ParseArgs(c.Args)
	s.add("container", c.ContainerID)
	s.add("container", args.Get("K8S_POD_INFRA_CONTAINER_ID"))
	s.add("namespace", args.Get("K8S_POD_NAMESPACE"))
	s.add("pod", args.Get("K8S_POD_NAME"))
	s.add("pod", args.Get("K8S_POD_UID"))
}

func (s *scrubber) add(kind, name string) {
	if _, known := s.names[name]; !known && name != "" {
		s.counts[kind]++
		s.names[name] = kind + "-" + strconv.Itoa(s.counts[kind])
	}
}

// json scrubs the strings of a JSON text, but not the names of members. Any other text is scrubbed as a whole.
func (s *scrubber) json(text string) string {
	raw := redact.JSON([]byte(text))
	out, ok := redact.Rewrite(raw, func(name string, v any) any {
		if word, is := v.(string); is && name != "type" && name != "cniVersion" { // a pod may be called "bridge"
			return s.text(word)
		}
		return v
	})
	if !ok {
		return s.text(string(raw))
	}
	return string(out)
}

// text replaces whole words.
func (s *scrubber) text(text string) string {
	var out strings.Builder
	start := 0
	for i := 0; i <= len(text); i++ {
		if i < len(text) && isPart(text[i]) {
			continue
		}
		word := strings.TrimRight(text[start:i], ".:")
		out.WriteString(s.word(word))
		start += len(word)
		end := min(i+1, len(text))
		out.WriteString(text[start:end])
		start = end
	}
	return out.String()
}

// isPart reports whether a byte can be a part of a name or an address.
func isPart(c byte) bool {
	return strings.IndexByte("-_.:", c) >= 0 || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func (s *scrubber) word(word string) string {
	if to, ok := s.names[word]; ok {
		return to
	}
	for _, sep := range []string{"-", ":"} { // a range, or an IPv4 address with a port
		if first, rest, ok := strings.Cut(word, sep); ok {
			if _, err := netip.ParseAddr(first); err == nil {
				return s.word(first) + sep + s.word(rest)
			}
		}
	}
	a, err := netip.ParseAddr(word)
	if !s.addresses || err != nil || !a.IsGlobalUnicast() {
		return word
	}
	return s.address(a).String()
}

// address keeps what an address has after its /16 (IPv6: /48), and numbers these networks.
func (s *scrubber) address(a netip.Addr) netip.Addr {
	bits := 16
	if a.Is6() {
		bits = 48
	}
	network, err := a.Prefix(bits)
	if err != nil {
		return a
	}
	n, known := s.networks[network.String()]
	if !known {
		n = len(s.networks) + 1
		s.networks[network.String()] = n
	}
	if a.Is4() {
		b := a.As4()
		b[0], b[1] = byte(10+n/256), byte(n)
		return netip.AddrFrom4(b)
	}
	b := a.As16()
	copy(b[:], []byte{0x20, 0x01, 0x0d, 0xb8, byte(n / 256), byte(n)})
	return netip.AddrFrom16(b)
}
