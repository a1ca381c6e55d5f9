package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/internal/stage"
)

// packet captures a packet from a pod of the first node to a pod of the second one.
func (d *demo) packet() error {
	a, b := d.lab.Nodes[0], d.lab.Nodes[1]
	from, to := a.Pods[0], b.Pods[0]
	gateway := b.PodNetwork.Addr().String()
	stage.Say(fmt.Sprintf("One packet's way: %s → %s", from.Address, to.Address))
	wire, err := listen(d.lab.Switch, a.Name)
	if err != nil {
		return fmt.Errorf("listen on the wire: %w", err)
	}
	defer unix.Close(wire)
	if _, err := d.Output(from.Netns, "busybox", "ping", "-c", "1", "-W", "60", to.Address.String()); err != nil {
		return err
	}
	outer, err := tunnelled(wire, from.Address, to.Address)
	if err != nil {
		return err
	}
	steps := []struct {
		netns, name, what string
		cmd               string
	}{
		{from.Netns, "pod", "The pod sends what is not its own to its gateway, the node's bridge.", "ip route get " + to.Address.String()},
		{a.Netns, a.Name, fmt.Sprintf("The node's route to %s leads to %s, through the tunnel device.", b.PodNetwork, gateway), "ip route get " + to.Address.String() + " from " + from.Address.String() + " iif cni0"},
		{a.Netns, a.Name, fmt.Sprintf("ARP would ask who %s is: the agent has written that %s is %s.", gateway, b.Name, outer.innerTo), "ip neigh show " + gateway + " dev flannel.1"},
		{a.Netns, a.Name, fmt.Sprintf("The tunnel's forwarding table says that %s is behind %s.", outer.innerTo, outer.to), "bridge fdb show dev flannel.1"},
	}
	for i, s := range steps {
		fmt.Printf("  %d. %s\n", i+1, s.what)
		out, err := d.Output(s.netns, strings.Fields(s.cmd)[0], strings.Fields(s.cmd)[1:]...)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(out)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "cache") && (i != 3 || strings.Contains(line, outer.innerTo.String())) {
				fmt.Printf("       %s $ %s\n       %s\n", s.name, s.cmd, line)
			}
		}
	}
	fmt.Printf(`  5. So this goes over the wire, %d bytes, as seen by %s:
       outer  %s → %s   UDP %d → %d
       VXLAN  VNI %d
       inner  %s → %s
              %s → %s   ICMP echo request
  6. %s takes the outer packet off: the inner one is for its device's address,
     and its bridge has the pod.
`, outer.size, d.lab.Switch, outer.from, outer.to, outer.source, outer.port, outer.vni,
		outer.innerFrom, outer.innerTo, from.Address, to.Address, b.Name)
	if outer.to != b.Address.Addr() || outer.vni != 1 || outer.port != 8472 {
		return errors.New("the packet went another way")
	}
	return nil
}

// seen is a captured VXLAN packet (RFC 7348 §5).
type seen struct {
	size               int
	from, to           netip.Addr
	source, port       uint16
	vni                uint32
	innerTo, innerFrom net.HardwareAddr
}

// listen opens a packet socket on a port of the switch.
func listen(netns, port string) (fd int, err error) {
	err = stage.InNetns(netns, func() error {
		link, err := net.InterfaceByName(port)
		if err != nil {
			return err
		}
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		timeout := unix.NsecToTimeval(int64(time.Minute))
		return errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
	})
	return fd, err
}

// tunnelled reads until it finds the packet between two pods.
func tunnelled(wire int, from, to netip.Addr) (*seen, error) {
	buf := make([]byte, 9000)
	for {
		n, _, err := unix.Recvfrom(wire, buf, 0)
		if err != nil {
			return nil, fmt.Errorf("no packet came over the wire: %w", err)
		}
		if p, inner := decode(buf[:n]); p != nil && len(inner) >= 20 && addr(inner[12:]) == from && addr(inner[16:]) == to {
			return p, nil
		}
	}
}

// decode removes the headers of IPv4, UDP, VXLAN and Ethernet.
func decode(b []byte) (p *seen, inner []byte) {
	const udp, vxlan, ethernet = 8, 8, 14
	if len(b) < 20 || b[0]>>4 != 4 || b[9] != unix.IPPROTO_UDP {
		return nil, nil
	}
	header := int(b[0]&15) * 4
	if len(b) < header+udp+vxlan+ethernet {
		return nil, nil
	}
	u := b[header:]
	v, e := u[udp:], u[udp+vxlan:]
	return &seen{
		size: len(b), from: addr(b[12:]), to: addr(b[16:]),
		source: binary.BigEndian.Uint16(u), port: binary.BigEndian.Uint16(u[2:]),
		vni: binary.BigEndian.Uint32(v[4:]) >> 8, innerTo: net.HardwareAddr(e[:6]), innerFrom: net.HardwareAddr(e[6:12]),
	}, e[ethernet:]
}

func addr(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b)) }
