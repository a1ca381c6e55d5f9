package bridge_test

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/all"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/test/await"
)

// TestRouterAdvertisement: the host takes no default route from a container
// (CVE-2020-10749). It takes the same advertisement from another link.
func TestRouterAdvertisement(t *testing.T) {
	const ipam = `"cniVersion":"1.0.0","name":"ra","ipam":{"type":"host-local","ranges":[[{"subnet":"10.77.0.0/24"}]]}}`
	for typ, conf := range map[string]string{
		"bridge": `{"type":"bridge","bridge":"ra0",` + ipam,
		"ptp":    `{"type":"ptp",` + ipam,
	} {
		t.Run(typ, func(t *testing.T) {
			node := rolestest.NewEnv(t, all.Table())
			container, other := netopstest.New(t), netopstest.New(t)
			call := rolestest.Call{Type: typ, Verb: "ADD", Conf: conf, ID: "c1", Netns: container.Path(), IfName: "eth0"}
			node.OK(call)
			t.Cleanup(func() {
				call.Verb = "DEL"
				node.OK(call)
				node.OK(rolestest.Call{Type: typ, Verb: "GC", Conf: rolestest.WithKeys(t, conf, map[string]any{"cniVersion": "1.1.0", "cni.dev/valid-attachments": []any{}})})
				if _, err := netlink.LinkByName("ra0"); err == nil {
					t.Error("GC left the bridge")
				}
			})
			for _, args := range []string{
				"link add other0 type veth peer name eth0 netns " + other.Path(), "link set other0 addrgenmode none up", "-6 address add fe80::1/64 dev other0 nodad",
			} {
				if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
					t.Fatalf("ip %s: %v, %s", args, err, out)
				}
			}
			t.Cleanup(func() {
				l, err := netlink.LinkByName("other0")
				if err == nil {
					err = netlink.LinkDel(l)
				}
				if err != nil {
					t.Error(err)
				}
			})
			other.Do(t, func() error { return netopstest.LinkUp("eth0") })
			for _, sender := range []*netopstest.NS{container, other} { // a receiver ignores an advertisement whose source is not link-local
				sender.Do(t, func() error {
					if out, err := exec.CommandContext(t.Context(), "ip", "-6", "address", "add", "fe80::2/64", "dev", "eth0", "nodad").CombinedOutput(); err != nil {
						return fmt.Errorf("%w: %s", err, out)
					}
					return nil
				})
			}
			container.Do(t, advertise)
			await.Until(t, func() bool {
				other.Do(t, advertise)
				return len(routers(t)) > 0
			}, func() string { return "the advertisement of the other link has no effect" })
			if got := routers(t); len(got) != 1 || got[0] != "other0" {
				t.Errorf("default routes by %q", got)
			}
		})
	}
}

// advertise sends an advertisement of a default router to all nodes (RFC 4861 section 4.2).
func advertise() error {
	l, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(s) }()
	if err := unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
		return err
	}
	const routerAdvertisement, hopLimit, lifetime = 134, 64, 0xff
	message := []byte{routerAdvertisement, 0, 0, 0, hopLimit, 0, 0, lifetime, 0, 0, 0, 0, 0, 0, 0, 0}
	to := &unix.SockaddrInet6{ZoneId: uint32(l.Index)}
	copy(to.Addr[:], net.IPv6linklocalallnodes)
	return unix.Sendto(s, message, 0, to)
}

// routers returns the links of the host's IPv6 default routes.
func routers(t *testing.T) (links []string) {
	t.Helper()
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		l, err := netlink.LinkByIndex(r.LinkIndex)
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, l.Attrs().Name)
	}
	return links
}
