package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/packets"
)

// dhcpResult has the plugin dhcp executed for an existing interface, with a daemon and a real server.
type dhcpResult struct {
	Add compared `json:"add"`
	Del compared `json:"del"`
	// Exchange is DISCOVER, OFFER, REQUEST and ACK alone: the time of server and link.
	Exchange stat `json:"exchange"`
	// Checking is the same with isc-dhcp-server as it is installed: before it offers an address it checks for a second whether the
	// address is in use.
	Checking checkedDHCP `json:"checking"`
}

type checkedDHCP struct {
	Add      compared `json:"add"`
	Exchange stat     `json:"exchange"`
}

// The link that containers and server share.
const (
	dhcpBridge  = "benchdhcp"
	checkBridge = "benchcheck"
	dhcpWait    = 30 * time.Second
)

// measureDHCP leases and releases an address for one container at a time on both sides. Each side has its own daemon; the server is
// the same.
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
			if err := connectContainer(ctx, c, dhcpBridge, fmt.Sprint("bd", 3*round+i)); err != nil {
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
	res := &dhcpResult{Add: add.compared(), Del: del.compared(), Exchange: newStat(bare)}
	res.Checking, err = measureCheckedDHCP(ctx, j)
	return res, err
}

// checkedRounds is small: each round takes about three seconds.
const checkedRounds = 7

// measureCheckedDHCP leases addresses for new containers from a server that checks each address. The daemons are running.
func measureCheckedDHCP(ctx context.Context, j job) (_ checkedDHCP, err error) {
	var res checkedDHCP
	containers, err := newContainers("dhcpcheck", 3*checkedRounds+1)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, dropContainers(containers)) }()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := startCheckingServer(ctx, containers[3*checkedRounds]); err != nil {
		return res, err
	}
	defer exec.Command("ip", "link", "del", checkBridge).Run() //nolint:errcheck // the sandbox ends with it
	sides := []side{j.Sides.Ours, j.Sides.Peer}
	var add timings
	var bare []time.Duration
	for round := range checkedRounds {
		three := containers[3*round : 3*round+3]
		for i, c := range three {
			if err := connectContainer(ctx, c, checkBridge, fmt.Sprint("bc", 3*round+i)); err != nil {
				return res, err
			}
		}
		took, err := firstExchange(ctx, three[2])
		if err != nil {
			return res, err
		}
		bare = append(bare, took)
		for _, i := range turns(round) {
			a, err := sides[i].do(ctx, call{Plugin: "dhcp", Verb: "ADD", Container: three[i], Conf: sides[i].dhcpConf()})
			if err != nil {
				return res, err
			}
			add[i] = append(add[i], a.Took)
		}
	}
	res.Add, res.Exchange = add.compared(), newStat(bare)
	return res, nil
}

// program runs a program of iproute2 or another tool.
func program(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// startDHCPServer makes the link and starts dnsmasq on it, which ends with ctx.
func startDHCPServer(ctx context.Context, c container) error {
	if err := wireUp(ctx, c, dhcpBridge, "bdserver", "10.240.0.1/16"); err != nil {
		return err
	}
	return exec.CommandContext(ctx, "nsenter", "--net="+c.Netns, "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root",
		"--pid-file", "--interface=eth0", "--no-ping", "--dhcp-authoritative", "--dhcp-leasefile="+filepath.Join(dataDir, "dnsmasq.leases"),
		"--dhcp-range=10.240.1.0,10.240.200.0,1h", "--dhcp-lease-max=50000").Start()
}

// wireUp makes a link with a namespace for the server.
func wireUp(ctx context.Context, c container, bridge, port, address string) error {
	if err := program(ctx, "ip", "link", "add", bridge, "up", "type", "bridge"); err != nil {
		return err
	}
	if err := connectContainer(ctx, c, bridge, port); err != nil {
		return err
	}
	return program(ctx, "nsenter", "--net="+c.Netns, "ip", "address", "add", address, "dev", "eth0")
}

// startCheckingServer starts isc-dhcp-server with its defaults, which ends with ctx.
func startCheckingServer(ctx context.Context, c container) error {
	if err := wireUp(ctx, c, checkBridge, "bcserver", "10.241.0.1/16"); err != nil {
		return err
	}
	conf, leases := filepath.Join(dataDir, "dhcpd.conf"), filepath.Join(dataDir, "dhcpd.leases")
	err := errors.Join(
		os.WriteFile(conf, []byte("authoritative; subnet 10.241.0.0 netmask 255.255.0.0 { range 10.241.1.0 10.241.200.0; }\n"), 0o600),
		os.WriteFile(leases, nil, 0o600))
	if err != nil {
		return err
	}
	return exec.CommandContext(ctx, "nsenter", "--net="+c.Netns, "dhcpd", "-4", "-f", "-q", "-cf", conf, "-lf", leases,
		"-pf", filepath.Join(dataDir, "dhcpd.pid"), "eth0").Start()
}

// connectContainer gives a container an interface on the link.
func connectContainer(ctx context.Context, c container, bridge, port string) error {
	if err := program(ctx, "ip", "link", "add", port, "up", "master", bridge, "type", "veth", "peer", "name", "eth0", "netns", c.Netns); err != nil {
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

// bareExchange leases an address with four messages and nothing else. The first try is not timed, since it also waits for server
// and link.
func bareExchange(ctx context.Context, c container) (time.Duration, error) {
	w, err := dial(ctx, c)
	if err != nil {
		return 0, err
	}
	defer w.close()
	for end := time.Now().Add(dhcpWait); ; {
		if _, err := w.fourMessages(ctx, 500*time.Millisecond); err == nil {
			break
		} else if time.Now().After(end) {
			return 0, err
		}
	}
	return w.fourMessages(ctx, 500*time.Millisecond)
}

// firstExchange leases an address that the server has not assigned to this client before. It sends messages again that are lost
// while server and link come up.
func firstExchange(ctx context.Context, c container) (time.Duration, error) {
	w, err := dial(ctx, c)
	if err != nil {
		return 0, err
	}
	defer w.close()
	for end := time.Now().Add(dhcpWait); ; {
		took, err := w.fourMessages(ctx, 5*time.Second)
		if err == nil || time.Now().After(end) {
			return took, err
		}
	}
}

// wire is a container's interface as a DHCP client sees it.
type wire struct {
	net   *netops.Net
	ns    *netops.Namespace
	index int
	mac   net.HardwareAddr
}

func dial(ctx context.Context, c container) (*wire, error) {
	w := &wire{net: netops.New(netops.Options{})}
	var err error
	w.ns, err = w.net.OpenNamespace(c.Netns)
	if err != nil {
		return nil, errors.Join(err, w.net.Close())
	}
	link, err := w.net.Link(ctx, w.ns, "eth0")
	if err == nil {
		w.index = link.Index
		w.mac, err = net.ParseMAC(link.MAC)
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *wire) close() {
	_ = w.ns.Close()
	_ = w.net.Close()
}

// fourMessages is DISCOVER, OFFER, REQUEST and ACK.
func (w *wire) fourMessages(ctx context.Context, patience time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	start := time.Now()
	udp, err := packets.OpenRawUDP(w.ns, w.index, 68)
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
			if in, err := dhcpv4.FromBytes(d.Payload); err == nil && in.TransactionID == m.TransactionID && bytes.Equal(in.ClientHWAddr, w.mac) {
				return in, nil
			}
		}
	}
	discover, err := dhcpv4.NewDiscovery(w.mac)
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
