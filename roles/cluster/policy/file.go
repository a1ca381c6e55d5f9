package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/internal/yaml"
	"github.com/cnibox/cnibox/roles/netpolicy"
)

// writeTime is the time for which a file must not have changed, if it does not say that it is complete.
const writeTime = 100 * time.Millisecond

// closeTime is the time after which a file that stays open is a fault, and is read after its closing only, which is notified. The
// notification comes a moment before the kernel counts one writer less.
const closeTime = time.Second

// stamp identifies the content of a file.
type stamp struct {
	dev, inode   uint64
	size         int64
	mtime, ctime int64
}

func stampOf(fi os.FileInfo) stamp {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}
	}
	return stamp{st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
}

var (
	errWriting   = errors.New("a program has it open for writing: close it, or write another file and rename it")
	errUnsettled = errors.New("it changes while it is read: write another file and rename it")
)

// read reads a file if it has changed. A file that was renamed is complete. A file that may be in writing is read later, and until then the
// former state is in force: the first half of a policy may allow all.
func (d *Directory) read(name string, renamed bool) {
	path := filepath.Join(d.Path, name)
	f := d.files[name]
	if fi, err := os.Stat(path); f != nil && err == nil && f.is == stampOf(fi) {
		f.seen, f.since = stamp{}, time.Time{}
		return
	}
	if f == nil {
		d.startWith(name)
		f = d.files[name]
	}
	d.reads++
	content, is, err := readWritten(path)
	if err == nil && !renamed && !isComplete(content) {
		err = f.settle(is)
	}
	if errors.Is(err, errUnsettled) || errors.Is(err, errWriting) {
		if f.since.IsZero() {
			f.seen, f.since = is, time.Now()
		}
		if errors.Is(err, errWriting) && time.Since(f.since) > closeTime {
			f.since = time.Time{}
			d.refuse(name, nil, err)
		}
		return
	}
	f.is, f.seen, f.since = is, stamp{}, time.Time{}
	var doc []byte
	var o *netpolicy.Object
	if err == nil {
		doc, err = yaml.ToJSON(withoutEnd(content))
	}
	if err == nil {
		o, err = netpolicy.Decode(doc)
	}
	if err != nil {
		d.refuse(name, content, err)
		return
	}
	d.accept(name, o)
	if f.wanted == nil {
		d.keep(name, doc)
	}
}

// settle returns an error unless the file has not changed for a while.
func (f *file) settle(is stamp) error {
	age := time.Since(time.Unix(0, is.mtime))
	switch {
	case age >= writeTime:
		return nil
	case f.seen == is && time.Since(f.since) >= writeTime:
		return nil
	case f.seen != is:
		f.seen, f.since = is, time.Now()
	}
	return errUnsettled
}

// unsettled returns a channel that receives a value when a file is to be read that may be in writing. It is nil if there is none.
func (d *Directory) unsettled() <-chan time.Time {
	for _, f := range d.files {
		if !f.since.IsZero() {
			return time.After(writeTime)
		}
	}
	return nil
}

// readWritten reads a file that no program has open for writing.
func readWritten(path string) (content []byte, is stamp, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, is, err
	}
	defer f.Close()
	before, err := f.Stat()
	switch {
	case err != nil:
		return nil, is, err
	case !before.Mode().IsRegular():
		return nil, stampOf(before), errors.New("no regular file")
	case isBeingWritten(f):
		return nil, stampOf(before), errWriting
	}
	content, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, is, err
	}
	after, err := f.Stat()
	if err == nil && stampOf(after) != stampOf(before) {
		err = errUnsettled
	}
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("%w: more than %d bytes", smallfile.ErrTooLarge, maxFile)
	}
	return content, stampOf(before), err
}

// isBeingWritten reports whether a program has the file open for writing: then the kernel grants no read lease (fcntl(2)). It is false if the
// file system has no leases.
func isBeingWritten(f *os.File) (is bool) {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	_ = conn.Control(func(fd uintptr) {
		_, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_RDLCK)
		is = errors.Is(err, unix.EAGAIN)
		if err == nil {
			_, _ = unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_UNLCK)
		}
	})
	return is
}

// isComplete reports whether a document says where it ends: it is JSON, or its last line ends it.
func isComplete(content []byte) bool {
	last := lastLine(content)
	return last == "---" || last == "..." || json.Valid(content)
}

func lastLine(content []byte) string {
	content = bytes.TrimRight(content, " \t\r\n")
	return string(content[bytes.LastIndexByte(content, '\n')+1:])
}

// withoutEnd returns a document without a last line "---", which would begin another one.
func withoutEnd(content []byte) []byte {
	if lastLine(content) == "---" {
		return content[:bytes.LastIndex(content, []byte("---"))]
	}
	return content
}

// refuse notes why a file is not in force. What it said before stays in force. If that is not known, the namespace of its policy is denied.
func (d *Directory) refuse(name string, content []byte, err error) {
	f := d.files[name]
	f.wanted = nil
	instead := "its last valid state is in force"
	if f.object == nil || !f.isValid {
		instead = "it has no effect"
		var denial *netpolicy.Object
		if doc, err := yaml.ToJSON(content); err == nil && content != nil {
			denial = netpolicy.Denial(doc, name)
		}
		if denial == nil {
			denial = f.object // what an invalid state denied stays denied until the file says something valid
		}
		if denial != nil {
			instead = "all pods of its namespace are denied"
		}
		d.use(name, denial, false)
	}
	fault, key := netpolicy.NewFault(filepath.Join(d.Path, name), err, instead)
	if content != nil {
		if errors.Is(err, yaml.ErrSyntax) {
			fault.Line = yaml.ErrorLine(err)
		} else {
			fault.Field, fault.Line = yaml.Locate(withoutEnd(content), fault.Field, key)
		}
	}
	d.setFault(name, fault)
}
