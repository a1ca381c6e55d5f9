package tuning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// maxBackup is the maximum size in bytes of the reference plugin's file, which
// writes less than 200 bytes.
const maxBackup = 1 << 16

// backup is what the reference plugin records about an interface before it
// changes it, in the file "<container ID>_<interface>.json" of dataDir.
type backup struct {
	MAC      string `json:"mac"`
	Promisc  *bool  `json:"promisc"`
	MTU      int    `json:"mtu"`
	AllMulti *bool  `json:"allmulti"`
	TxQLen   *int   `json:"txQLen"`
}

// CleanReference restores an interface that the reference plugin tuned, and removes
// the plugin's file. If the container no longer exists, neither does the
// interface. Values of the file that no interface can have are ignored, and a
// value that the kernel refuses is logged only: the interface is about to be
// deleted.
func (r *role) CleanReference(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	file := r.conf.backupFile(in.Key.ContainerID, in.Key.IfName)
	raw, err := smallfile.ReadOwn(file, maxBackup)
	if err != nil && !errors.Is(err, smallfile.ErrTooLarge) {
		if !errors.Is(err, os.ErrNotExist) {
			h.Log.Warn("ignoring a file that the reference plugin did not write", "error", err)
		}
		return nil
	}
	var b backup
	if err == nil {
		err = json.Unmarshal(raw, &b)
	}
	if err == nil && container != nil {
		err = b.restore(ctx, h, in.Key.IfName, container)
	}
	if err != nil {
		h.Log.Warn("cannot restore the interface that the reference plugin tuned", "file", file, "error", err)
	}
	return removeBackup(file)
}

// backupFile is the reference plugin's file for one attachment.
func (c *Conf) backupFile(containerID, ifName string) string {
	return filepath.Join(c.DataDir, containerID+"_"+ifName+".json")
}

// removeBackup deletes a file. A missing file is not an error.
func removeBackup(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove a file of the reference plugin: %w", err)
	}
	return nil
}

// restore restores the interface if it exists.
func (b *backup) restore(ctx context.Context, h *roles.Host, ifName string, container *netops.Namespace) error {
	_, err := h.Net.Link(ctx, container, ifName)
	if errors.Is(err, netops.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	w := linkSettings{mac: roles.UnicastMAC(b.MAC), promisc: b.Promisc, allMulti: b.AllMulti}
	if b.MTU >= minMTU && b.MTU <= maxMTU {
		w.mtu = b.MTU
	}
	if b.TxQLen != nil && *b.TxQLen >= 0 && int64(*b.TxQLen) <= math.MaxUint32 {
		w.txQLen = b.TxQLen
	}
	var errs []error
	for _, l := range w.links(ifName, "") {
		errs = append(errs, h.Net.Ensure(ctx, netops.Spec{Objects: []netops.Object{l}}, container))
	}
	return errors.Join(errs...)
}
