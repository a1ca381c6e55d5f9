package metadata

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/store"
)

// azureFile is the default file of azure-vnet-ipam's environment fileIpam.
const azureFile = "/etc/kubernetes/interfaces.json"

func file() Provider {
	return Provider{
		Name: "file", Default: azureFile,
		Summary: "a file: azure's interfaces.json, a saved reply of azure's host agent, or a list of interfaces in cnibox's format",
		Fetch: func(_ context.Context, q Query) (*Reply, error) {
			path := q.File
			if path == "" {
				path = azureFile
			}
			b, err := readFile(path)
			if err != nil {
				return nil, err
			}
			nics, err := decodeFile(b)
			if err != nil {
				return nil, fmt.Errorf("file %q: %w", path, err)
			}
			return finish("file", nics, q.Own, fmt.Sprintf("%q lists no address that is not the node's own", path))
		},
	}
}

// readFile reads a file. Only root may be able to write it, because it determines which addresses
// pods get. A symbolic link to another directory is not followed.
func readFile(path string) ([]byte, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("file %q: %w: want an absolute path", path, ErrInvalid)
	}
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err == nil {
		defer dir.Close()
		var b []byte
		if b, err = smallfile.ReadTrusted(dir, filepath.Base(path), maxBody); err == nil {
			return b, nil
		}
	}
	kind := ErrUnavailable
	if errors.Is(err, smallfile.ErrWritable) || errors.Is(err, os.ErrPermission) {
		kind = ErrRefused
	}
	return nil, fmt.Errorf("file: %w: %w", kind, err)
}

// decodeFile selects the format by the first character.
func decodeFile(b []byte) ([]nic, error) {
	b = bytes.TrimLeft(bytes.TrimPrefix(b, []byte("\ufeff")), " \t\r\n")
	switch {
	case len(b) == 0:
		return nil, fmt.Errorf("%w: empty", ErrInvalid)
	case b[0] == '<':
		return decodeAzure(b)
	case b[0] == '[':
		return decodePlain(b)
	}
	return decodeInterfaces(b)
}

// decodeInterfaces parses azure's interfaces.json.
func decodeInterfaces(b []byte) ([]nic, error) {
	var doc struct {
		Interfaces []struct {
			MacAddress string
			IsPrimary  bool
			IPSubnets  []struct {
				Prefix      string
				IPAddresses []struct {
					Address   string
					IsPrimary bool
				}
			}
		}
	}
	if err := fromJSON(b, &doc); err != nil {
		return nil, err
	}
	nics := make([]nic, 0, len(doc.Interfaces))
	for _, i := range doc.Interfaces {
		n := nic{mac: i.MacAddress, device: unnumbered, primary: i.IsPrimary, dns: []string{azureDNS}}
		for _, s := range i.IPSubnets {
			to := subnet{prefix: s.Prefix}
			for _, a := range s.IPAddresses {
				if a.IsPrimary {
					to.own = append(to.own, a.Address)
				} else {
					to.addresses = append(to.addresses, a.Address)
				}
			}
			n.subnets = append(n.subnets, to)
		}
		nics = append(nics, n)
	}
	return nics, nil
}

// decodePlain parses a list of store.CloudNIC. Prefixes and addresses are strings here, so that an
// invalid one is dropped and reported, as for clouds.
func decodePlain(b []byte) ([]nic, error) {
	var doc []struct {
		store.CloudNIC
		Subnets []struct {
			Prefix    string   `json:"prefix"`
			Gateway   string   `json:"gateway"`
			Own       []string `json:"own"`
			Addresses []string `json:"addresses"`
			Ranges    []string `json:"ranges"`
		} `json:"subnets"`
		Network []string `json:"network"`
		DNS     []string `json:"dns"`
		Device  *int     `json:"device"`
	}
	if err := fromJSON(b, &doc); err != nil {
		return nil, err
	}
	nics := make([]nic, 0, len(doc))
	for _, d := range doc {
		n := nic{mac: d.MAC, id: d.ID, device: unnumbered, primary: d.Primary, mtu: d.MTU, network: d.Network, dns: d.DNS}
		if d.Device != nil && *d.Device >= 0 {
			n.device = *d.Device
		}
		for _, s := range d.Subnets {
			n.subnets = append(n.subnets, subnet{prefix: s.Prefix, gateway: s.Gateway, own: s.Own, addresses: s.Addresses, ranges: s.Ranges})
		}
		nics = append(nics, n)
	}
	return nics, nil
}

// withBits returns the prefix of an address and its length.
func withBits(addr string, bits int) string {
	a, err := netip.ParseAddr(addr)
	if err != nil || bits < 0 || bits > a.BitLen() {
		return fmt.Sprintf("%s/%d", addr, bits)
	}
	return netip.PrefixFrom(a, bits).Masked().String()
}
