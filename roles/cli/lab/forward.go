package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/cnibox/cnibox/netops"
)

// Forward forwards connections from the switch to an address that this process can reach, until ctx
// ends. It gives the nodes access to the machine's etcd, and to no other service.
func (l *Lab) Forward(ctx context.Context, target string) error {
	s, err := l.Load()
	if err != nil {
		return err
	}
	ns, err := l.open(s.Switch)
	if err != nil {
		return err
	}
	defer ns.Close()
	var listener net.Listener
	err = ns.Run(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp4", forwarded)
		return err
	})
	if err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	var open sync.WaitGroup
	defer open.Wait()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("forward: %w", err)
		}
		open.Go(func() { pass(ctx, conn, target) })
	}
}

// pass copies between a connection and the target until one side ends.
func pass(ctx context.Context, from net.Conn, target string) {
	defer from.Close() //nolint:errcheck // its end is what is wanted
	to, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
	if err != nil {
		return // the client sees the end of the connection, as with a server that is down
	}
	defer to.Close() //nolint:errcheck // its end is what is wanted
	defer context.AfterFunc(ctx, func() { _, _ = from.Close(), to.Close() })()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		go func() {
			_, _ = io.Copy(way[0], way[1])
			ended <- struct{}{}
		}()
	}
	<-ended
}

// forwarderArgs returns the command line of the forwarder, which identifies its process.
func (l *Lab) forwarderArgs(target string) []string {
	return []string{"lab", "forward", "--dir", l.Dir, target}
}

// startForwarder starts the forwarder in this process's namespace.
func (l *Lab) startForwarder(s *State) error {
	target, err := hostPort(s.Endpoint)
	if err != nil {
		return err
	}
	here, err := l.here()
	if err != nil {
		return err
	}
	log, err := openLog(l.forwarderLog())
	if err != nil {
		return errors.Join(err, here.Close())
	}
	_, err = l.Self.Start(here, nil, l.forwarderArgs(target), log)
	return errors.Join(err, log.Close(), here.Close())
}

// here returns the namespace of this process.
func (l *Lab) here() (*netops.Namespace, error) {
	return l.Net.OpenNamespace("/proc/thread-self/ns/net")
}
