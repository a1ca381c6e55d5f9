package hostlocal

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
)

// TestMain also runs the test binary as a process that allocates, as one that waits, and as the
// plugin.
func TestMain(m *testing.M) {
	switch os.Getenv("HOSTLOCAL_CHILD") {
	case "wait":
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "allocate":
		if err := allocate(os.Args[1], os.Args[2], parallelConf); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "sticky":
		if err := allocate(os.Args[1], os.Args[2], stickyConf); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		rolestest.Main(m, tabletest.Of(Role()))
	}
}

const parallelConf = `{"ranges": [[{"subnet": "10.1.0.0/22"}], [{"subnet": "2001:db8::/64"}]]}`

const stickyConf = `{"ranges": [[{"subnet": "10.1.0.0/22"}], [{"subnet": "2001:db8::/64"}]], "sticky": {}}`

// allocate makes 20 attachments, removes every second one, and prints the addresses of the others.
// All processes attach the same 20 pods.
func allocate(dir, id, ipam string) error {
	o, err := childOptions(dir)
	if err != nil {
		return err
	}
	a, err := newHandler([]byte((&bed{dir: dir}).conf(ipam)))
	if err != nil {
		return err
	}
	for i := range 20 {
		req := request1(fmt.Sprintf("%s-%d", id, i))
		args, err := roles.ParseArgs(fmt.Sprintf("K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-%d", i))
		if err != nil {
			return err
		}
		req.Args = args
		r, err := a.Add(context.Background(), o, req)
		if err != nil {
			return err
		}
		if i%2 == 0 {
			fmt.Println(strings.Join(ipsOf(r), " "))
			continue
		}
		if err := a.Del(context.Background(), o, req); err != nil {
			return err
		}
	}
	return nil
}

func childOptions(dir string) (*roles.Host, error) {
	var failure failing
	h := hostAt(&failure, dir, new(bytes.Buffer))
	return h, failure.err
}

// failing is a testing.TB for a process that is not a test.
type failing struct {
	testing.TB
	err error
}

func (f *failing) Helper()           {}
func (f *failing) Fatal(args ...any) { f.err = errors.New(fmt.Sprint(args...)) }

