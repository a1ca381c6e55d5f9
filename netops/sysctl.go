package netops

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
	"github.com/cnibox/cnibox/netops/internal/rtnl"
)

// sysctlRoot is the directory of the settings of the reading thread's network
// namespace.
const sysctlRoot = "/proc/sys/"

// writableRoot is where the pod of an agent has a second mount of /proc/sys/net. Runtimes mount
// /proc/sys read-only in containers.
const writableRoot = "/host/proc/sys/"

// maxSysctl is the largest size that is read of one setting, in bytes.
const maxSysctl = 4096

// Sysctl is a file under /proc/sys/net. It is written only if the value differs.
type Sysctl struct {
	In     Place `json:"in"`
	Shared bool  `json:"shared,omitempty"`
	// Key has slashes and no /proc/sys: "net/ipv4/conf/eth0/arp_notify".
	Key   string `json:"key"`
	Value string `json:"value"`
	// Optional ignores a missing file (IPv6 is disabled in the kernel) and one that cannot be
	// written (/proc/sys is read-only).
	Optional bool `json:"optional,omitempty"`
}

// Where returns the namespace of the setting.
func (c *Sysctl) Where() Place { return c.In }

// IsShared reports whether attachments share the setting.
func (c *Sysctl) IsShared() bool { return c.Shared }

// String formats the setting as sysctl(8) does.
func (c *Sysctl) String() string {
	w := words{"sysctl", c.Key + "=" + c.Value}
	w.place(c.In)
	return w.String()
}

func (c *Sysctl) validate() error {
	errs := []error{checkPlace(c.In), checkKey(c.Key)}
	if len(c.Value) >= maxSysctl || strings.ContainsAny(c.Value, "\x00\n") {
		errs = append(errs, fmt.Errorf("sysctl %q: value %q: %w", c.Key, c.Value, ErrInvalid))
	}
	return errors.Join(errs...)
}

// checkKey rejects a key that is not a path below /proc/sys/net.
func checkKey(key string) error {
	if !strings.HasPrefix(key, "net/") || path.Clean(key) != key || strings.ContainsRune(key, 0) {
		return fmt.Errorf("sysctl %q: %w: not a path below net/", key, ErrInvalid)
	}
	return nil
}

// onNewLink reports whether the setting belongs to a link that the plan creates.
func (c *Sysctl) onNewLink(s *session) bool {
	f := strings.Split(c.Key, "/") // net/ipv4/conf/eth0/arp_notify
	return len(f) > 4 && (f[2] == "conf" || f[2] == "neigh") && s.isNew(c.In, f[3])
}

// arpNotify is arp_notify in IFLA_INET_CONF (linux/ip.h,
// IPV4_DEVCONF_ARP_NOTIFY).
const arpNotify = 22

// AddrGenNone is the value of a link's addr_gen_mode with which the kernel
// generates no IPv6 address (IN6_ADDR_GEN_MODE_NONE of linux/if_link.h).
const AddrGenNone = "1"

// byRequest reports whether rtnetlink can write the setting, and returns the
// link and the value. These are arp_notify and addr_gen_mode of one link, which
// attachments set. Writing the file becomes slower with the number of namespaces,
// because the kernel searches "net/ipv4" among those of all namespaces.
func (c *Sysctl) byRequest() (link string, value int, ok bool) {
	dir, name := path.Split(c.Key)
	n, err := strconv.ParseInt(c.Value, 10, 32)
	switch name {
	case "arp_notify":
		// Use netlink for canonical integers only; let /proc validate other
		// values.
		link, ok = strings.CutPrefix(dir, "net/ipv4/conf/")
		ok = ok && err == nil && strconv.FormatInt(n, 10) == c.Value
	case "addr_gen_mode":
		// With another value the file also makes the kernel add addresses.
		link, ok = strings.CutPrefix(dir, "net/ipv6/conf/")
		ok = ok && c.Value == AddrGenNone
	}
	link = strings.TrimSuffix(link, "/")
	return link, int(n), ok && link != "all" && link != "default" && rtnl.CheckName(link) == nil
}

