package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// otherNode is the name of the other node's namespace.
	otherNode = "other"
	ownPod    = "10.0.1.5"
	otherPod  = "10.0.9.5"
	otherMAC  = "0e:00:00:00:09:09"
	handMAC   = "0e:00:00:00:01:01"
	// rounds of each side, which take turns; every round has the same length.
	rounds      = 60
	roundLength = 250 * time.Millisecond
)

// rates are medians of all rounds: of the tunnel made by hand and of the agent's in Gbit/s, and of the ratio of the two, which differs
// less between runs than the rates.
type rates struct{ hand, ours, ratio float64 }

// throughput sends from a pod of this node to a pod of another node, in turn over a tunnel made by hand and over the agent's.
func throughput(ctx context.Context, binary, dir string) (r rates, err error) {
	note("throughput")
	if err := makeOther(ctx); err != nil {
		return r, err
	}
	l, err := listenThere()
	if err != nil {
		return r, err
	}
	defer l.Close()
	go sink(l)
	cluster := filepath.Join(dir, "cluster")
	if err := os.MkdirAll(filepath.Join(cluster, "nodes"), 0o700); err != nil {
		return r, err
	}
	for name, content := range map[string]string{
		"config.json":      `{"Network":"10.0.0.0/8","SubnetLen":24,"SubnetMin":"10.0.1.0","SubnetMax":"10.0.1.0","Backend":{"Type":"vxlan"}}`,
		"nodes/other.json": `{"name":"other","publicIP":"172.16.0.2","podCIDRs":["10.0.9.0/24"],"backendType":"vxlan","backendData":{"VNI":1,"VtepMAC":"` + otherMAC + `"}}`,
	} {
		if err := os.WriteFile(filepath.Join(cluster, name), []byte(content), 0o600); err != nil {
			return r, err
		}
	}
	a := &agent{binary: binary, dir: dir, peers: 1, flags: []string{"-cluster-dir", cluster}}
	var hand, ours, ratio []float64
	for range rounds {
		h, err := byHand(ctx)
		if err != nil {
			return r, err
		}
		o, err := byAgent(ctx, a)
		if err != nil {
			return r, err
		}
		hand, ours, ratio = append(hand, h), append(ours, o), append(ratio, o/h)
	}
	return rates{median(hand), median(ours), median(ratio)}, nil
}

// makeOther makes the other node as flannel does.
func makeOther(ctx context.Context) error {
	in := "ip -n " + otherNode + " "
	return command(ctx,
		"ip addr add "+ownPod+"/32 dev lo", "ip netns add "+otherNode, "ip link set under1 netns "+otherNode,
		in+"link set lo up", in+"addr add 172.16.0.2/12 dev under1", in+"link set under1 up", in+"addr add "+otherPod+"/32 dev lo",
		in+"link add flannel.1 address "+otherMAC+" type vxlan id 1 dev under1 local 172.16.0.2 dstport 8472 nolearning",
		in+"addr add 10.0.9.0/32 dev flannel.1", in+"link set flannel.1 up", in+"route add 10.0.1.0/24 via 10.0.1.0 dev flannel.1 onlink",
	)
}

// addVTEP gives the other node the entries for this node's VXLAN device.
func addVTEP(ctx context.Context, mac string) error {
	return command(ctx,
		"ip -n "+otherNode+" neigh replace 10.0.1.0 lladdr "+mac+" dev flannel.1 nud permanent",
		"bridge -n "+otherNode+" fdb replace "+mac+" dev flannel.1 dst 172.16.0.1 self permanent")
}

func byHand(ctx context.Context) (rate float64, err error) {
	if err := command(ctx,
		"ip link add flannel.1 address "+handMAC+" type vxlan id 1 dev under0 local 172.16.0.1 dstport 8472 nolearning",
		"ip addr add 10.0.1.0/32 dev flannel.1", "ip link set flannel.1 up",
		"ip neigh replace 10.0.9.0 lladdr "+otherMAC+" dev flannel.1 nud permanent", "bridge fdb replace "+otherMAC+" dev flannel.1 dst 172.16.0.2 self permanent",
		"ip route replace 10.0.9.0/24 via 10.0.9.0 dev flannel.1 onlink"); err != nil {
		return 0, err
	}
	if err := addVTEP(ctx, handMAC); err != nil {
		return 0, err
	}
	if rate, err = send(ctx); err != nil {
		return 0, err
	}
	return rate, command(ctx, "ip link del flannel.1")
}

func byAgent(ctx context.Context, a *agent) (rate float64, err error) {
	if _, err := a.start(ctx); err != nil {
		return 0, err
	}
	own, err := net.InterfaceByName("flannel.1")
	if err == nil {
		err = addVTEP(ctx, own.HardwareAddr.String())
	}
	if err == nil {
		rate, err = send(ctx)
	}
	if stopped := a.stop(ctx); err == nil {
		err = stopped
	}
	return rate, err
}

// listenThere listens in the other node's pod.
func listenThere() (net.Listener, error) {
	type answer struct {
		l   net.Listener
		err error
	}
	done := make(chan answer)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine, in the other namespace
		ns, err := os.Open("/run/netns/" + otherNode)
		if err == nil {
			defer ns.Close()
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			done <- answer{nil, err}
			return
		}
		l, err := net.Listen("tcp4", otherPod+":9000")
		done <- answer{l, err}
	}()
	a := <-done
	return a.l, a.err
}

func sink(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 1<<20))
		}()
	}
}

// send sends for a round over one connection.
func send(ctx context.Context) (float64, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ownPod)}, Timeout: 10 * time.Second}
	c, err := d.DialContext(ctx, "tcp4", otherPod+":9000")
	if err != nil {
		return 0, fmt.Errorf("between pods: %w", err)
	}
	defer c.Close()
	b := []byte(strings.Repeat("x", 1<<20))
	sent := 0
	start := time.Now()
	for time.Since(start) < roundLength {
		n, err := c.Write(b)
		if err != nil {
			return 0, err
		}
		sent += n
	}
	return float64(sent) * 8 / time.Since(start).Seconds() / 1e9, nil
}
