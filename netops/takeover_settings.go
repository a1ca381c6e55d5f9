package netops

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// Settings of an interface that are copied last.
const (
	rpFilter  = "rp_filter"
	acceptDAD = "accept_dad"
)

// makeBridge creates the bridge if it is absent. It sets the bridge up with the
// uplink's MAC address, MTU and settings.
func (r *takeoverRun) makeBridge(ctx context.Context) error {
	mac := r.up.MAC.String()
	if r.br == nil {
		l := &Link{In: Host, Shared: true, Name: r.Bridge, Kind: rtnl.KindBridge, MAC: mac, Alias: r.alias(true)}
		msgs, err := l.create(ctx, r.session)
		if err != nil {
			return err
		}
		if err := r.send(ctx, stepRequests{Step{VerbAdd, l}, msgs}); err != nil {
			return err
		}
		r.br, err = r.link(ctx, Host, r.Bridge)
		if err != nil {
			return err
		}
	}
	set := &Link{In: Host, Shared: true, Name: r.Bridge, Up: true, MTU: r.up.MTU}
	if !rtnl.SameMAC(mac, r.br.MAC) {
		set.MAC = mac
	}
	if ownLabel(r.br.Alias) == takeoverLabel {
		set.Alias = r.alias(true)
		if err := r.copySettings(ctx); err != nil {
			return err
		}
	}
	if err := r.relaxRPFilter(ctx); err != nil {
		return err
	}
	// Set the MTU in a separate request. The MTU that a bridge was created
	// with follows the MTUs of its ports.
	m, err := set.setAt(ctx, r.session, r.br.Index)
	if err != nil {
		return err
	}
	return r.send(ctx, stepRequests{Step{VerbSet, set}, []nlconn.Message{m}})
}

// finish sets the settings that relaxRPFilter relaxed and marks the takeover as
// complete.
func (r *takeoverRun) finish(ctx context.Context) error {
	for _, key := range []string{"net/ipv4/conf/%/" + rpFilter, "net/ipv6/conf/%/" + acceptDAD} {
		if err := r.copySetting(ctx, key); err != nil {
			return err
		}
	}
	if ownLabel(r.br.Alias) != takeoverLabel {
		return nil
	}
	if err := r.removeDetour(ctx); err != nil {
		return err
	}
	done := &Link{In: Host, Shared: true, Name: r.Bridge, Alias: r.alias(false)}
	m, err := done.setAt(ctx, r.session, r.br.Index)
	if err != nil {
		return err
	}
	return r.send(ctx, stepRequests{Step{VerbSet, done}, []nlconn.Message{m}})
}

// relaxRPFilter makes the source check accept packets that the bridge receives while
// the route back uses the uplink. The kernel uses the maximum of the link's and
// all's rp_filter. The loose check, 2, is the largest value. The bridge's
// link-local address needs no duplicate address detection, because the uplink
// had it.
func (r *takeoverRun) relaxRPFilter(ctx context.Context) error {
	value := "2"
	all, err := r.sysctl(Host, "net/ipv4/conf/all/"+rpFilter)
	if err != nil {
		return err
	}
	own, err := r.setting("net/ipv4/conf/%/"+rpFilter, r.Uplink)
	if err != nil {
		return err
	}
	if all == "0" && own == "0" {
		value = "0"
	}
	if err := r.change(ctx, "net/ipv4/conf/%/"+rpFilter, value); err != nil {
		return err
	}
	return r.change(ctx, "net/ipv6/conf/%/"+acceptDAD, "0")
}

// followRouterAdverts records in to whether the kernel follows router advertisements on
// the uplink, and so on the bridge (accept_ra in
// Documentation/networking/ip-sysctl.rst).
func (r *takeoverRun) followRouterAdverts(to *moveTarget) error {
	accept, err := r.setting("net/ipv6/conf/%/accept_ra", r.Uplink)
	if err != nil {
		return err
	}
	forwarding, err := r.setting("net/ipv6/conf/%/forwarding", r.Uplink)
	if err != nil || accept != "2" && (accept != "1" || forwarding != "0") {
		return err
	}
	metric, err := r.setting("net/ipv6/conf/%/ra_defrtr_metric", r.Uplink)
	to.expires, to.advertMetric = true, defaultMetric6
	if metric != "" {
		to.advertMetric, _ = strconv.Atoi(metric)
	}
	return err
}

// copySettings copies the uplink's settings to the bridge, except those of
// relaxRPFilter.
func (r *takeoverRun) copySettings(ctx context.Context) error {
	// Do not copy the two settings of relaxRPFilter. mc_forwarding belongs to the
	// multicast routing daemon, stable_secret to the uplink's addresses, and
	// mtu is set with the link.
	excluded := []string{rpFilter, acceptDAD, "mc_forwarding", "stable_secret", "mtu"}
	for _, dir := range []string{"net/ipv4/conf/", "net/ipv6/conf/"} {
		var files []os.DirEntry
		err := r.net.host.visit(func() (err error) {
			files, err = os.ReadDir(sysctlRoot + dir + r.Uplink)
			return err
		})
		if errors.Is(err, os.ErrNotExist) {
			continue // no IPv6
		}
		if err != nil {
			return nlconn.Explain(err, "list the settings of "+r.Uplink)
		}
		for _, f := range files {
			if slices.Contains(excluded, f.Name()) {
				continue
			}
			if err := r.copySetting(ctx, dir+"%/"+f.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

// copySetting copies one setting from the uplink to the bridge. It skips a
// setting that cannot be read or that the kernel refuses, because such a setting
// follows from others.
func (r *takeoverRun) copySetting(ctx context.Context, key string) error {
	value, err := r.setting(key, r.Uplink)
	if errors.Is(err, unix.EIO) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil || value == "" {
		return err
	}
	if path.Base(key) == "addr_gen_mode" && value != "0" {
		value = "1" // none: the uplink's addresses are copied, and other modes need its secret
	}
	err = r.change(ctx, key, value)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EACCES) {
		return nil
	}
	return err
}

// setting reads a setting of a link, whose name replaces "%" in the key. It
// returns "" if the setting is absent.
func (r *takeoverRun) setting(key, link string) (string, error) {
	value, err := r.sysctl(Host, strings.Replace(key, "%", link, 1))
	if errors.Is(err, ErrNotExist) {
		return "", nil
	}
	return value, err
}

// change sets one of the bridge's settings if it differs.
func (r *takeoverRun) change(ctx context.Context, key, value string) error {
	return r.changeOf(ctx, r.Bridge, key, value)
}

// changeOf sets a setting of a link if it exists and differs.
func (r *takeoverRun) changeOf(ctx context.Context, link, key, value string) error {
	have, err := r.setting(key, link)
	if err != nil || have == "" || have == value {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c := &Sysctl{In: Host, Shared: true, Key: strings.Replace(key, "%", link, 1), Value: value}
	st := Step{VerbSet, c}
	return r.probed(st, func() error { return describeStep(st, r.net.host.visit(c.write)) })
}
