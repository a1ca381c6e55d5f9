package main

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// inside calls a function in a network namespace.
func inside[T any](name string, do func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine, in the other namespace
		var a answer
		ns, err := os.Open("/run/netns/" + name)
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			_ = ns.Close()
		}
		if err == nil {
			a.value, err = do()
		}
		a.err = err
		done <- a
	}()
	a := <-done
	return a.value, a.err
}

// insecure returns a client for the API server.
func insecure() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
}

// prober sends datagrams from one namespace to a pod.
type prober struct {
	from       string
	to         netip.Addr
	generation uint32
	arrivals   chan probeArrival
}

type probeArrival struct {
	generation uint32
	at         time.Time
}

// newProber opens the pod's ports, and the TCP ports to which connects connects.
func newProber(pod, from string, to netip.Addr) (*prober, error) {
	p := &prober{from: from, to: to, arrivals: make(chan probeArrival, 1<<16)}
	for port := 7000; port <= closedPort; port++ {
		c, err := inside(pod, func() (*net.UDPConn, error) { return net.ListenUDP("udp4", &net.UDPAddr{Port: port}) })
		if err != nil {
			return nil, err
		}
		go func() {
			b := make([]byte, 4)
			for {
				if _, err := c.Read(b); err != nil {
					return
				}
				p.arrivals <- probeArrival{binary.BigEndian.Uint32(b), time.Now()}
			}
		}()
	}
	for _, port := range []int{firstPort, lastPort} {
		l, err := inside(pod, func() (net.Listener, error) { return net.Listen("tcp4", fmt.Sprint(":", port)) })
		if err != nil {
			return nil, err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(c, c)
					_ = c.Close()
				}()
			}
		}()
	}
	return p, nil
}

// flood sends datagrams of a new connection until stop is called.
func (p *prober) flood(from netip.Addr, port int) (generation uint32, stop func(), err error) {
	c, err := inside(p.from, func() (*net.UDPConn, error) {
		return net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)))
	})
	if err != nil {
		return 0, nil, err
	}
	p.generation++
	text, to := binary.BigEndian.AppendUint32(nil, p.generation), net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.to, uint16(port)))
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		for {
			_, _ = c.WriteTo(text, to) // an ICMP error of an earlier one is no matter
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	return p.generation, func() { close(done); <-ended; _ = c.Close() }, nil
}

// first waits for the first datagram of a generation.
func (p *prober) first(generation uint32, within time.Duration) (time.Time, bool) {
	late := time.After(within)
	for {
		select {
		case a := <-p.arrivals:
			if a.generation == generation {
				return a.at, true
			}
		case <-late:
			return time.Time{}, false
		}
	}
}

// passes reports whether datagrams arrive.
func (p *prober) passes(from netip.Addr, port int) bool {
	generation, stop, err := p.flood(from, port)
	if err != nil {
		return true
	}
	defer stop()
	_, ok := p.first(generation, 300*time.Millisecond)
	return ok
}

// measure returns the time from the arrival of a change, which change returns, until the first datagram of a new connection arrives at a
// port that the change opens.
func (p *prober) measure(from netip.Addr, port int, change func() (time.Time, error)) (seconds, error) {
	var generation uint32
	var stop func()
	for begun := time.Now(); ; stop() { // kube-router closes a port some time after it has opened the next one
		var err error
		generation, stop, err = p.flood(from, port)
		if err != nil {
			return 0, err
		}
		if _, open := p.first(generation, 5*time.Millisecond); !open {
			break
		}
		if time.Since(begun) > patience {
			stop()
			return 0, errors.New("the port is open before the change")
		}
	}
	defer stop()
	arrived, err := change()
	if err != nil {
		return 0, err
	}
	at, ok := p.first(generation, patience)
	if !ok {
		return 0, errors.New("nothing arrives after the change")
	}
	return max(0, at.Sub(arrived)), nil
}

// connects returns the median time of TCP connections between two pods of this node.
func connects(from string, to netip.Addr, port int) (seconds, error) {
	all, err := inside(from, func() (all []seconds, err error) {
		for range connectsPerRound {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return nil, err
			}
			begun := time.Now()
			err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: to.As4()})
			all = append(all, time.Since(begun))
			if err == nil { // closed by RST, so that no port stays in use
				err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			}
			if err := errors.Join(err, unix.Close(fd)); err != nil {
				return nil, fmt.Errorf("connect to port %d: %w", port, err)
			}
		}
		return all, nil
	})
	if err != nil {
		return 0, err
	}
	return median(all), nil
}

// dialed calls a function with the descriptor of a connection to a server that answers with what it gets. Go's poller is not in the way.
func dialed(from string, to netip.Addr, port int, do func(fd int) (seconds, error)) (seconds, error) {
	return inside(from, func() (seconds, error) {
		c, err := net.Dial("tcp4", netip.AddrPortFrom(to, uint16(port)).String())
		if err != nil {
			return 0, err
		}
		defer c.Close()
		fd, err := c.(*net.TCPConn).File()
		if err != nil {
			return 0, err
		}
		defer fd.Close()
		return do(int(fd.Fd()))
	})
}

// trips returns the median time of a byte and its answer on an established connection.
func trips(from string, to netip.Addr, port int) (seconds, error) {
	return dialed(from, to, port, func(fd int) (seconds, error) {
		one, all := []byte{0}, []seconds(nil)
		for range connectsPerRound {
			begun := time.Now()
			if _, err := unix.Write(fd, one); err != nil {
				return 0, err
			}
			if _, err := unix.Read(fd, one); err != nil {
				return 0, err
			}
			all = append(all, time.Since(begun))
		}
		return median(all), nil
	})
}

// bulk returns the time in which an established connection carries bulkBytes to a server and back.
func bulk(from string, to netip.Addr, port int) (seconds, error) {
	return dialed(from, to, port, func(fd int) (seconds, error) {
		begun, sent := time.Now(), make(chan error, 1)
		go func() {
			block := make([]byte, 256<<10)
			for range bulkBytes / len(block) {
				for rest := block; len(rest) > 0; {
					n, err := unix.Write(fd, rest)
					if err != nil {
						sent <- err
						return
					}
					rest = rest[n:]
				}
			}
			sent <- unix.Shutdown(fd, unix.SHUT_WR)
		}()
		block := make([]byte, 256<<10)
		for got := 0; got < bulkBytes; {
			n, err := unix.Read(fd, block)
			if err != nil || n == 0 {
				return 0, errors.Join(err, <-sent)
			}
			got += n
		}
		return time.Since(begun), <-sent
	})
}