func (c *Sysctl) batchKey(Verb) string {
	if _, _, ok := c.byRequest(); ok {
		return requestKey
	}
	return "sysctl"
}

func (c *Sysctl) links() []string {
	link, _, _ := c.byRequest()
	return []string{link}
}

func (c *Sysctl) removal() *Step { return nil }

// apply enters one namespace once and writes all its settings.
func (c *Sysctl) apply(ctx context.Context, run *applier, batch []Change) error {
	if c.batchKey(VerbSet) == requestKey {
		return run.requests(ctx, batch)
	}
	ns, err := run.namespace(c.In)
	if err != nil {
		return err
	}
	done := 0
	err = ns.visit(func() error {
		for _, c := range batch {
			if err := c.Do.Object.(*Sysctl).write(); err != nil {
				return err
			}
			done++
		}
		return nil
	})
	run.done = append(run.done, batch[:done]...)
	if err != nil {
		return describeStep(batch[min(done, len(batch)-1)].Do, err)
	}
	return nil
}

// undo ignores a value that the kernel refuses because a limit changed: an interface's
// net/ipv6/…/mtu above its MTU.
func (c *Sysctl) undo(_ context.Context, s *session, _ Verb) error {
	ns, err := s.namespace(c.In)
	if err != nil {
		return err
	}
	if err := ns.visit(c.write); !isInvalid(err) {
		return err
	}
	return nil
}

// messages returns the request that writes the setting.
func (c *Sysctl) messages(context.Context, *session, Verb) ([]nlconn.Message, error) {
	link, value, ok := c.byRequest()
	if !ok {
		return nil, fmt.Errorf("sysctl %q is not rtnetlink's: %w", c.Key, ErrInvalid)
	}
	m := rtnl.LinkMessage(unix.RTM_NEWLINK, 0)
	m.Text(unix.IFLA_IFNAME, link)
	m.Nest(unix.IFLA_AF_SPEC, func() {
		if strings.HasPrefix(c.Key, "net/ipv6/") {
			m.Nest(unix.AF_INET6, func() { m.Uint8(unix.IFLA_INET6_ADDR_GEN_MODE, uint8(value)) })
			return
		}
		m.Nest(unix.AF_INET, func() {
			m.Nest(unix.IFLA_INET_CONF, func() { m.Uint32(arpNotify, uint32(value)) })
		})
	})
	return []nlconn.Message{m}, nil
}

// mayFail reports whether the kernel's error to the request is accepted: an optional
// setting of a link without the address family, or of an absent link.
func (c *Sysctl) mayFail(err error) bool {
	return c.Optional && (errors.Is(err, unix.EAFNOSUPPORT) || nlconn.IsAbsent(err))
}

func (c *Sysctl) plan(_ context.Context, s *session) ([]Change, error) {
	change := Change{Do: Step{VerbSet, c}}
	if s.isAbsentPlace(c.In) || c.onNewLink(s) {
		return []Change{change}, nil
	}
	have, err := c.read(s)
	if err != nil {
		if c.Optional && errors.Is(err, ErrNotExist) {
			return nil, nil
		}
		if isWriteOnly(err) {
			return []Change{change}, nil
		}
		return nil, err
	}
	if have == fields(c.Value) {
		return nil, nil
	}
	if !c.Shared {
		old := *c
		old.Value = have
		change.Undo = &Step{VerbSet, &old}
	}
	return []Change{change}, nil
}

func (c *Sysctl) verify(_ context.Context, s *session) ([]Difference, error) {
	have, err := c.read(s)
	if isWriteOnly(err) {
		return nil, nil
	}
	if errors.Is(err, ErrNotExist) {
		if c.Optional {
			return nil, nil
		}
		return absentIf(nil, c)
	}
	if err != nil {
		return nil, err
	}
	want := fields(c.Value)
	if have == want || c.Optional && c.cannotWrite(s) {
		return nil, nil
	}
	d := differences{object: c}
	d.add(want, have)
	return d.list, nil
}

