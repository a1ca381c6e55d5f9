package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// portsEach is the number of ports that each container publishes to fill the tables.
	portsEach = 100
	// publishedRounds is the number of counted rounds at each number of published ports.
	publishedRounds = 30
	// connections is the number of connections to one published port at each number.
	connections = 500
	// fillPort is the first port of the containers that fill the tables.
	fillPort = 30000
)

// publishedCounts are the numbers of ports that stay published while others come and go.
func publishedCounts() []int { return []int{10, 500, 2000} }

// publishedResult is the cost of publishing and of using a port while others are published.
type publishedResult struct {
	Ports   int      `json:"ports"`
	Add     compared `json:"add"`
	Del     compared `json:"del"`
	Connect compared `json:"connect"`
	// CPU is the CPU time of one connection.
	CPU [2]time.Duration `json:"cpu"`
}

// measurePublished fills the tables of one side, measures at each number of published ports, and empties them for the other side:
// packets pass the rules of both sides.
func measurePublished(ctx context.Context, j job) ([]publishedResult, error) {
	if err := requireIptables(""); err != nil {
		return nil, err
	}
	counts := publishedCounts()
	took := make([]struct{ add, del, connect timings }, len(counts))
	list := make([]publishedResult, len(counts))
	for i, n := range chainNetworks(j.Sides, 5) {
		p := &publisher{chain: n, name: "pub" + n.Side.Name}
		err := p.open(ctx)
		for k := 0; err == nil && k < len(counts); k++ {
			if err = p.fill(ctx, counts[k]); err != nil {
				break
			}
			t := &took[k]
			t.add[i], t.del[i], err = p.comeAndGo(ctx)
			if err == nil {
				t.connect[i], list[k].CPU[i], err = p.connect()
			}
		}
		if err = errors.Join(err, p.close(ctx)); err != nil {
			return nil, err
		}
	}
	for k, t := range took {
		list[k].Ports, list[k].Add, list[k].Del, list[k].Connect = counts[k], t.add.compared(), t.del.compared(), t.connect.compared()
	}
	return list, nil
}

// publisher is one side with filled tables.
type publisher struct {
	chain
	name string
	// filled are the containers that fill the tables.
	filled []filler
	client container
}

type filler struct {
	container
	ports  ports
	result []byte
}

// The link between the host and the client.
const (
	clientLink    = "benchclient"
	clientGateway = "192.0.2.1"
)

// open makes the client's namespace and its link to the host.
func (p *publisher) open(ctx context.Context) error {
	made, err := newContainers(p.name+"client", 1)
	if err != nil {
		return err
	}
	p.client = made[0]
	for _, args := range [][]string{
		{"ip", "link", "add", clientLink, "up", "type", "veth", "peer", "name", "eth0", "netns", p.client.Netns},
		{"ip", "addr", "add", clientGateway + "/24", "dev", clientLink},
		{"nsenter", "--net=" + p.client.Netns, "ip", "addr", "add", "192.0.2.2/24", "dev", "eth0"},
		{"nsenter", "--net=" + p.client.Netns, "ip", "link", "set", "eth0", "up"},
		{"nsenter", "--net=" + p.client.Netns, "ip", "route", "add", "default", "via", clientGateway},
	} {
		if err := program(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// fill adds containers until this number of ports is published.
func (p *publisher) fill(ctx context.Context, want int) error {
	have := 0
	for _, f := range p.filled {
		have += f.ports.Count
	}
	for have < want {
		made, err := newContainers(fmt.Sprintf("%sfill%d", p.name, len(p.filled)), 1)
		if err != nil {
			return err
		}
		f := filler{container: made[0], ports: ports{fillPort + have, min(portsEach, want-have)}}
		a, err := p.publish(ctx, "ADD", f.container, nil, f.ports)
		if err != nil {
			return errors.Join(err, dropContainers(made))
		}
		f.result = a.Stdout
		have += f.ports.Count
		p.filled = append(p.filled, f)
	}
	return nil
}

// last returns the container that was added last. In a list of rules, its rules come last.
func (p *publisher) last() filler { return p.filled[len(p.filled)-1] }

// comeAndGo adds and deletes containers one by one, each with one port.
func (p *publisher) comeAndGo(ctx context.Context) (add, del []time.Duration, err error) {
	containers, err := newContainers(p.name+strconv.Itoa(len(p.filled)), warmRounds+publishedRounds)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, dropContainers(containers)) }()
	for round, c := range containers {
		added, err := p.run(ctx, "ADD", c, nil)
		if err != nil {
			return nil, nil, err
		}
		deleted, err := p.run(ctx, "DEL", c, added.Stdout)
		if err != nil {
			return nil, nil, err
		}
		if round >= warmRounds {
			add, del = append(add, added.Took), append(del, deleted.Took)
		}
	}
	return add, del, nil
}

// connect makes connections from the client to a port of the last container, and returns the time of each and their average CPU
// time.
func (p *publisher) connect() (took []time.Duration, cpu time.Duration, err error) {
	server, err := serve(p.last().Netns)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	to := netip.AddrPortFrom(netip.MustParseAddr(clientGateway), uint16(p.last().ports.First))
	err = inside(p.client.Netns, func() error {
		var used time.Duration
		for round := range warmRounds + connections {
			before := threadTime()
			start := time.Now()
			err := handshake(to)
			lasted := time.Since(start)
			if err != nil {
				return fmt.Errorf("connect to the published port %s of %s: %w", to, p.Side.Name, err)
			}
			if round >= warmRounds {
				used += threadTime() - before
				took = append(took, lasted)
			}
		}
		cpu = used / connections
		return nil
	})
	return took, cpu, err
}

// handshake makes one TCP connection and resets it, so that it leaves nothing in the client's tables.
func handshake(to netip.AddrPort) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return err
	}
	return unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
}

