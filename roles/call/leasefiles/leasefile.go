// Package leasefiles has the files of the reference's host-local: it repeats our leases in them, and imports theirs, so that each
// program can replace the other at any time.
package leasefiles

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// LeaseBreak separates the lines of an address file.
const LeaseBreak = "\r\n"

// File is the content of an address file of the reference's host-local.
type File struct {
	Address     netip.Addr
	ContainerID string
	// IfName is empty in files of before 2018.
	IfName string
}

// leaseContent is the content of an address file.
func leaseContent(owner store.Key) []byte {
	if owner.IfName == "" {
		return []byte(owner.ContainerID)
	}
	return []byte(owner.ContainerID + LeaseBreak + owner.IfName)
}

// Parse parses an address file. Its name is the address. Its content is the
// container ID, CR LF (LF in some builds of 2018) and the interface's name; before 2018
// the container ID only.
func Parse(name string, content []byte) (File, error) {
	addr, err := roles.ParseAddr(name)
	if err != nil {
		addr, err = roles.ParseAddr(strings.ReplaceAll(name, "_", ":")) // the form for Windows
	}
	if err != nil {
		return File{}, errors.New("its name is not an address")
	}
	text := string(bytes.TrimSpace(content))
	if text == "" {
		return File{}, errors.New("empty: the address counts as free")
	}
	if !utf8.ValidString(text) {
		return File{}, errors.New("not UTF-8")
	}
	id, ifName, ok := strings.Cut(text, LeaseBreak)
	if !ok {
		id, ifName, ok = strings.Cut(text, "\n")
	}
	f := File{Address: addr, ContainerID: strings.TrimSpace(id), IfName: ifName}
	if !roles.IsName(f.ContainerID) || ok && roles.LinkName(f.IfName) != nil {
		return File{}, errors.New("contains no container ID and interface name")
	}
	return f, nil
}
