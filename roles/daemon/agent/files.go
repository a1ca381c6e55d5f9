package agent

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/store"
)

// files are those that CNI calls read: the hand-off file, and flannel's.
type files struct {
	overlay, subnetEnv string
	// wrote is what the hand-off file says, but for its time, and env what flannel's does.
	wrote store.Overlay
	env   string
	known bool
	// overlayIs and envIs are the files as they were written.
	overlayIs, envIs fs.FileInfo
	// inherited: a former agent left a hand-off that is ready.
	inherited bool
}

// openFiles looks at what a former agent left. A hand-off that is ready stays as
// it is until there is more to tell: pods may be attached while an agent starts.
func openFiles(overlay, subnetEnv, boot string) files {
	o, err := store.ReadOverlay(overlay)
	return files{overlay: overlay, subnetEnv: subnetEnv, inherited: err == nil && o.Ready && o.BootID == boot}
}

// write writes what differs from what was written last, or is gone, or was
// written by somebody else.
func (w *files) write(o *store.Overlay, now func() time.Time) error {
	if !w.same(o) || isOther(w.overlay, w.overlayIs) {
		if err := os.MkdirAll(filepath.Dir(w.overlay), 0o700); err != nil {
			return err
		}
		c := *o
		c.Time = now()
		if err := store.WriteOverlay(w.overlay, &c); err != nil {
			return err
		}
		w.wrote, w.known = *o, true
		w.overlayIs, _ = os.Lstat(w.overlay)
	}
	if !o.Ready || w.subnetEnv == "" {
		return nil
	}
	env := subnetEnv(o)
	if env == w.env && !isOther(w.subnetEnv, w.envIs) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(w.subnetEnv), 0o755); err != nil { //nolint:gosec // flannel's plugin may be anybody's
		return err
	}
	if err := smallfile.Replace(w.subnetEnv, []byte(env), 0o644); err != nil {
		return fmt.Errorf("write %q: %w", w.subnetEnv, err)
	}
	w.env = env
	w.envIs, _ = os.Lstat(w.subnetEnv)
	return nil
}

// isOther tells whether a file is not the one that was written.
func isOther(path string, was fs.FileInfo) bool {
	is, err := os.Lstat(path)
	return err != nil || was == nil || !os.SameFile(is, was) || !is.ModTime().Equal(was.ModTime()) || is.Size() != was.Size()
}

func isGone(path string) bool {
	_, err := os.Lstat(path)
	return err != nil
}

// same tells whether that was written.
func (w *files) same(o *store.Overlay) bool {
	return w.known && w.wrote.Ready == o.Ready && w.wrote.Reason == o.Reason && w.wrote.IPMasq == o.IPMasq && w.wrote.MTU == o.MTU &&
		w.wrote.Peers == o.Peers && sameFamily(w.wrote.IPv4, o.IPv4) && sameFamily(w.wrote.IPv6, o.IPv6)
}

// subnetEnv is flannel's file: what its CNI plugin reads (KEY=value lines).
func subnetEnv(o *store.Overlay) string {
	var b strings.Builder
	family := func(prefix string, f *store.OverlayFamily) {
		if f == nil {
			return
		}
		var networks []string
		for _, n := range f.Networks {
			networks = append(networks, n.String())
		}
		fmt.Fprintf(&b, "FLANNEL_%sNETWORK=%s\nFLANNEL_%sSUBNET=%s\n", prefix, strings.Join(networks, ","), prefix, gateway(f.Subnet))
	}
	family("", o.IPv4)
	family("IPV6_", o.IPv6)
	fmt.Fprintf(&b, "FLANNEL_MTU=%d\nFLANNEL_IPMASQ=%t\n", o.MTU, o.IPMasq)
	return b.String()
}

// gateway is a subnet's first address after its own, which the node's bridge gets.
func gateway(subnet netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits())
}
