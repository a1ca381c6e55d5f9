package keeper

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles/netpolicy/enforce"
)

type podRequest = netops.PodPolicy

// fetchTime bounds the search for a pod that the source has not sent yet.
const fetchTime = enforce.AskTime / 2

// accept returns a function that passes a client's request on to Run, until done is closed.
func (k *Keeper) accept(done <-chan struct{}) func(net.Conn) {
	return func(c net.Conn) {
		_ = c.SetDeadline(time.Now().Add(2 * enforce.AskTime))
		go func() {
			r := &request{conn: c, pod: new(podRequest)}
			line, err := bufio.NewReader(io.LimitReader(c, enforce.MaxMessage)).ReadBytes('\n')
			if err == nil {
				err = json.Unmarshal(line, r.pod)
			}
			if err != nil {
				_ = c.Close()
				return
			}
			select {
			case k.requests <- r:
			case <-done:
				_ = c.Close()
			}
		}()
	}
}

// answer announces the pod of a request, makes the kernel's objects that it needs, and answers. The kernel has the chains
// before ADD adds the pod's elements.
func (k *Keeper) answer(ctx context.Context, r *request) {
	a, err := k.choose(ctx, r.pod)
	if err != nil {
		a = enforce.Answer{Error: fmt.Sprintf("%.500s", err)}
	}
	_ = json.NewEncoder(r.conn).Encode(a) // the client may have ended
	_ = r.conn.Close()
}

func (k *Keeper) choose(ctx context.Context, p *podRequest) (a enforce.Answer, err error) {
	if !k.synced {
		return a, errors.New("the agent has not read the network policies yet")
	}
	if !k.Source.FromFiles() {
		k.fetch(ctx, p)
	}
	k.local.announce(p)
	k.local.putInto(k.table)
	rules := k.table.Ruleset()
	if err := k.filter.Ensure(ctx, rules); err != nil {
		return a, err
	}
	for _, addr := range p.Addresses {
		pod := rules.Pending[addr]
		a.Egress, a.Ingress = pod.Egress, pod.Ingress
	}
	if a.Egress+a.Ingress == "" {
		k.local.open(p)
	}
	return a, nil
}

// fetch searches a pod that the source has not sent yet. One that is not found has the chain that drops everything, until
// the source sends it.
func (k *Keeper) fetch(ctx context.Context, p *podRequest) {
	if have := k.table.Pod(p.Namespace, p.Name); have != nil && have.Is(p.UID) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	found, err := k.Source.Fetch(ctx, p.Namespace, p.Name)
	if err != nil {
		k.Host.Log.Warn("a pod is not known: it is denied all packets until it is", "pod", p.Namespace+"/"+p.Name, "error", err)
		return
	}
	k.table.PutPod(found)
}
