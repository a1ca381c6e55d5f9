package ovs

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// maxFile is the largest file in bytes that is read.
const maxFile = 1 << 20

// files are where the keys can be that the configuration does not have. The first that exists is
// read.
func (c *Conf) files() []string {
	defaults := []string{"/etc/kubernetes/cni/net.d/ovs.d/ovs.conf", "/etc/cni/net.d/ovs.d/ovs.conf"}
	if c.ConfigurationPath == "" {
		return defaults
	}
	return append([]string{c.ConfigurationPath}, defaults...)
}

// readFile fills in the keys that the configuration does not set. Links out of the file's directory
// are not followed, and neither is a file read that other users can write.
func (c *Conf) readFile() error {
	for _, path := range c.files() {
		raw, err := read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var file Conf
		if err == nil {
			err = roles.ReadConf(raw, &file)
		}
		if err != nil {
			return &roles.ConfError{Path: "configuration_path", Reason: path + ": " + err.Error()}
		}
		c.fill(&file)
		return nil
	}
	return nil
}

func read(path string) ([]byte, error) {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return smallfile.ReadTrusted(dir, filepath.Base(path), maxFile)
}

// fill sets the keys that are not set.
func (c *Conf) fill(file *Conf) {
	c.Bridge = cmp.Or(c.Bridge, file.Bridge)
	c.VLAN = cmp.Or(c.VLAN, file.VLAN)
	if len(c.Trunk) == 0 {
		c.Trunk = file.Trunk
	}
	c.MTU = cmp.Or(c.MTU, file.MTU)
	c.OFPortRequest = cmp.Or(c.OFPortRequest, file.OFPortRequest)
	c.InterfaceType = cmp.Or(c.InterfaceType, file.InterfaceType)
	c.SocketFile = cmp.Or(c.SocketFile, file.SocketFile)
	c.LinkStateCheckRetries = cmp.Or(c.LinkStateCheckRetries, file.LinkStateCheckRetries)
	c.LinkStateCheckInterval = cmp.Or(c.LinkStateCheckInterval, file.LinkStateCheckInterval)
}

// handler reads the file before it runs the verbs of all interface roles.
type handler struct {
	*attach.Handler
	conf *Conf
}

// withFile has the handlers of the given function read the file first.
func withFile(read func([]byte) (roles.Handler, error)) func([]byte) (roles.Handler, error) {
	return func(conf []byte) (roles.Handler, error) {
		h, err := read(conf)
		if err != nil {
			return nil, err
		}
		a := h.(*attach.Handler)
		return &handler{a, a.Builder().(*role).conf}, nil
	}
}

// Add attaches a container.
func (a *handler) Add(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
	if err := a.conf.readFile(); err != nil {
		return nil, err
	}
	return a.Handler.Add(ctx, h, req)
}

// Del detaches a container. The file is needed for a container without a record only.
func (a *handler) Del(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if err := a.conf.readFile(); err != nil {
		h.Log.Warn("detach without the file's keys", "error", err)
	}
	return a.Handler.Del(ctx, h, req)
}

// Check compares an attachment with the configuration and the file.
func (a *handler) Check(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if err := a.conf.readFile(); err != nil {
		return err
	}
	return a.Handler.Check(ctx, h, req)
}

// GC detaches the containers that the runtime does not list.
func (a *handler) GC(ctx context.Context, h *roles.Host, req *roles.Request) error {
	return errors.Join(a.conf.readFile(), a.Handler.GC(ctx, h, req))
}

// Status reports whether ADD can work.
func (a *handler) Status(ctx context.Context, h *roles.Host, req *roles.Request) error {
	if err := a.conf.readFile(); err != nil {
		return err
	}
	return a.Handler.Status(ctx, h, req)
}

// Plan computes what Add would do.
func (a *handler) Plan(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Plan, error) {
	if err := a.conf.readFile(); err != nil {
		return nil, err
	}
	return a.Handler.Plan(ctx, h, req)
}
