package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/cnibox/cnibox/netops"
)

// dhcpResult is the plugin dhcp executed over an interface that is there, with a daemon and a real server.
type dhcpResult struct {
	Add compared `json:"add"`
	Del compared `json:"del"`
	// Exchange is DISCOVER, OFFER, REQUEST and ACK alone: what the server and the wire take.
	Exchange stat `json:"exchange"`
}

// The wire that containers and server are on.
const (
	dhcpBridge = "benchdhcp"
	dhcpWait   = 30 * time.Second
)

// measureDHCP has both sides lease and release an address for one container at a time. Each side has its own daemon; the server is the same.
func measureDHCP(ctx context.Context, j job) (_ *dhcpResult, err error) {
	rounds := warmRounds + j.Rounds
	containers, err := newContainers("dhcp", 3*rounds+1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dropContainers(containers)) }()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := startDHCPServer(ctx, containers[3*rounds]); err != nil {
		return nil, err
	}
	defer exec.Command("ip", "link", "del", dhcpBridge).Run() //nolint:errcheck // the sandbox ends with it
	sides := []side{j.Sides.Ours, j.Sides.Peer}
	for _, s := range sides {
		if err := s.startDHCPDaemon(ctx); err != nil {
			return nil, err
		}
	}
	var add, del timings
	var bare []time.Duration
	for round := range rounds {
		three := containers[3*round : 3*round+3]
		for i, c := range three {
			if err := connectContainer(ctx, c, fmt.Sprint("bd", 3*round+i)); err != nil {
				return nil, err
			}
		}
		took, err := bareExchange(ctx, three[2])
		if err != nil {
			return nil, err
		}
		for _, verb := range []struct {
			name string
			to   *timings
		}{{"ADD", &add}, {"DEL", &del}} {
			for _, i := range turns(round) {
				a, err := sides[i].do(ctx, call{Plugin: "dhcp", Verb: verb.name, Container: three[i], Conf: sides[i].dhcpConf()})
				if err != nil {
					return nil, err
				}
				if round >= warmRounds {
					verb.to[i] = append(verb.to[i], a.Took)
				}
			}
		}
		if round >= warmRounds {
			bare = append(bare, took)
		}
	}
	return &dhcpResult{Add: add.compared(), Del: del.compared(), Exchange: newStat(bare)}, nil
}

// program runs one of iproute2's and the like.
func program(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// startDHCPServer makes the wire and starts dnsmasq on it, which ends with ctx.
func startDHCPServer(ctx context.Context, c container) error {
	if err := program(ctx, "ip", "link", "add", dhcpBridge, "up", "type", "bridge"); err != nil {
		return err
	}
	if err := connectContainer(ctx, c, "bdserver"); err != nil {
		return err
	}
	in := []string{"nsenter", "--net=" + c.Netns}
	if err := program(ctx, append(in, "ip", "address", "add", "10.240.0.1/16", "dev", "eth0")...); err != nil {
		return err
	}
	return exec.CommandContext(ctx, "nsenter", "--net="+c.Netns, "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root",
		"--pid-file", "--interface=eth0", "--no-ping", "--dhcp-authoritative", "--dhcp-leasefile="+filepath.Join(dataDir, "dnsmasq.leases"),
		"--dhcp-range=10.240.1.0,10.240.200.0,1h", "--dhcp-lease-max=50000").Start()
}

// connectContainer gives a container an interface on the wire.
func connectContainer(ctx context.Context, c container, port string) error {
	if err := program(ctx, "ip", "link", "add", port, "up", "master", dhcpBridge, "type", "veth", "peer", "name", "eth0", "netns", c.Netns); err != nil {
		return err
	}
	return program(ctx, "nsenter", "--net="+c.Netns, "ip", "link", "set", "eth0", "up")
}

func (s side) dhcpSocket() string { return filepath.Join(dataDir, s.Name+".sock") }

func (s side) dhcpConf() []byte {
	return []byte(`{"cniVersion":"1.0.0","name":"dhcp","type":"bridge","ipam":{"type":"dhcp","daemonSocketPath":` + strconv.Quote(s.dhcpSocket()) + `}}`)
}

// startDHCPDaemon starts a side's daemon, which ends with ctx, and waits until it listens.
func (s side) startDHCPDaemon(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, filepath.Join(s.Dir, "dhcp"), "daemon", "-socketpath", s.dhcpSocket())
	cmd.Env = s.env(call{})
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the DHCP daemon of %s: %w", s.Name, err)
	}
	for end := time.Now().Add(dhcpWait); ; {
		conn, err := net.Dial("unix", s.dhcpSocket())
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(end) {
			return fmt.Errorf("wait for the DHCP daemon of %s: %w", s.Name, err)
		}
	}
}

// bareExchange leases an address by four messages and nothing else. The first try is not timed: it also waits for server and wire.
func bareExchange(ctx context.Context, c container) (time.Duration, error) {
	n := netops.New(netops.Options{})
	defer n.Close()
	ns, err := n.OpenNamespace(c.Netns)
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	link, err := n.Link(ctx, ns, "eth0")
	if err != nil {
		return 0, err
	}
	mac, err := net.ParseMAC(link.MAC)
	if err != nil {
		return 0, err
	}
	for end := time.Now().Add(dhcpWait); ; {
		if _, err := fourMessages(ctx, n, ns, link.Index, mac); err == nil {
			break
		} else if time.Now().After(end) {
			return 0, err
		}
	}
	return fourMessages(ctx, n, ns, link.Index, mac)
}

func fourMessages(ctx context.Context, n *netops.Net, ns *netops.Namespace, index int, mac net.HardwareAddr) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	start := time.Now()
	udp, err := n.OpenRawUDP(ns, index, 68)
	if err != nil {
		return 0, err
	}
	defer udp.Close()
	all := netip.MustParseAddrPort("255.255.255.255:67")
	ask := func(m *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
		if err := udp.Send(ctx, netip.IPv4Unspecified(), all, nil, m.ToBytes()); err != nil {
			return nil, err
		}
		for {
			d, err := udp.Receive(ctx)
			if err != nil {
				return nil, err
			}
			if in, err := dhcpv4.FromBytes(d.Payload); err == nil && in.TransactionID == m.TransactionID && bytes.Equal(in.ClientHWAddr, mac) {
				return in, nil
			}
		}
	}
	discover, err := dhcpv4.NewDiscovery(mac)
	if err != nil {
		return 0, err
	}
	offer, err := ask(discover)
	if err != nil {
		return 0, err
	}
	request, err := dhcpv4.NewRequestFromOffer(offer)
	if err != nil {
		return 0, err
	}
	_, err = ask(request)
	return time.Since(start), err
}
