package sticky

import (
	"fmt"
	"net"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// The kinds of identities: the text before the colon.
const (
	kindPod       = "pod"
	kindName      = "name"
	kindMAC       = "mac"
	kindContainer = "container"
)

// Identity returns the identity for which a pool keeps an attachment's addresses:
// "pod:default/web-0/eth0", "name:web/eth0", "mac:02:00:00:00:00:01" or
// "container:4f2a…/eth0". mac is the requested hardware address, if any.
func (r *Rules) Identity(req *roles.Request, mac string) string {
	switch r.key {
	case keyPod:
		if ns, name := req.Args.Get("K8S_POD_NAMESPACE"), req.Args.Get("K8S_POD_NAME"); ns != "" && name != "" {
			return kindPod + ":" + escape(ns) + "/" + escape(name) + "/" + escape(req.IfName)
		}
	case keyContainerName:
		for _, k := range nameArgs() {
			if name := req.Args.Get(k); name != "" {
				return kindName + ":" + escape(name) + "/" + escape(req.IfName)
			}
		}
	case keyMAC:
		if m, err := net.ParseMAC(mac); err == nil {
			return kindMAC + ":" + m.String()
		}
	}
	return ContainerIdentity(req.Key())
}

// ContainerIdentity returns the identity of an attachment about which nothing else is
// known, or whose addresses are not kept.
func ContainerIdentity(k store.Key) string {
	return kindContainer + ":" + escape(k.ContainerID) + "/" + escape(k.IfName)
}

// Args returns the CNI_ARGS keys that Identity reads, besides those of every request.
func Args() []string { return []string{"MAC", dhcpHostname} }

// dhcpHostname is the CNI_ARGS key in which nerdctl passes a container's host name.
const dhcpHostname = "NERDCTL_CNI_DHCP_HOSTNAME"

// nameArgs returns the CNI_ARGS keys in which podman and nerdctl pass a container's
// name.
func nameArgs() []string { return []string{"K8S_POD_NAME", dhcpHostname} }

// escape encodes a text so that it can stand between slashes.
func escape(s string) string {
	if !strings.ContainsAny(s, "/%") {
		return s
	}
	return strings.NewReplacer("%", "%25", "/", "%2F").Replace(s)
}

// ParseIdentity reads an identity as people write it: in the form of Identity,
// without the interface for eth0 and without "pod:" if they like.
func ParseIdentity(text string) (string, error) {
	kind, rest, ok := strings.Cut(text, ":")
	if !ok {
		kind, rest = kindPod, text
	}
	parts := strings.Split(rest, "/")
	want := 0
	switch kind {
	case kindPod:
		want = 3
	case kindName, kindContainer:
		want = 2
	case kindMAC:
		m, err := net.ParseMAC(rest)
		if err != nil {
			return "", fmt.Errorf("identity %q: %q is not a MAC address", text, rest)
		}
		return kindMAC + ":" + m.String(), nil
	}
	if len(parts) == want-1 {
		parts = append(parts, "eth0")
	}
	if want == 0 || len(parts) != want {
		return "", fmt.Errorf(`identity %q: want "namespace/pod", "name:container", "mac:address" or "container:id", and "/interface" where that is not eth0`, text)
	}
	for _, p := range parts {
		if p == "" {
			return "", fmt.Errorf("identity %q: has an empty part", text)
		}
	}
	return kind + ":" + strings.Join(parts, "/"), nil
}
