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

// Settings of an interface that matter to the order of things.
const (
	rpFilter  = "rp_filter"
	acceptDAD = "accept_dad"
)

// makeBridge makes the bridge, unless it is there, and has it up with the uplink's
// MAC, MTU and settings.
func (r *takeoverRun) makeBridge(ctx context.Context) error {
	mac := r.up.MAC.String()
	if r.br == nil {
		l := &Link{In: Host, Shared: true, Name: r.Bridge, Kind: rtnl.KindBridge, MAC: mac, Alias: r.alias(true)}
		msgs, err := l.create(ctx, r.session)
		if err != nil {
			return err
		}
		if err := r.send(ctx, piece{Step{VerbAdd, l}, msgs}); err != nil {
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
	if err := r.loosen(ctx); err != nil {
		return err
	}
	// The MTU by itself: one that a bridge was made with follows its ports'.
	m, err := set.setAt(ctx, r.session, r.br.Index)
	if err != nil {
		return err
	}
	return r.send(ctx, piece{Step{VerbSet, set}, []nlconn.Message{m}})
}

// finish gives the bridge the settings that were loosened, and tells that all is done.
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
	return r.send(ctx, piece{Step{VerbSet, done}, []nlconn.Message{m}})
}

// loosen has packets pass the source's check that come in by the bridge while
// their way back is by the uplink. The kernel takes the greater of this setting
// and all's, and 2, the loose check, is the greatest. The bridge's own link-local
// address needs no duplicate address detection: the uplink had it.
func (r *takeoverRun) loosen(ctx context.Context) error {
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

// heedAdverts notes whether the kernel follows router advertisements on the uplink,
// and so on the bridge (accept_ra in Documentation/networking/ip-sysctl.rst).
func (r *takeoverRun) heedAdverts(to *on) error {
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

// copySettings gives the bridge the uplink's, but for those of loosen.
func (r *takeoverRun) copySettings(ctx context.Context) error {
	// Of the router's multicast daemon, of one address each, and the link's own.
	apart := []string{rpFilter, acceptDAD, "mc_forwarding", "stable_secret", "mtu"}
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
			if slices.Contains(apart, f.Name()) {
				continue
			}
			if err := r.copySetting(ctx, dir+"%/"+f.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

// copySetting gives the bridge one of the uplink's settings. What cannot be read
// or is refused is left: it follows from others.
func (r *takeoverRun) copySetting(ctx context.Context, key string) error {
	value, err := r.setting(key, r.Uplink)
	if errors.Is(err, unix.EIO) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil || value == "" {
		return err
	}
	if path.Base(key) == "addr_gen_mode" && value != "0" {
		value = "1" // none: the uplink's addresses are copied, and others need its secret
	}
	err = r.change(ctx, key, value)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EACCES) {
		return nil
	}
	return err
}

// setting reads one of a link's settings, whose name stands for "%" in the key; ""
// if there is none.
func (r *takeoverRun) setting(key, link string) (string, error) {
	value, err := r.sysctl(Host, strings.Replace(key, "%", link, 1))
	if errors.Is(err, ErrNotExist) {
		return "", nil
	}
	return value, err
}

// change sets one of the bridge's settings, if it differs.
func (r *takeoverRun) change(ctx context.Context, key, value string) error {
	return r.changeOf(ctx, r.Bridge, key, value)
}

// changeOf sets one of a link's settings, if it is there and differs.
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
	if p := r.net.probe; p != nil {
		if err := p.Before(st); err != nil {
			return describeStep(st, err)
		}
	}
	if err := r.net.host.visit(c.write); err != nil {
		return describeStep(st, err)
	}
	if p := r.net.probe; p != nil {
		p.After(st)
	}
	return nil
}
