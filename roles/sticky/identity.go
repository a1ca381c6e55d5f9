package sticky

import (
	"fmt"
	"net"
	"strings"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// Kinds of identities; each is the text before the colon.
const (
	kindPod       = "pod"
	kindName      = "name"
	kindMAC       = "mac"
	kindContainer = "container"
)

// Identity is whom the addresses of an attachment are kept for, within a pool:
// "pod:default/web-0/eth0", "name:web/eth0", "mac:02:00:00:00:00:01" or
// "container:4f2a…/eth0". mac is the hardware address that was asked for, if any.
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

// ContainerIdentity is that of an attachment of which nothing else is known, or
// whose addresses are kept for nobody.
func ContainerIdentity(k store.Key) string {
	return kindContainer + ":" + escape(k.ContainerID) + "/" + escape(k.IfName)
}

// Args are the CNI_ARGS keys that Identity reads, beside those of every request.
func Args() []string { return []string{"MAC", dhcpHostname} }

// dhcpHostname is where nerdctl tells a container's host name.
const dhcpHostname = "NERDCTL_CNI_DHCP_HOSTNAME"

// nameArgs are where podman and nerdctl tell a container's name.
func nameArgs() []string { return []string{"K8S_POD_NAME", dhcpHostname} }

// escape lets a text stand between slashes.
func escape(s string) string {
	if !strings.ContainsAny(s, "/%") {
		return s
	}
	return strings.NewReplacer("%", "%25", "/", "%2F").Replace(s)
}

// ParseIdentity reads an identity as a person writes it: as Identity does, with
// the interface left out for eth0 and "pod:" left out.
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
			return "", fmt.Errorf("identity %q: %q is no MAC address", text, rest)
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
