package netrpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/rpc"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// callArgs has the fields of the reference's arguments.
type callArgs struct {
	ContainerID, Netns, IfName, Args, Path, NetnsOverride string
	StdinData                                             []byte
}

func someArgs() callArgs {
	return callArgs{ContainerID: "c1", Netns: "/run/netns/a", IfName: "eth0", Args: "K=V", Path: "/opt", StdinData: []byte(`{"name":"n"}`)}
}

func someResult() types100.Result {
	table, index := 254, 2
	return types100.Result{
		CNIVersion: "1.1.0",
		IPs: []*types100.IPConfig{
			{Interface: &index, Address: net.IPNet{IP: net.IPv4(10, 0, 0, 2), Mask: net.CIDRMask(24, 32)}, Gateway: net.IPv4(10, 0, 0, 1)},
			{Address: net.IPNet{IP: net.ParseIP("fd00::1"), Mask: net.CIDRMask(128, 128)}},
		},
		Routes: []*types.Route{
			{Dst: net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, GW: net.IPv4(10, 0, 0, 1), MTU: 70000, Priority: -5, Table: &table},
			{},
		},
		DNS: types.DNS{Nameservers: []string{"10.0.0.1", ""}, Domain: "example.org", Search: []string{"a", "b"}},
	}
}

// TestGob checks that encoding/gob and this package decode each other's values.
func TestGob(t *testing.T) {
	for _, v := range []any{someArgs(), someResult(), request{"DHCP.Allocate", 1 << 40}, response{"m", 3, "error", 0}, struct{}{}, types100.Result{}} {
		t.Run(fmt.Sprintf("%T", v), func(t *testing.T) {
			var ours, theirs bytes.Buffer
			e, std := newEncoder(&ours), gob.NewEncoder(&theirs)
			d, err := newDecoder(bufio.NewReader(&theirs))
			if err != nil {
				t.Fatal(err)
			}
			stdDec := gob.NewDecoder(&ours)
			for range 2 { // types are sent once
				if err := errors.Join(e.encode(v), std.Encode(v)); err != nil {
					t.Fatal(err)
				}
				for name, decode := range map[string]func(any) error{"ours": d.decode, "theirs": stdDec.Decode} {
					got := reflect.New(reflect.TypeOf(v))
					if err := decode(got.Interface()); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					if !reflect.DeepEqual(got.Elem().Interface(), v) {
						t.Errorf("%s: %+v, want %+v", name, got.Elem(), v)
					}
				}
			}
		})
	}
}

