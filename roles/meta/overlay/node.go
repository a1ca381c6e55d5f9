package overlay

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// maxEnv is the maximum size of a subnet file in bytes.
const maxEnv = 64 << 10

// readNode reads this node's pod networks. If they are not available yet, the error is
// roles.ErrTryAgain.
func (c *Conf) readNode(h *roles.Host) (*store.Overlay, error) {
	if c.SubnetFile != "" {
		return readSubnetFile(c.SubnetFile)
	}
	path := c.OverlayFile
	if path == "" {
		path = h.Store.OverlayPath()
	}
	o, err := store.ReadOverlay(path)
	if errors.Is(err, store.ErrNotFound) && c.OverlayFile == "" {
		if o, err = readSubnetFile(defaultSubnetFile); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: neither %q nor %q exists: the agent or flanneld has not started on this node", roles.ErrTryAgain, path, defaultSubnetFile)
		}
		return o, err
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("%w: %q does not exist: the agent has not started on this node", roles.ErrTryAgain, path)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case o.BootID != h.Store.BootID():
		return nil, fmt.Errorf("%w: %q was written before the last reboot: the agent has not started since", roles.ErrTryAgain, path)
	case !o.Ready:
		return nil, fmt.Errorf("%w: the agent is not ready: %s", roles.ErrTryAgain, o.Reason)
	case o.IPv4 == nil && o.IPv6 == nil:
		return nil, fmt.Errorf("%w: %q has no pod network", roles.ErrTryAgain, path)
	}
	return o, nil
}

// readSubnetFile reads flanneld's file.
func readSubnetFile(path string) (*store.Overlay, error) {
	raw, err := smallfile.Read(path, maxEnv)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w: flanneld, or the agent, has not started on this node", roles.ErrTryAgain, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read subnet file: %w", err)
	}
	o, err := parseSubnetFile(raw)
	if err != nil {
		return nil, fmt.Errorf("subnet file %q: %w", path, err)
	}
	return o, nil
}

// parseSubnetFile decodes FLANNEL_NETWORK, FLANNEL_SUBNET, the same keys with FLANNEL_IPV6_,
// FLANNEL_MTU and FLANNEL_IPMASQ. Networks may be lists. Other lines are ignored.
func parseSubnetFile(raw []byte) (*store.Overlay, error) {
	values := map[string]string{}
	for sc := bufio.NewScanner(bytes.NewReader(raw)); sc.Scan(); {
		if key, value, ok := strings.Cut(strings.TrimSpace(sc.Text()), "="); ok {
			values[key] = value
		}
	}
	o := &store.Overlay{Ready: true}
	var errs [5]error
	o.IPv4, errs[0] = parseFamily(values, "FLANNEL_", netip.Addr.Is4)
	o.IPv6, errs[1] = parseFamily(values, "FLANNEL_IPV6_", netip.Addr.Is6)
	if o.IPv4 == nil && o.IPv6 == nil {
		errs[2] = fmt.Errorf("%w: has neither FLANNEL_NETWORK with FLANNEL_SUBNET nor FLANNEL_IPV6_NETWORK with FLANNEL_IPV6_SUBNET", roles.ErrDecode)
	}
	mtu, err := strconv.ParseUint(values["FLANNEL_MTU"], 10, 16)
	o.MTU = int(mtu)
	if err != nil || mtu == 0 {
		errs[3] = fmt.Errorf("%w: FLANNEL_MTU=%q is not an MTU", roles.ErrDecode, values["FLANNEL_MTU"])
	}
	o.IPMasq, err = strconv.ParseBool(values["FLANNEL_IPMASQ"])
	if err != nil {
		errs[4] = fmt.Errorf("%w: FLANNEL_IPMASQ=%q is neither true nor false", roles.ErrDecode, values["FLANNEL_IPMASQ"])
	}
	return o, errors.Join(errs[:]...)
}

// parseFamily parses one address family of a subnet file. It returns nil if the file does not have
// the family.
func parseFamily(values map[string]string, prefix string, is func(netip.Addr) bool) (*store.OverlayFamily, error) {
	networks, subnet := values[prefix+"NETWORK"], values[prefix+"SUBNET"]
	if networks == "" && subnet == "" {
		return nil, nil
	}
	var fam store.OverlayFamily
	for n := range strings.SplitSeq(networks, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(n))
		if err != nil || !is(p.Addr()) {
			return nil, fmt.Errorf("%w: %sNETWORK=%q is not a network of its address family", roles.ErrDecode, prefix, networks)
		}
		if p = p.Masked(); !slices.Contains(fam.Networks, p) {
			fam.Networks = append(fam.Networks, p)
		}
	}
	p, err := netip.ParsePrefix(subnet)
	if err != nil || !is(p.Addr()) {
		return nil, fmt.Errorf("%w: %sSUBNET=%q is not a subnet of its address family", roles.ErrDecode, prefix, subnet)
	}
	fam.Subnet = p.Masked()
	return &fam, nil
}
