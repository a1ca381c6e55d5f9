package migrate

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

// LeaseFile is the content of an address file of the reference's host-local.
type LeaseFile struct {
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

// ParseLeaseFile parses an address file. Its name is the address. Its content is the
// container ID, CR LF (LF in some builds of 2018) and the interface's name; before 2018
// the container ID only.
func ParseLeaseFile(name string, content []byte) (LeaseFile, error) {
	addr, err := roles.ParseAddr(name)
	if err != nil {
		addr, err = roles.ParseAddr(strings.ReplaceAll(name, "_", ":")) // the form for Windows
	}
	if err != nil {
		return LeaseFile{}, errors.New("its name is not an address")
	}
	text := string(bytes.TrimSpace(content))
	if text == "" {
		return LeaseFile{}, errors.New("empty: the address counts as free")
	}
	if !utf8.ValidString(text) {
		return LeaseFile{}, errors.New("not UTF-8")
	}
	id, ifName, ok := strings.Cut(text, LeaseBreak)
	if !ok {
		id, ifName, ok = strings.Cut(text, "\n")
	}
	f := LeaseFile{Address: addr, ContainerID: strings.TrimSpace(id), IfName: ifName}
	if !roles.IsName(f.ContainerID) || ok && roles.LinkName(f.IfName) != nil {
		return LeaseFile{}, errors.New("contains no container ID and interface name")
	}
	return f, nil
}
