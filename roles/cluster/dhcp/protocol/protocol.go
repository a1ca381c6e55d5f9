package protocol

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/cluster/dhcp/netrpc"
)

// Methods of the daemon. The reference daemon has only the first two.
const (
	MethodAllocate = "DHCP.Allocate"
	MethodRelease  = "DHCP.Release"
	MethodCheck    = "DHCP.Check"
	MethodCollect  = "DHCP.Collect"
)

// Args are the arguments of all methods but Collect. The protocol defines the names.
type Args struct {
	ContainerID, Netns, IfName, Args, Path, NetnsOverride string
	// StdinData is the network configuration.
	StdinData []byte
}

// Collection is the argument of Collect: the attachments that stay.
type Collection struct {
	Network string
	Valid   []roles.AttachmentID
}

// None is a result without content.
type None = struct{}

// ErrNoDaemon means that no process listens on the socket.
var ErrNoDaemon = errors.New("the DHCP daemon does not run")

// errServer marks an error of the daemon without a code, as the reference daemon sends.
var errServer = errors.New("the DHCP daemon failed")

// CodeTryAgain is the code of roles.ErrTryAgain.
const CodeTryAgain = 11

// sentinels returns the errors that have a code on the wire.
func sentinels() map[uint64]error {
	return map[uint64]error{
		3:            roles.ErrUnknownContainer,
		4:            roles.ErrEnv,
		6:            roles.ErrDecode,
		7:            roles.ErrConf,
		8:            roles.ErrNetns,
		CodeTryAgain: roles.ErrTryAgain,
		105:          roles.ErrAttached,
		106:          roles.ErrCheck,
	}
}

// Code returns an error's code on the wire, or 0.
func Code(err error) uint64 {
	for code, sentinel := range sentinels() {
		if errors.Is(err, sentinel) {
			return code
		}
	}
	return 0
}

// Client calls the daemon that listens on a socket.
type Client struct{ Socket string }

// Allocate leases addresses for an attachment, or returns those that it has.
func (c Client) Allocate(ctx context.Context, req *roles.Request) (*roles.Result, error) {
	res := &roles.Result{}
	err := c.call(ctx, MethodAllocate, argsOf(req), res)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("the DHCP daemon has no address for %q yet: is there a DHCP server on the network? %w", req.IfName, err)
	}
	var old *netrpc.Error
	if errors.As(err, &old) && old.Code == 0 && errors.Is(err, errServer) {
		err = fmt.Errorf("%w: %w", roles.ErrTryAgain, err)
	}
	res.CNIVersion = roles.ResultVersion
	return res, err
}

// Release releases an attachment's addresses, if it has any.
func (c Client) Release(ctx context.Context, req *roles.Request) error {
	return c.call(ctx, MethodRelease, argsOf(req), &None{})
}

// Check returns the addresses of an attachment and changes nothing. ok is false if a
// third-party daemon answers, which does not have the method.
func (c Client) Check(ctx context.Context, req *roles.Request) (res *roles.Result, ok bool, err error) {
	res = &roles.Result{}
	err = c.call(ctx, MethodCheck, argsOf(req), res)
	if unknown(err) {
		return nil, false, nil
	}
	return res, true, err
}

// Collect releases the addresses of a network's attachments that are not valid. ok is
// false if a third-party daemon answers, which does not have the method.
func (c Client) Collect(ctx context.Context, network string, valid []roles.AttachmentID) (ok bool, err error) {
	err = c.call(ctx, MethodCollect, Collection{Network: network, Valid: valid}, &None{})
	if unknown(err) {
		return false, nil
	}
	return true, err
}

// Ping checks that a daemon listens.
func (c Client) Ping(ctx context.Context) error { return c.call(ctx, "", nil, nil) }

func unknown(err error) bool {
	var e *netrpc.Error
	return errors.As(err, &e) && e.NoMethod
}

func (c Client) call(ctx context.Context, method string, args, reply any) error {
	err := netrpc.Call(ctx, c.Socket, method, args, reply)
	var said *netrpc.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("%w: %w on %q: start it with 'cnibox dhcp daemon', or enable cni-dhcp.socket, or set ipam.daemonSocketPath", roles.ErrTryAgain, ErrNoDaemon, c.Socket)
	case errors.As(err, &said):
		if sentinel := sentinels()[said.Code]; sentinel != nil {
			return &remoteError{said: said, meaning: sentinel}
		}
		return fmt.Errorf("%w: %w", errServer, said)
	case isAway(err):
		return fmt.Errorf("%w: the DHCP daemon on %q ended during the call: %w", roles.ErrTryAgain, c.Socket, err)
	case ctx.Err() != nil, errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: the DHCP daemon on %q does not answer in time: %w", roles.ErrTryAgain, c.Socket, err)
	}
	return fmt.Errorf("ask the DHCP daemon on %q: %w", c.Socket, err)
}

// isAway reports whether the server's process ended before it answered.
func isAway(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// remoteError is an error of the daemon with the sentinel of its code.
type remoteError struct {
	said    *netrpc.Error
	meaning error
}

func (e *remoteError) Error() string { return e.said.Text }

// Unwrap returns the sentinel.
func (e *remoteError) Unwrap() error { return e.meaning }

// argsOf returns a request as arguments. The namespace's path is made absolute, because
// the daemon may have another working directory.
func argsOf(req *roles.Request) Args {
	netns := req.Netns
	if abs, err := filepath.Abs(netns); err == nil && netns != "" {
		netns = abs
	}
	return Args{
		ContainerID: req.ContainerID, Netns: netns, IfName: req.IfName, Args: req.Args.String(),
		Path: strings.Join(req.Path, ":"), StdinData: req.Conf,
	}
}
