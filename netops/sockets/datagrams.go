package sockets

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// Datagrams counts the UDP datagrams that the host received, of both families, since its namespace exists.
type Datagrams struct {
	// Received includes those with a wrong checksum, which the kernel drops.
	Received, WrongChecksum uint64
}

// CountDatagrams reads the kernel's counters. Those of VXLAN packets are of the outer UDP header.
func CountDatagrams() (Datagrams, error) {
	const dir = "/proc/thread-self/net/"
	v4, err := os.ReadFile(dir + "snmp")
	if err != nil {
		return Datagrams{}, err
	}
	v6, err := os.ReadFile(dir + "snmp6")
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the kernel has no IPv6
	}
	return parseDatagrams(string(v4), string(v6)), err
}

// parseDatagrams reads the files snmp, whose protocols have a line of names and a line of numbers, and snmp6, which
// has a line for each name.
func parseDatagrams(v4, v6 string) (d Datagrams) {
	add := func(name, number string) {
		n, _ := strconv.ParseUint(number, 10, 64)
		switch name {
		case "InDatagrams", "Udp6InDatagrams":
			d.Received += n
		case "InCsumErrors", "Udp6InCsumErrors":
			d.Received, d.WrongChecksum = d.Received+n, d.WrongChecksum+n
		}
	}
	var names []string
	for line := range strings.Lines(v4) {
		f := strings.Fields(line)
		for i := 1; i < len(f) && len(f) == len(names) && f[0] == "Udp:"; i++ {
			add(names[i], f[i])
		}
		names = f
	}
	for line := range strings.Lines(v6) {
		name, number, _ := strings.Cut(line, " ")
		add(name, strings.TrimSpace(number))
	}
	return d
}