// threadTime returns the CPU time of the calling thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// close removes the containers.
func (p *publisher) close(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	containers := []container{p.client}
	for _, f := range p.filled {
		_, err := p.publish(ctx, "DEL", f.container, f.result, f.ports)
		errs = append(errs, err)
		containers = append(containers, f.container)
	}
	return errors.Join(append(errs, program(ctx, "ip", "link", "del", clientLink), dropContainers(containers))...)
}

// serve accepts and closes connections in a namespace until the listener is closed.
func serve(netns string) (l net.Listener, err error) {
	err = inside(netns, func() error {
		l, err = net.Listen("tcp4", ":80")
		return err
	})
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	return l, nil
}

// inside runs f on a thread in a network namespace. The thread is never used again.
func inside(netns string, f func() error) error {
	fd, err := unix.Open(netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %q: %w", filepath.Base(netns), err)
	}
	defer unix.Close(fd)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked: the runtime ends the thread with the goroutine
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter %q: %w", filepath.Base(netns), err)
			return
		}
		done <- f()
	}()
	return <-done
}

// publishedRows compares the fullest tables with the emptiest, and with the reference's.
func publishedRows(list []publishedResult) []row {
	if len(list) == 0 {
		return nil
	}
	few, many := list[0], list[len(list)-1]
	var rows []row
	for _, verb := range []struct {
		name string
		of   func(publishedResult) compared
	}{{"ADD", func(p publishedResult) compared { return p.Add }}, {"DEL", func(p publishedResult) compared { return p.Del }}} {
		c, f := verb.of(many), verb.of(few)
		grown := ratio(float64(c.Ours.P50), float64(f.Ours.P50))
		rows = append(rows, row{
			What: fmt.Sprintf("%s of that list beside %d published ports, p50", verb.name, many.Ports),
			Ours: ms(c.Ours.P50), Peer: ms(c.Peer.P50), Ratio: fmt.Sprintf("%.2f × that beside %d", grown, few.Ports),
			Target: fmt.Sprintf("≤ %.1f ×", grownAtMost), Met: grown > 0 && grown <= grownAtMost, Key: grown,
		})
	}
	return append(rows, speedRow(fmt.Sprintf("a connection to one of %d published ports, p50", many.Ports), many.Connect, 0))
}

// grownAtMost bounds the cost of a call beside many published ports, as a multiple of the cost beside few: only noise of the
// machine is allowed.
const grownAtMost = 1.2

// renderPublished returns the curve.
func renderPublished(list []publishedResult) string {
	if len(list) == 0 {
		return ""
	}
	var cells [][]string
	for _, p := range list {
		cells = append(cells, []string{
			strconv.Itoa(p.Ports), ms(p.Add.Ours.P50), ms(p.Add.Peer.P50), ms(p.Del.Ours.P50), ms(p.Del.Peer.P50),
			ms(p.Connect.Ours.P50), ms(p.Connect.Peer.P50), ms(p.CPU[0]), ms(p.CPU[1]),
		})
	}
	header := []string{"ports published", "cnibox ADD", "reference ADD", "cnibox DEL", "reference DEL", "cnibox connection", "reference connection", "cnibox CPU", "reference CPU"}
	return "\n## Published ports\n\n" + renderTable(header, cells)
}
