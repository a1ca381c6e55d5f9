package netops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// tunDevice creates taps (Documentation/networking/tuntap.rst).
const tunDevice = "/dev/net/tun"

// addTap creates a tap device and makes it persistent as the last step. Until
// then the kernel deletes the device when its file is closed. Therefore a killed
// process or a refused request leaves no unlabelled device.
func (l *Link) addTap(ctx context.Context, w *requestWriter, c Change) error {
	ns, err := w.namespace(l.In)
	if err != nil {
		return describeStep(c.Do, err)
	}
	var f *os.File
	err = ns.visit(func() error {
		var err error
		f, err = l.openTap()
		return err
	})
	if errors.Is(err, unix.EBUSY) {
		return l.takenError(ctx, w.session)
	}
	if err != nil {
		return describeStep(c.Do, err)
	}
	defer f.Close() //nolint:errcheck // the kernel has the settings already
	if err := l.setUpTap(ctx, w.session, f); err != nil {
		return describeStep(c.Do, err)
	}
	w.done = append(w.done, c)
	return nil
}

// openTap creates the device in the calling thread's namespace. With
// IFF_TUN_EXCL an existing device is an EBUSY error and is not opened. Packets
// that are read have a virtio header and no packet information. A later open can
// choose other flags.
func (l *Link) openTap() (*os.File, error) {
	f, err := os.OpenFile(tunDevice, os.O_RDWR|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("%w: there is no %s: load the kernel module tun, and let this process see the device", ErrNotSupported, tunDevice)
	}
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(l.Name)
	if err == nil {
		flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_TUN_EXCL)
		if l.MultiQueue {
			flags |= unix.IFF_MULTI_QUEUE
		}
		request.SetUint16(flags)
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.TUNSETIFINDEX, l.chosenIndex())
	}
	if err == nil {
		err = unix.IoctlIfreq(int(f.Fd()), unix.TUNSETIFF, request)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// setUpTap configures the device and makes it persistent.
func (l *Link) setUpTap(ctx context.Context, s *session, f *os.File) error {
	m, err := l.setAt(ctx, s, l.chosenIndex())
	if err != nil {
		return err
	}
	c, err := s.conn(l.In)
	if err != nil {
		return err
	}
	if err := c.One(ctx, m); err != nil {
		return err
	}
	for _, id := range []struct {
		request uint
		value   *uint32
	}{{unix.TUNSETOWNER, l.Owner}, {unix.TUNSETGROUP, l.Group}} {
		if id.value == nil {
			continue
		}
		if err := unix.IoctlSetInt(int(f.Fd()), id.request, int(*id.value)); err != nil {
			return err
		}
	}
	return unix.IoctlSetInt(int(f.Fd()), unix.TUNSETPERSIST, 1)
}

func (l *Link) verifyTap(have *rtnl.Tap, d *differences) {
	if !have.IsTap {
		d.add("mode tap", "mode tun")
	}
	if l.Owner != nil {
		d.compare("user", idText(l.Owner), idText(have.Owner))
	}
	if l.Group != nil {
		d.compare("group", idText(l.Group), idText(have.Group))
	}
	if l.MultiQueue && !have.MultiQueue {
		d.add("multi_queue on", "multi_queue off")
	}
}

func idText(id *uint32) string {
	if id == nil {
		return ""
	}
	return strconv.FormatUint(uint64(*id), 10)
}
