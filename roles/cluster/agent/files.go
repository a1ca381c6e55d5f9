package agent

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/store"
)

// files are the files that CNI calls read: the hand-off file and flannel's subnet.env.
type files struct {
	overlay, subnetEnv string
	// written is the content of the hand-off file without its time. env is the content of flannel's
	// file.
	written store.Overlay
	env     string
	known   bool
	// overlayIs and envIs identify the files as they were written.
	overlayIs, envIs fs.FileInfo
	// readyBefore is true if a former agent left a hand-off file that is ready.
	readyBefore bool
}

// openFiles reads what a former agent left. A hand-off file that is ready stays unchanged until the
// agent has published this node, so that pods can be attached while the agent starts.
func openFiles(overlay, subnetEnv, boot string) files {
	o, err := store.ReadOverlay(overlay)
	return files{overlay: overlay, subnetEnv: subnetEnv, readyBefore: err == nil && o.Ready && o.BootID == boot}
}

// write writes the files whose content changed, that were removed, or that another program
// replaced.
func (w *files) write(o *store.Overlay, now func() time.Time) error {
	if !w.isWritten(o) || changedOnDisk(w.overlay, w.overlayIs) {
		if err := os.MkdirAll(filepath.Dir(w.overlay), 0o700); err != nil {
			return err
		}
		c := *o
		c.Time = now()
		if err := store.WriteOverlay(w.overlay, &c); err != nil {
			return err
		}
		w.written, w.known = *o, true
		w.overlayIs, _ = os.Lstat(w.overlay)
	}
	if !o.Ready || w.subnetEnv == "" {
		return nil
	}
	env := subnetEnv(o)
	if env == w.env && !changedOnDisk(w.subnetEnv, w.envIs) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(w.subnetEnv), 0o755); err != nil { //nolint:gosec // flannel's plugin may run as another user
		return err
	}
	if err := smallfile.Replace(w.subnetEnv, []byte(env), 0o644); err != nil {
		return fmt.Errorf("write %q: %w", w.subnetEnv, err)
	}
	w.env = env
	w.envIs, _ = os.Lstat(w.subnetEnv)
	return nil
}

// changedOnDisk reports whether a file differs from the one that was written.
func changedOnDisk(path string, was fs.FileInfo) bool {
	is, err := os.Lstat(path)
	return err != nil || was == nil || !os.SameFile(is, was) || !is.ModTime().Equal(was.ModTime()) || is.Size() != was.Size()
}

// isWritten reports whether the hand-off file has this content.
func (w *files) isWritten(o *store.Overlay) bool { return w.known && reflect.DeepEqual(&w.written, o) }

// subnetEnv returns the file that flannel's CNI plugin reads: lines of KEY=value.
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

// gateway returns the second address of a subnet, which the node's bridge gets.
func gateway(subnet netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits())
}
