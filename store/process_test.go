package store_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cnibox/cnibox/store"
)

// The test binary also runs as other processes: "child <play> <run dir> <state dir>
// <id>".
func TestMain(m *testing.M) {
	if len(os.Args) == 6 && os.Args[1] == "child" {
		if err := play(os.Args[2], os.Args[3], os.Args[4], os.Args[5]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func play(what, runDir, stateDir, id string) error {
	s := store.New(store.Options{RunDir: runDir, StateDir: stateDir, BootID: bootA, LockTimeout: time.Minute, Role: "child"})
	ctx := context.Background()
	hold := func() error {
		fmt.Println("held")
		_, err := io.ReadAll(os.Stdin)
		return err
	}
	switch what {
	case "hold":
		return s.Update(ctx, func(*store.Tx) error { return hold() })
	case "lock":
		if _, err := s.LockAttachment(ctx, key("net", "c1")); err != nil {
			return err
		}
		return hold()
	case "import":
		n, err := strconv.Atoi(id)
		if err != nil {
			return err
		}
		return importUntilKilled(runDir, stateDir, n)
	case "forty":
		for i := range 40 {
			if err := s.Update(ctx, func(tx *store.Tx) error { return attach(tx, id, i) }); err != nil {
				return err
			}
		}
		return nil
	case "churn":
		for i := 0; ; i++ {
			err := s.Update(ctx, func(tx *store.Tx) error {
				k := key("net", fmt.Sprintf("%s-%d", id, i%50))
				if i%100 < 50 {
					return attach(tx, id, i%50)
				}
				if _, err := tx.DeleteLeases(k); err != nil {
					return err
				}
				return errors.Join(tx.Unclaim(k), tx.DeleteAttachment(k))
			})
			if err != nil {
				return err
			}
			fmt.Print(".")
		}
	}
	return fmt.Errorf("no play %q", what)
}

var pool = store.PoolID{DataDir: "/var/lib/cni/networks", Network: "net"}

// attach stores an attachment with a lease and a claim.
func attach(tx *store.Tx, id string, i int) error {
	k := key("net", fmt.Sprintf("%s-%d", id, i))
	if _, err := tx.Attachment(k); err == nil {
		return nil
	}
	p, err := tx.Pool(pool)
	if err != nil {
		return err
	}
	a, ok, err := p.Next(netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.255.254"))
	if err != nil || !ok {
		return fmt.Errorf("next: %v %w", ok, err)
	}
	if err := p.Reserve(store.Lease{Address: a, Owner: k, Time: testTime}); err != nil {
		return err
	}
	if err := tx.Claim(store.Resource{Kind: "port", Name: k.ContainerID}, k, testTime); err != nil {
		return err
	}
	return tx.PutAttachment(attachment(k))
}

// child starts the binary as another process.
func child(t *testing.T, o store.Options, what, id string) (*exec.Cmd, io.WriteCloser, *bufio.Reader) {
	t.Helper()
	c := exec.Command("/proc/self/exe", "child", what, o.RunDir, o.StateDir, id)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c, in, bufio.NewReader(out)
}

// held waits until the child says that it holds its lock.
func held(t *testing.T, out *bufio.Reader) {
	t.Helper()
	if line, err := out.ReadString('\n'); err != nil || line != "held\n" {
		t.Fatalf("child says %q, %v", line, err)
	}
}

func TestSixteenProcesses(t *testing.T) {
	o := options(t)
	var wg sync.WaitGroup
	for p := range 16 {
		c, _, _ := child(t, o, "forty", strconv.Itoa(p))
		wg.Go(func() {
			if err := c.Wait(); err != nil {
				t.Errorf("child %d: %v", p, err)
			}
		})
	}
	wg.Wait()
	checkSound(t, store.New(o), 640)
}

// checkSound checks that attachments, leases, claims and bitmaps agree. A negative
// want stands for any number.
func checkSound(t *testing.T, s *store.Store, want int) {
	t.Helper()
	view(t, s, func(tx *store.Tx) error {
		all, err := tx.Attachments("")
		if err != nil {
			return err
		}
		p, err := tx.Pool(pool)
		if err != nil {
			return err
		}
		count, err := p.Count()
		if err != nil {
			return err
		}
		claims, err := tx.Claims("port")
		if err != nil {
			return err
		}
		leases := 0
		for l, err := range p.Leases() {
			if err != nil {
				return err
			}
			if _, err := tx.Attachment(l.Owner); err != nil {
				t.Errorf("lease %s: %v", l.Address, err)
			}
			if own, err := p.Owned(l.Owner); err != nil || len(own) != 1 || own[0].Address != l.Address {
				t.Errorf("owned by %v: %v, %v", l.Owner, own, err)
			}
			leases++
		}
		if len(all) != leases || count != leases || len(claims) != leases || want >= 0 && leases != want {
			t.Errorf("%d attachments, %d leases, %d bits, %d claims; want %d", len(all), leases, count, len(claims), want)
		}
		return nil
	})
}

// A process killed at any moment leaves what was committed.
func TestKill(t *testing.T) {
	o := options(t)
	for i := range 60 {
		c, _, out := child(t, o, "churn", "k")
		for range rand.IntN(60) {
			if _, err := out.ReadByte(); err != nil {
				t.Fatalf("child %d: %v", i, err)
			}
		}
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		checkSound(t, store.New(o), -1)
	}
}

// A stopped process that holds the file is named at the deadline.
func TestStoppedHolder(t *testing.T) {
	o := options(t)
	c, _, out := child(t, o, "hold", "x")
	held(t, out)
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	o.LockTimeout = 100 * time.Millisecond
	s := store.New(o)
	for name, call := range map[string]func() error{
		"update":    func() error { return s.Update(t.Context(), func(*store.Tx) error { return nil }) },
		"view":      func() error { return s.View(t.Context(), func(*store.Tx) error { return nil }) },
		"set aside": func() error { _, err := s.SetAside(t.Context()); return err },
	} {
		err := call()
		if !errors.Is(err, store.ErrBusy) || !strings.Contains(err.Error(), fmt.Sprintf("process %d (child)", c.Process.Pid)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	o.LockTimeout = time.Minute
	update(t, store.New(o), func(*store.Tx) error { return nil })
}

// A call that gave up gives back the lock that its thread gets too late.
func TestAbandonedWaiter(t *testing.T) {
	o := options(t)
	c, in, out := child(t, o, "hold", "x")
	held(t, out)
	s := store.New(o)
	hasty := o
	hasty.LockTimeout = 30 * time.Millisecond
	for range 3 {
		if err := store.New(hasty).Update(t.Context(), func(*store.Tx) error { return nil }); !errors.Is(err, store.ErrBusy) {
			t.Errorf("deadline: %v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error)
	go func() { gaveUp <- s.Update(ctx, func(*store.Tx) error { return nil }) }()
	cancel()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	_ = in.Close()
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	for range 3 {
		update(t, s, func(*store.Tx) error { return nil })
	}
}

func TestKeyLockGoneWithProcess(t *testing.T) {
	o := options(t)
	c, _, out := child(t, o, "lock", "x")
	held(t, out)
	s := store.New(o)
	k := key("net", "c1")
	if _, ok, err := s.TryLockAttachment(t.Context(), k); ok || err != nil {
		t.Fatalf("try: %v, %v", ok, err)
	}
	o.LockTimeout = 50 * time.Millisecond
	if _, err := store.New(o).LockAttachment(t.Context(), k); !errors.Is(err, store.ErrBusy) {
		t.Errorf("deadline: %v", err)
	}
	got := make(chan error)
	go func() {
		l, err := s.LockAttachment(context.Background(), k)
		l.Unlock()
		got <- err
	}()
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}
