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
	"github.com/cnibox/cnibox/roles/attach"
)

// maxBackup bounds what is read of a file of the reference plugin: it writes
// less than 200 bytes.
const maxBackup = 1 << 16

// backup is what the reference plugin notes of an interface before it changes
// it, in the file "<container ID>_<interface>.json" of dataDir.
type backup struct {
	MAC      string `json:"mac"`
	Promisc  *bool  `json:"promisc"`
	MTU      int    `json:"mtu"`
	AllMulti *bool  `json:"allmulti"`
	TxQLen   *int   `json:"txQLen"`
}

// CleanLegacy sets an interface back that the reference plugin tuned, and removes
// its file. One whose container is gone went with it. What the file says is
// taken only if an interface can have it, and no more of it than the kernel
// takes: the interface is on its way out.
func (r *role) CleanLegacy(ctx context.Context, h *roles.Host, in *attach.Input, container *netops.Namespace) error {
	file := r.conf.backupFile(in.Key.ContainerID, in.Key.IfName)
	raw, err := smallfile.ReadOwn(file, maxBackup)
	if err != nil && !errors.Is(err, smallfile.ErrTooLarge) {
		if !errors.Is(err, os.ErrNotExist) {
			h.Log.Warn("leaving what is no file of the reference plugin", "error", err)
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
		h.Log.Warn("cannot set back what the reference plugin tuned", "file", file, "error", err)
	}
	return removeBackup(file)
}

// backupFile is the file of one attachment.
func (c *Conf) backupFile(containerID, ifName string) string {
	return filepath.Join(c.DataDir, containerID+"_"+ifName+".json")
}

// removeBackup deletes a file if it is there.
func removeBackup(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove a file of the reference plugin: %w", err)
	}
	return nil
}

// restore sets the interface back, if it is there.
func (b *backup) restore(ctx context.Context, h *roles.Host, ifName string, container *netops.Namespace) error {
	_, err := h.Net.Link(ctx, container, ifName)
	if errors.Is(err, netops.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	w := wanted{mac: roles.UnicastMAC(b.MAC), promisc: b.Promisc, allMulti: b.AllMulti}
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
