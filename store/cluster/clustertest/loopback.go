package clustertest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Loopback sets lo up, which is down in a fresh network namespace. Tests with their
// own servers need it.
func Loopback(tb testing.TB) {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		tb.Fatal(err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo); err != nil {
		tb.Fatal(err)
	}
	if lo.Uint16()&unix.IFF_UP != 0 {
		return
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		tb.Fatalf("set lo up: %v", err)
	}
}
