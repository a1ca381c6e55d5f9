package cloud

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/netopstest"
	"github.com/cnibox/cnibox/roles/rolestest"
	"github.com/cnibox/cnibox/roles/rolestest/tabletest"
)

// fabric is a server for Azure's host agent with configurable faults.
type fabric struct {
	*httptest.Server
	queries atomic.Int64
	// how returns the answer to a query.
	how atomic.Pointer[http.HandlerFunc]
	end chan struct{}
}

func newFabric(t *testing.T, pods int) *fabric {
	t.Helper()
	f := &fabric{end: make(chan struct{})}
	var body bytes.Buffer
	fmt.Fprint(&body, `<Interfaces><Interface MacAddress="*" IsPrimary="true"><IPSubnet Prefix="10.250.0.0/16"><IPAddress Address="10.250.0.4" IsPrimary="true"/>`)
	for i := range pods {
		fmt.Fprintf(&body, `<IPAddress Address="10.250.%d.%d" IsPrimary="false"/>`, 1+i/200, 10+i%200)
	}
	fmt.Fprint(&body, `</IPSubnet></Interface></Interfaces>`)
	f.does(func(w http.ResponseWriter, _ *http.Request) {
		half := body.Len() / 2
		_, _ = w.Write(body.Bytes()[:half])
		w.(http.Flusher).Flush()
		<-time.After(300 * time.Millisecond)
		_, _ = w.Write(body.Bytes()[half:])
	})
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.queries.Add(1)
		(*f.how.Load())(w, r)
	}))
	t.Cleanup(func() { close(f.end); f.CloseClientConnections(); f.Close() })
	return f
}

func (f *fabric) does(how http.HandlerFunc) { f.how.Store(&how) }

// TestParallelProcesses: 200 ADDs at once with a host agent that is slow, then dead, then
// throttles. No address is assigned twice, no ADD waits for the dead agent, and there is
// one query for each interval. (azure-vnet's plugins send one query each and fail at
// about 150.)
func TestParallelProcesses(t *testing.T) {
	const pods = 200
	e := rolestest.NewEnv(t, tabletest.Of(Role()))
	ns := netopstest.New(t)
	f := newFabric(t, pods)
	holders := map[string]string{}
	round := func(name, interval string, most func(time.Duration) int64) {
		t.Helper()
		conf := fmt.Sprintf(`{"cniVersion": "0.3.0", "name": "azure", "type": "azure-vnet", "ipam": {"type": "azure-vnet-ipam", "url": %q, "queryInterval": %q, "cooldown": 0}}`, f.URL, interval)
		f.queries.Store(0)
		start := time.Now()
		for i, addr := range addAll(t, e, ns.Path(), conf, pods) {
			if had, twice := holders[addr]; twice {
				t.Errorf("%s: %s for container %d, and for %s", name, addr, i, had)
			}
			holders[addr] = fmt.Sprint(name, " ", i)
		}
		if n, most := f.queries.Load(), most(time.Since(start)); n < 1 || n > most {
			t.Errorf("%s: %d queries, want 1 to %d", name, n, most)
		}
		for i := range pods {
			e.OK(rolestest.Call{Type: "azure-vnet-ipam", Verb: "DEL", ID: fmt.Sprint("c", i), Netns: ns.Path(), IfName: "eth0", Conf: conf})
		}
		clear(holders)
	}
	eachSecond := func(d time.Duration) int64 { return int64(d/time.Second) + 2 }
	round("slow", "3600", func(time.Duration) int64 { return 1 })
	f.does(func(http.ResponseWriter, *http.Request) { <-f.end })
	round("dead", "1", eachSecond)
	f.does(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	round("throttling", "1", eachSecond)
}

// addAll runs ADD for n containers at once and returns their addresses.
func addAll(t *testing.T, e *rolestest.Env, netns, conf string, n int) []string {
	t.Helper()
	out := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		cmd := e.Cmd(rolestest.Call{Type: "azure-vnet-ipam", Verb: "ADD", ID: fmt.Sprint("c", i), Netns: netns, IfName: "eth0", Conf: conf})
		wg.Go(func() {
			addr, err := addressOf(cmd)
			if err != nil {
				t.Errorf("ADD %d: %v", i, err)
			}
			out[i] = addr
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return out
}

func addressOf(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	raw, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s%s", err, raw, &stderr)
	}
	var r struct {
		IPs []struct{ Address string }
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return "", err
	}
	if len(r.IPs) != 1 {
		return "", fmt.Errorf("%d addresses: %s", len(r.IPs), raw)
	}
	ip, _, err := net.ParseCIDR(r.IPs[0].Address)
	return ip.String(), err
}