func allocator(t *testing.T, dir, id, as string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", dir, id)
	cmd.Env = append(os.Environ(), "HOSTLOCAL_CHILD="+as)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func TestParallelProcesses(t *testing.T) {
	b := newBed(t)
	const processes = 32
	var wg sync.WaitGroup
	outs := make([]bytes.Buffer, processes)
	for i := range processes {
		cmd := allocator(t, b.dir, fmt.Sprint("p", i), "allocate")
		cmd.Stdout, cmd.Stderr = &outs[i], os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	seen := map[string]int{}
	for i := range outs {
		for a := range strings.FieldsSeq(outs[i].String()) {
			if other, twice := seen[a]; twice {
				t.Errorf("%s was given to process %d and %d", a, other, i)
			}
			seen[a] = i
		}
	}
	if len(seen) != processes*10*2 || len(b.leases(t)) != len(seen) {
		t.Errorf("%d addresses, %d leases, want %d", len(seen), len(b.leases(t)), processes*10*2)
	}
}

// TestKilledProcesses: processes that are killed at any point leave no incomplete attachment, and
// nothing that GC does not remove.
func TestKilledProcesses(t *testing.T) {
	b := newBed(t)
	b.killProcesses(t, "allocate")
	if err := b.handlerFor(t, parallelConf).GC(context.Background(), b.Host, gcRequest()); err != nil {
		t.Fatal(err)
	}
	expect(t, b.leases(t))
}

// TestKilledSticky: if only one of the two state files was written, no address is allocated twice,
// and after GC no reservation is held.
func TestKilledSticky(t *testing.T) {
	b := newStickyBed(t)
	b.Now = time.Now
	b.killProcesses(t, "sticky")
	a := b.bed.handlerFor(t, stickyConf)
	for i := range 40 {
		b.add(t, a, podRequest(t, fmt.Sprint("after", i), fmt.Sprint("web-", i)))
	}
	if err := a.GC(context.Background(), b.Host, gcRequest()); err != nil {
		t.Fatal(err)
	}
	expect(t, b.leases(t))
	for _, r := range b.reservations(t) {
		if strings.HasSuffix(r, " held") {
			t.Error(r)
		}
	}
}

// killProcesses kills allocating processes at any point. Each attachment that they leave has an
// address of both families.
func (b *bed) killProcesses(t *testing.T, as string) {
	t.Helper()
	for round := range 20 {
		var cmds []*exec.Cmd
		for i := range 4 {
			cmd := allocator(t, b.dir, fmt.Sprintf("r%d-%d", round, i), as)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			cmds = append(cmds, cmd)
			lines := bufio.NewScanner(out)
			for range round % 8 {
				lines.Scan() // the process has allocated its first address, and continues
			}
		}
		for _, cmd := range cmds {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		families := map[string]int{}
		for _, l := range b.leases(t) {
			families[strings.SplitN(l, " ", 2)[1]]++
		}
		for owner, n := range families {
			if n != 2 {
				t.Fatalf("%s has %d addresses", owner, n)
			}
		}
	}
}

// model is a simple implementation of host-local, with addresses in a list.
type model struct {
	sets   [][]netip.Addr // in order of allocation
	last   []int
	owners map[netip.Addr]string
}

func (m *model) add(owner string) ([]string, bool) {
	var out []string
	var at []int
	for s, addrs := range m.sets {
		i := 1
		for ; i <= len(addrs) && m.owners[addrs[(m.last[s]+i)%len(addrs)]] != ""; i++ {
		}
		if i > len(addrs) {
			return nil, false
		}
		at = append(at, (m.last[s]+i)%len(addrs))
	}
	for s, i := range at {
		m.last[s] = i
		m.owners[m.sets[s][i]] = owner
		out = append(out, m.sets[s][i].String())
	}
	return out, true
}

func (m *model) del(owner string) {
	maps.DeleteFunc(m.owners, func(_ netip.Addr, o string) bool { return o == owner })
}

func newModel(p *leasing.Plan) *model {
	m := &model{owners: map[netip.Addr]string{}}
	for _, s := range p.Sets {
		var addrs []netip.Addr
		for _, r := range s {
			for _, i := range r.Free {
				for a := i.Lo; a.Compare(i.Hi) <= 0; a = a.Next() {
					addrs = append(addrs, a)
				}
			}
		}
		m.sets = append(m.sets, addrs)
		m.last = append(m.last, len(addrs)-1)
	}
	return m
}

// TestAgreesWithModel: random ADD and DEL on two pools, one of them dual stack, have the results of
// the model.
func TestAgreesWithModel(t *testing.T) {
	b := newBed(t)
	r := rand.New(rand.NewPCG(5, 6))
	ipams := []string{
		`{"ranges": [[{"subnet": "10.1.0.0/28", "exclude": ["10.1.0.5", "10.1.0.8/31"]}, {"subnet": "10.0.9.0/29"}], [{"subnet": "2001:db8::/124", "gateway": "2001:db8::7"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/28", "rangeStart": "10.1.0.3", "rangeEnd": "10.1.0.9"}]]}`,
	}
	for i, ipam := range ipams {
		a := b.handlerFor(t, ipam)
		m := newModel(a.Plan)
		alive := map[string]bool{}
		for step := range 600 {
			id := fmt.Sprint("c", r.IntN(24))
			req := request1(id)
			req.Network = fmt.Sprint("net", i)
			if alive[id] {
				b.del(t, a, req)
				m.del(id)
				delete(alive, id)
				continue
			}
			want, ok := m.add(id)
			if !ok {
				if err := b.addFails(t, a, req); !errors.Is(err, roles.ErrExhausted) {
					t.Fatal(err)
				}
				continue
			}
			alive[id] = true
			if got := b.add(t, a, req); !slices.Equal(got, want) {
				t.Fatalf("pool %d, step %d: got %v, want %v", i, step, got, want)
			}
		}
	}
}