// TestOtherFields: fields that the receiver does not know are skipped.
func TestOtherFields(t *testing.T) {
	type inner struct{ A, B int }
	type sent struct {
		M map[string][]inner
		F float64
		C complex128
		X [2]inner
		U uint
		L []inner
		T bool
	}
	type wanted struct {
		U uint
		L []*inner
		T bool
		Z string
	}
	var b bytes.Buffer
	v := sent{map[string][]inner{"a": {{1, 2}}}, 1.5, 2i, [2]inner{{3, 4}, {5, -6}}, 1 << 63, []inner{{7, -1 << 62}}, true}
	if err := gob.NewEncoder(&b).Encode(v); err != nil {
		t.Fatal(err)
	}
	d, err := newDecoder(bufio.NewReader(&b))
	if err != nil {
		t.Fatal(err)
	}
	var got wanted
	if err := d.decode(&got); err != nil {
		t.Fatal(err)
	}
	if want := (wanted{U: 1 << 63, L: []*inner{{7, -1 << 62}}, T: true}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func FuzzDecode(f *testing.F) {
	for _, v := range []any{someArgs(), someResult()} {
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(v); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		for _, into := range []any{new(callArgs), new(types100.Result), nil} {
			d, err := newDecoder(bufio.NewReader(bytes.NewReader(b)))
			if err != nil {
				panic(err)
			}
			for d.decode(into) == nil {
			}
		}
	})
}

// DHCP is a server with net/rpc, like the reference's.
type DHCP struct{}

func (DHCP) Allocate(args *skel.CmdArgs, result *types100.Result) error {
	if args.ContainerID == "" {
		return errors.New("no container")
	}
	*result = someResult()
	result.CNIVersion = string(args.StdinData)
	return nil
}

func (DHCP) Release(*skel.CmdArgs, *struct{}) error { return nil }

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// TestServerOfStandardLibrary calls a server of net/rpc.
func TestServerOfStandardLibrary(t *testing.T) {
	l := listen(t)
	server := rpc.NewServer()
	if err := server.Register(DHCP{}); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(rpc.DefaultRPCPath, server)
	go http.Serve(l, mux)
	exercise(t, l.Addr().String())
}

// exercise checks a server's answers to the calls of this package's client.
func exercise(t *testing.T, socket string) {
	t.Helper()
	ctx := t.Context()
	var got types100.Result
	if err := Call(ctx, socket, "DHCP.Allocate", someArgs(), &got); err != nil {
		t.Fatal(err)
	}
	want := someResult()
	want.CNIVersion = `{"name":"n"}`
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := Call(ctx, socket, "DHCP.Release", someArgs(), &struct{}{}); err != nil {
		t.Error(err)
	}
	if err := Call(ctx, socket, "", nil, nil); err != nil {
		t.Error(err)
	}
	var e *Error
	if err := Call(ctx, socket, "DHCP.Allocate", callArgs{}, &got); !errors.As(err, &e) || e.Text != "no container" || e.NoMethod {
		t.Errorf("error %#v", err)
	}
	for _, m := range []string{"DHCP.Check", "Other.Check"} {
		if err := Call(ctx, socket, m, someArgs(), &struct{}{}); !errors.As(err, &e) || !e.NoMethod {
			t.Errorf("%s: error %#v", m, err)
		}
	}
}

// serve serves the methods of DHCP with this package.
func serve(t *testing.T, l net.Listener, undelivered func(any)) {
	t.Helper()
	args := func() any { return new(callArgs) }
	s := &Server{Log: slog.New(slog.DiscardHandler), Code: func(error) uint64 { return 7 }, Methods: map[string]Method{
		"DHCP.Allocate": {Args: args, Call: func(ctx context.Context, a any) (any, func(), error) {
			in := a.(*callArgs)
			if in.ContainerID == "" {
				return nil, nil, errors.New("no container")
			}
			if in.ContainerID == "wait" {
				<-ctx.Done()
			}
			r := someResult()
			r.CNIVersion = string(in.StdinData)
			return r, func() { undelivered(a) }, nil
		}},
		"DHCP.Release": {Args: args, Call: func(context.Context, any) (any, func(), error) { return struct{}{}, nil, nil }},
	}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestOwnServer(t *testing.T) {
	l := listen(t)
	serve(t, l, nil)
	exercise(t, l.Addr().String())
	var e *Error
	if err := Call(t.Context(), l.Addr().String(), "DHCP.Allocate", callArgs{}, nil); !errors.As(err, &e) || e.Code != 7 {
		t.Errorf("error %#v does not have the code", err)
	}
}

// TestClientOfStandardLibrary calls a server of this package with net/rpc's client.
func TestClientOfStandardLibrary(t *testing.T) {
	l := listen(t)
	serve(t, l, nil)
	c, err := rpc.DialHTTP("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		got := types100.Result{CNIVersion: "old"}
		if err := c.Call("DHCP.Allocate", &skel.CmdArgs{ContainerID: "c", StdinData: []byte("x")}, &got); err != nil || got.CNIVersion != "x" {
			t.Fatalf("%v %+v", err, got)
		}
		if err := c.Call("DHCP.Allocate", &skel.CmdArgs{}, &got); err == nil || err.Error() != "no container" {
			t.Fatalf("error %v", err)
		}
		if err := c.Call("DHCP.Nothing", &skel.CmdArgs{}, &got); err == nil {
			t.Fatal("an unknown method was found")
		}
		if err := c.Call("DHCP.Release", &skel.CmdArgs{ContainerID: "c"}, &struct{}{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestClientCloses: a call ends when its client closes the connection, and its result is undone.
func TestClientCloses(t *testing.T) {
	l := listen(t)
	gone := make(chan any, 1)
	serve(t, l, func(args any) { gone <- args })
	ctx, cancel := context.WithCancel(t.Context())
	called := make(chan error)
	go func() { called <- Call(ctx, l.Addr().String(), "DHCP.Allocate", callArgs{ContainerID: "wait"}, nil) }()
	cancel()
	if err := <-called; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := connect(conn, bufio.NewReader(conn)); err != nil {
		t.Fatal(err)
	}
	if err := newEncoder(conn).encode(request{ServiceMethod: "DHCP.Allocate"}, callArgs{ContainerID: "wait"}); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if args := (<-gone).(*callArgs); args.ContainerID != "wait" {
		t.Errorf("undelivered %+v", args)
	}
}