// cannotWrite reports whether the file of the setting cannot be opened for writing.
func (c *Sysctl) cannotWrite(s *session) bool {
	ns, err := s.namespace(c.In)
	if err != nil {
		return false
	}
	return isReadOnly(ns.visit(func() error {
		fd, err := openWritable(c.Key)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	}))
}

// isWriteOnly reports whether a read failed because the setting is a command,
// such as net/ipv4/route/flush. Root cannot open such a file for reading.
func isWriteOnly(err error) bool { return errors.Is(err, unix.EACCES) }

// sysctl reads one setting.
func (s *session) sysctl(p Place, key string) (string, error) {
	ns, err := s.namespace(p)
	if err != nil {
		return "", err
	}
	return ns.sysctl(key)
}

// read reads the setting. It uses the cached accept_ra of a link if there is
// one.
func (c *Sysctl) read(s *session) (string, error) {
	link, isLink := strings.CutPrefix(c.Key, "net/ipv6/conf/")
	link, isRA := strings.CutSuffix(link, "/accept_ra")
	if value, ok := s.acceptRA[linkRef{c.In, link}]; ok && isLink && isRA {
		return strconv.Itoa(int(value)), nil
	}
	return s.sysctl(c.In, c.Key)
}

func (ns *Namespace) sysctl(key string) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	value, known := ns.settings[key]
	if known {
		return value, nil
	}
	err := ns.visit(func() (err error) {
		value, err = readSysctl(key)
		return err
	})
	if err == nil && ns.settings != nil {
		ns.settings[key] = value
	}
	return value, nlconn.Explain(err, fmt.Sprintf("read sysctl %q", key))
}

// readSysctl reads a setting of the calling thread's namespace.
func readSysctl(key string) (string, error) {
	text, err := readProc(sysctlRoot + key)
	return fields(text), err
}

// readProc reads at most maxSysctl bytes of a file in /proc. Such a read never
// blocks. Package os would make four more system calls for the file type and the
// poller.
func readProc(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd) //nolint:errcheck // opened for reading
	var text []byte
	var b [4096]byte
	for len(text) < maxSysctl {
		n, err := unix.Read(fd, b[:])
		if err != nil {
			return "", err
		}
		if n == 0 {
			break
		}
		text = append(text, b[:n]...)
	}
	return string(text), nil
}

// write writes the setting in the calling thread's namespace. If it cannot be written, it
// succeeds where the value is already right, and where the setting is optional.
func (c *Sysctl) write() error {
	err := c.writeFile()
	switch {
	case c.Optional && (errors.Is(err, unix.ENOENT) || isReadOnly(err)):
		return nil
	case isReadOnly(err):
		if have, readErr := readSysctl(c.Key); readErr == nil && have == fields(c.Value) {
			return nil
		}
	}
	return err
}

// isReadOnly reports whether a setting cannot be written because of how /proc/sys is mounted, or
// because the network namespace belongs to another user namespace.
func isReadOnly(err error) bool { return errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) }

// writeFile writes the file with a newline. The kernel ignores an empty write, and some settings
// can be empty.
func (c *Sysctl) writeFile() error {
	fd, err := openWritable(c.Key)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte(c.Value+"\n"))
	return errors.Join(err, unix.Close(fd))
}

// openWritable opens the file of a setting of the calling thread's namespace for writing.
func openWritable(key string) (fd int, err error) {
	const flags = unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err = unix.Open(sysctlRoot+key, flags, 0)
	if errors.Is(err, unix.EROFS) {
		if other, otherErr := unix.Open(writableRoot+key, flags, 0); otherErr == nil {
			return other, nil
		}
	}
	return fd, err
}

// fields normalizes the white space of a value. The kernel writes tabs.
func fields(s string) string { return strings.Join(strings.Fields(s), " ") }
