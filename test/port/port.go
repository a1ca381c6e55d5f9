// Package port chooses ports for servers that tests start as programs.
package port

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// Chosen ports are below those that the kernel assigns to clients (ip_local_port_range in ip-sysctl), so that no client takes one
// before its server listens. They are chosen at random, since tests of several packages share one loopback interface.
const first, last = 10000, 32000

// Free returns a port of 127.0.0.1 on which no process listens.
func Free() (int, error) {
	var errs []error
	for range 100 {
		n := first + rand.IntN(last-first)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", n))
		if err == nil {
			return n, l.Close()
		}
		errs = append(errs, err)
	}
	return 0, errors.Join(errs...)
}
